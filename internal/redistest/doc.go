// Package redistest gives tests real Redis servers: processes of their own on
// free loopback ports, in temporary folders, without persistence.
//
// One line of TestMain lets all tests of a package share a server, and stops it:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		client := redistest.Shared(t).Client(t)
//		// …
//	}
//
// A test that pauses, kills or configures its server takes one of its own with
// [Start]. A package whose tests also start child processes, or look for
// goroutines left behind, says so in the same line:
//
//	func TestMain(m *testing.M) {
//		redistest.Main(proc.Main(m), func() error { return goleak.Find() })
//	}
//
// [StartSentinel] and [StartCluster] start whole sets of servers: a master with
// replicas and the Sentinels that watch over them, and a Redis Cluster.
//
// A machine without redis-server fails the tests and says what to install. They
// are never skipped: a suite that is green because it ran nothing is worse than
// a red one.
package redistest
