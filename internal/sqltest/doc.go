// Package sqltest gives tests real database servers, PostgreSQL and MariaDB:
// processes of their own on free loopback ports, in temporary folders.
//
// The package imports no driver: a server is a host, a port and the DSNs for drivers. TestMain
// stops the servers that the tests of a package share:
//
//	func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }
//
//	func TestSomething(t *testing.T) {
//		db, err := sql.Open("pgx", sqltest.Shared(t, sqltest.Postgres).DSN("postgres"))
//		// …
//	}
//
// The data ends with the servers, so the servers do not sync it to disk.
//
// If a program is missing, the tests fail with a message about what to install. Tests are never
// skipped: a suite that passes because it ran nothing is worse than one that fails.
package sqltest
