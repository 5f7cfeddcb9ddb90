// Package sqltest gives tests real database servers, PostgreSQL and MariaDB. Each server is a
// process on a free loopback port, in a temporary folder.
//
// The package imports no driver. For a test, a server is a host, a port and the DSNs for drivers.
// All tests of a package can share servers, which TestMain stops:
//
//	func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }
//
//	func TestSomething(t *testing.T) {
//		db, err := sql.Open("pgx", sqltest.Shared(t, sqltest.Postgres).DSN("postgres"))
//		// …
//	}
//
// The data is needed only until the servers end, so the servers do not sync it to disk.
//
// If a program is missing, the tests fail with a message about what to install. No test is
// skipped, because a suite that runs nothing would pass.
package sqltest
