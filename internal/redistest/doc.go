// Package redistest gives tests real Redis servers: separate processes on free loopback ports, in
// temporary folders, without persistence.
//
// One line of TestMain lets all tests of a package share a server, and stops this server:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		client := redistest.Shared(t).Client(t)
//		// …
//	}
//
// A test that pauses, kills or configures its server starts a separate server with [Start]. Some
// tests also start child processes, or check for leaked goroutines. Their TestMain is:
//
//	func TestMain(m *testing.M) {
//		redistest.Main(proc.Main(m), func() error { return goleak.Find() })
//	}
//
// [StartTLS] starts a server that accepts TLS connections only.
// [StartSentinel] starts a master with replicas and Sentinels. [StartCluster] starts a Redis
// Cluster.
//
// If redis-server is missing, the tests fail with a message about what to install. No test is
// skipped, because a suite that runs nothing would pass.
package redistest
