package sqllock

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// state returns the SQLSTATE of a server's error, or "" for other errors. Errors of PostgreSQL's
// drivers have a method SQLState.
func state(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// number returns the number of a server's error, or 0 for other errors. The driver of MySQL exports
// it as the field Number, and the drivers of SQLite as a method or a field Code. This package imports
// no driver, so it reads them by reflection, from the errors of the dialect's drivers only, because
// errors of other packages have codes too.
func (d Dialect) number(err error) (found int) {
	walk(err, func(e error) bool {
		v := reflect.ValueOf(e)
		s := reflect.Indirect(v)
		if d == Postgres || !s.IsValid() || !d.hasDriver(s.Type()) {
			return false
		}
		var n reflect.Value
		if m := v.MethodByName("Code"); m.IsValid() && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			n = m.Call(nil)[0]
		} else if s.Kind() == reflect.Struct {
			n = s.FieldByName(map[Dialect]string{MySQL: "Number", SQLite: "Code"}[d])
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

// walk calls see for err and every error inside it, until see returns true.
func walk(err error, see func(error) bool) bool {
	if err == nil {
		return false
	}
	if see(err) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // errors.As reads errors in the same way
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

// code returns the SQLSTATE or the number of a server's error, for traces. For errors that are not
// from the server, it returns "".
func (d Dialect) code(err error) string {
	if d == Postgres {
		return state(err)
	}
	if n := d.number(err); n != 0 {
		return fmt.Sprintf("%s_%d", dialectNames[d], n)
	}
	return ""
}

// These numbers identify errors of MySQL, MariaDB and SQLite. For SQLite, the number is the low
// byte of the extended error code.
const (
	mysqlRecordChanged = 1020 // MariaDB with innodb_snapshot_isolation
	mysqlLockWait      = 1205 // the server rolls back only the statement
	mysqlDeadlock      = 1213 // the server rolls back the whole transaction
	mysqlNoTable       = 1146
	mysqlDuplicate     = 1062
	mysqlNoSavepoint   = 1305
	mysqlIdle          = 4031 // MySQL 8.0.24 and newer; MariaDB sends no error

	sqliteError      = 1
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteConstraint = 19
)

// isTemporary reports whether a retry of the transaction may succeed after err, because the
// transaction collided with another transaction or its server went down. After a ROLLBACK, nothing
// of the transaction is left.
func (d Dialect) isTemporary(err error) bool {
	if isConnectionLost(err) { // the connection has ended before COMMIT, and the transaction with it
		return true
	}
	n := d.number(err)
	switch d {
	case Postgres: // 57P0x: the server is shutting down, has crashed, or is starting
		return slices.Contains([]string{"40001", "40P01", "57P01", "57P02", "57P03"}, state(err))
	case MySQL:
		return n == mysqlDeadlock || n == mysqlLockWait || n == mysqlRecordChanged
	default:
		return n&0xff == sqliteBusy || n&0xff == sqliteLocked
	}
}

// isLockTimeout reports whether err shows that a statement of this package has waited for a row for
// longer than the lock_timeout of the role or the database. If a statement of fn gets the same
// error, NOWAIT may be the reason, so fn must handle it.
func (d Dialect) isLockTimeout(err error) bool { return d == Postgres && state(err) == "55P03" }

// isIdleness reports whether err is the error with which the server ends an idle transaction.
func (d Dialect) isIdleness(err error) bool {
	return d == Postgres && state(err) == "25P03" || d == MySQL && d.number(err) == mysqlIdle
}

// isDuplicate reports whether a statement failed because a row with the same key exists.
func (d Dialect) isDuplicate(err error) bool {
	switch d {
	case Postgres:
		return state(err) == "23505"
	case MySQL:
		return d.number(err) == mysqlDuplicate
	default:
		return d.number(err)&0xff == sqliteConstraint
	}
}

// failsProof reports whether err shows that the statement "proof" failed because the transaction is
// over.
func (d Dialect) failsProof(err error) bool {
	switch d {
	case Postgres:
		return state(err) == "22012" // a division by zero
	case MySQL:
		return d.number(err) == mysqlNoSavepoint
	default:
		return d.number(err)&0xff == sqliteError
	}
}

// isMissingTable reports whether a statement failed because its table does not exist. SQLite has no
// separate code for a missing table.
func (d Dialect) isMissingTable(err error) bool {
	switch d {
	case Postgres:
		return state(err) == "42P01"
	case MySQL:
		return d.number(err) == mysqlNoTable
	default:
		return d.number(err) == sqliteError && strings.Contains(err.Error(), "no such table")
	}
}

// isRefusal reports whether err, the error of a COMMIT, proves that nothing was committed. Errors
// of a server that is shutting down prove nothing. Errors that a driver makes when no answer comes
// prove nothing either.
func (d Dialect) isRefusal(err error) bool {
	s := state(err)
	if d.isTemporary(err) && !isConnectionLost(err) && !strings.HasPrefix(s, "57") {
		return true
	}
	switch d {
	case Postgres: // 40003 is "statement completion unknown"
		return len(s) == 5 && s != "40003" && slices.Contains([]string{"23", "25", "40", "P0"}, s[:2])
	case SQLite:
		return d.number(err)&0xff == sqliteConstraint
	default:
		return false
	}
}
