package sqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

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

// duplicate says whether a statement failed because a row with the same key is there. Only SQLite is asked.
func (d Dialect) duplicate(err error) bool {
	return d == SQLite && d.number(err)&0xff == sqliteConstraint
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
	if d.passing(err) && !errors.Is(err, driver.ErrBadConn) {
		return true
	}
	switch s := state(err); d {
	case Postgres: // 40003 is "statement completion unknown"
		return len(s) == 5 && s != "40003" && slices.Contains([]string{"23", "25", "40", "P0"}, s[:2])
	case SQLite:
		return d.number(err)&0xff == sqliteConstraint
	default:
		return false
	}
}
