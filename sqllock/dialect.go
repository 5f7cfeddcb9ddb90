package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// Dialect is the kind of a database: whose SQL it speaks, and whose errors it answers with.
type Dialect uint8

const (
	// Postgres is PostgreSQL, and what speaks its protocol and its SQL.
	Postgres Dialect = iota + 1
	// MySQL is MySQL and MariaDB, with InnoDB.
	MySQL
	// SQLite is SQLite from 3.35 on.
	SQLite
)

var dialectNames = [...]string{Postgres: "postgres", MySQL: "mysql", SQLite: "sqlite"}

// String returns the dialect's name, such as "postgres".
func (d Dialect) String() string {
	if d.known() {
		return dialectNames[d]
	}
	return "unknown"
}

func (d Dialect) known() bool { return d >= Postgres && d <= SQLite }

// drivers are the packages of drivers, by how their import paths begin.
var drivers = []struct {
	path    string
	dialect Dialect
}{
	{"github.com/jackc/pgx/", Postgres},
	{"github.com/lib/pq", Postgres},
	{"github.com/go-sql-driver/mysql", MySQL},
	{"modernc.org/sqlite", SQLite},
	{"github.com/glebarez/go-sqlite", SQLite},
	{"github.com/mattn/go-sqlite3", SQLite},
	{"github.com/ncruces/go-sqlite3", SQLite},
}

// detect finds the dialect of db by the driver behind it.
func detect(db Beginner) (Dialect, error) {
	var found any = db
	switch db := db.(type) {
	case interface{ Driver() driver.Driver }: // *sql.DB, and what embeds it
		found = db.Driver()
	case interface{ Raw(func(any) error) error }: // *sql.Conn
		if err := db.Raw(func(conn any) error { found = conn; return nil }); err != nil {
			return 0, err
		}
	}
	t := reflect.TypeOf(found)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, d := range drivers {
		if strings.HasPrefix(t.PkgPath(), d.path) {
			return d.dialect, nil
		}
	}
	return 0, fmt.Errorf("%w: sqllock does not know which database stands behind %T; say so with WithDialect", locker.ErrUnsupported, found)
}

//go:embed sql
var files embed.FS

// statements are a dialect's files by name, without the comments that they begin with.
type statements map[string]string

// statements returns what is in sql/DIALECT, with the names of the tables that the program wants.
func (d Dialect) statements(prefix string) statements {
	all := make(statements)
	folder := "sql/" + d.String()
	entries, _ := files.ReadDir(folder) // embedded: it is there
	for _, e := range entries {
		text, _ := files.ReadFile(folder + "/" + e.Name())
		var lines []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		query := strings.TrimSpace(strings.Join(lines, ""))
		all[strings.TrimSuffix(e.Name(), ".sql")] = strings.NewReplacer(
			defaultPrefix+"fence", prefix+"fence", defaultPrefix+"ledger", prefix+"ledger").Replace(query)
	}
	return all
}

// state returns the SQLSTATE of a server's error, "" for any other: PostgreSQL's drivers have the method.
func state(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// number returns the number of a server's error, 0 for any other. MySQL's drivers have a field Number, SQLite's a method
// or a field Code; they are found by reflection, as this package imports no driver.
func (d Dialect) number(err error) int {
	found := 0
	walk(err, func(e error) bool {
		v := reflect.ValueOf(e)
		var n reflect.Value
		if m := v.MethodByName("Code"); d == SQLite && m.IsValid() && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			n = m.Call(nil)[0]
		} else {
			if v.Kind() == reflect.Pointer {
				v = v.Elem()
			}
			if v.Kind() == reflect.Struct {
				n = v.FieldByName(map[Dialect]string{MySQL: "Number", SQLite: "Code"}[d])
			}
		}
		switch {
		case !n.IsValid():
		case n.CanInt():
			found = int(n.Int())
		case n.CanUint():
			found = int(n.Uint())
		}
		return found != 0
	})
	return found
}

// walk shows every error inside err to see, until it has seen enough.
func walk(err error, see func(error) bool) bool {
	if err == nil {
		return false
	}
	if see(err) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // this is how errors.As walks
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), see)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if walk(inner, see) {
				return true
			}
		}
	}
	return false
}

// code names a server's error for a trace: its SQLSTATE, or its number; "" when it is none.
func (d Dialect) code(err error) string {
	if d == Postgres {
		return state(err)
	}
	if n := d.number(err); n != 0 {
		return fmt.Sprintf("%s_%d", d, n)
	}
	return ""
}

// Numbers of errors: MySQL's, MariaDB's and SQLite's own. SQLite's are the low byte of its extended codes.
const (
	mysqlRecordChanged = 1020 // MariaDB with innodb_snapshot_isolation
	mysqlLockWait      = 1205 // rolls back the statement only
	mysqlDeadlock      = 1213 // rolls back the transaction
	mysqlNoTable       = 1146

	sqliteError      = 1
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteNoMemory   = 7
	sqliteInterrupt  = 9
	sqliteIO         = 10
	sqliteFull       = 13
	sqliteConstraint = 19
)

// passing says whether an error is the database's way to say "not now, do it all again": the transaction came too close to
// another one. Nothing of it is left after a ROLLBACK.
func (d Dialect) passing(err error) bool {
	if errors.Is(err, driver.ErrBadConn) { // before COMMIT: the connection took the transaction with it
		return true
	}
	n := d.number(err)
	switch d {
	case Postgres:
		return slices.Contains([]string{"40001", "40P01"}, state(err))
	case MySQL:
		return n == mysqlDeadlock || n == mysqlLockWait || n == mysqlRecordChanged
	default:
		return n&0xff == sqliteBusy || n&0xff == sqliteLocked
	}
}

// ended says whether a statement's error has ended the transaction without a word. What follows would be committed by
// itself, one statement at a time and with no claim, so nothing may follow. PostgreSQL refuses that by itself.
func (d Dialect) ended(err error) bool {
	n := d.number(err)
	switch d {
	case MySQL:
		return n == mysqlDeadlock || n == mysqlRecordChanged
	case SQLite:
		interrupted := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		return interrupted || slices.Contains([]int{sqliteNoMemory, sqliteInterrupt, sqliteIO, sqliteFull}, n&0xff)
	default:
		return false
	}
}

// missing says whether a statement failed because its table is not there. SQLite has no code of its own for that.
func (d Dialect) missing(err error) bool {
	switch d {
	case Postgres:
		return state(err) == "42P01"
	case MySQL:
		return d.number(err) == mysqlNoTable
	default:
		return d.number(err) == sqliteError
	}
}

// refused says whether the error of a COMMIT proves that nothing was committed. Errors that a server gives while it goes
// down, or that a driver makes up when no answer comes, do not.
func (d Dialect) refused(err error) bool {
	if errors.Is(err, sql.ErrTxDone) || d.passing(err) && !errors.Is(err, driver.ErrBadConn) {
		return true
	}
	switch s := state(err); d {
	case Postgres:
		return len(s) == 5 && slices.Contains([]string{"23", "25", "40", "P0"}, s[:2])
	case SQLite:
		return d.number(err)&0xff == sqliteConstraint
	default:
		return false
	}
}
