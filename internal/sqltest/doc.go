// Package sqltest gives tests real database servers, PostgreSQL and MariaDB:
// processes of their own on free loopback ports, in temporary folders.
//
// It knows no driver: a server is a host, a port and the DSNs that drivers take.
// One word in TestMain stops the servers that the tests of a package share:
//
//	func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }
//
//	func TestSomething(t *testing.T) {
//		db, err := sql.Open("pgx", sqltest.Shared(t, sqltest.Postgres).DSN("postgres"))
//		// …
//	}
//
// Nothing survives the servers, so they write nothing to disk in a hurry.
//
// A machine without the programs fails the tests and says what to install. They
// are never skipped: a suite that is green because it ran nothing is worse than
// a red one.
package sqltest
