package sqllock

import (
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// Dialect is the kind of a database: its SQL and its errors.
type Dialect uint8

const (
	// Postgres is PostgreSQL, and databases with its protocol and its SQL.
	Postgres Dialect = iota + 1
	// MySQL is MySQL and MariaDB, with InnoDB.
	MySQL
	// SQLite is SQLite 3.35 or newer.
	SQLite
)

var dialectNames = [...]string{Postgres: "postgres", MySQL: "mysql", SQLite: "sqlite"}

// isValid reports whether d is one of the dialects above.
func (d Dialect) isValid() bool { return d >= Postgres && d <= SQLite }

// drivers has the beginnings of the import paths of the known drivers.
var drivers = map[Dialect][]string{
	Postgres: {"github.com/jackc/pgx/", "github.com/lib/pq"},
	MySQL:    {"github.com/go-sql-driver/mysql"},
	SQLite:   {"modernc.org/sqlite", "github.com/glebarez/go-sqlite", "github.com/mattn/go-sqlite3", "github.com/ncruces/go-sqlite3"},
}

// detect finds the dialect of db by its driver. db may be nil.
func detect(db any) (Dialect, error) {
	found := db
	if db, ok := db.(interface{ Driver() driver.Driver }); ok { // *sql.DB, and what embeds it
		found = db.Driver()
	}
	t := reflect.TypeOf(found)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && driverOf(t) != 0 {
		return driverOf(t), nil
	}
	return 0, fmt.Errorf("%w: sqllock cannot find out which database %T belongs to; name it with WithDialect", locker.ErrUnsupported, found)
}

// driverOf returns the dialect of the driver whose package declares t, or 0.
func driverOf(t reflect.Type) Dialect {
	for d := Postgres; d <= SQLite; d++ {
		if d.hasDriver(t) {
			return d
		}
	}
	return 0
}

// hasDriver reports whether a driver of d declares t.
func (d Dialect) hasDriver(t reflect.Type) bool {
	return slices.ContainsFunc(drivers[d], func(path string) bool { return strings.HasPrefix(t.PkgPath(), path) })
}

//go:embed sql
var files embed.FS

// statements are a dialect's statements by the names of their files, without the comments at their
// beginning. sql/NAME.sql is for every dialect without a file sql/DIALECT/NAME.sql.
type statements map[string]string

// agos has the expression of each dialect for the time that was a number of seconds ago. Statements
// for every dialect write it as ago(?).
var agos = map[Dialect]string{
	Postgres: "(now() - make_interval(secs => ?::bigint))",
	MySQL:    "(CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND)",
	SQLite:   "datetime('now', '-' || ? || ' seconds')",
}

// statements returns the statements of d, with the program's table prefix.
func (d Dialect) statements(prefix string) statements {
	all := make(statements)
	for _, folder := range []string{"sql", "sql/" + dialectNames[d]} { // the later statement replaces the earlier
		names, _ := fs.Glob(files, folder+"/*.sql") // the pattern is valid
		for _, name := range names {
			text, _ := files.ReadFile(name) // the file is embedded, so it exists
			query := withoutComments(string(text))
			if folder == "sql" {
				query = d.translate(query)
			}
			for _, table := range tables {
				query = strings.ReplaceAll(query, defaultPrefix+table, prefix+table)
			}
			all[strings.TrimSuffix(path.Base(name), ".sql")] = query
		}
	}
	return all
}

func withoutComments(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// translate returns query, a statement for every dialect, in the SQL of d. PostgreSQL numbers its
// parameters.
func (d Dialect) translate(query string) string {
	query = strings.ReplaceAll(query, "ago(?)", agos[d])
	for n := 1; d == Postgres && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}
