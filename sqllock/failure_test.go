package sqllock

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"
)

// stateErr, numberErr and codeErr have the form of the errors of three drivers: pgx,
// go-sql-driver, and SQLite's drivers.
type stateErr string

func (e stateErr) Error() string    { return string(e) }
func (e stateErr) SQLState() string { return string(e) }

type numberErr struct{ Number uint16 }

func (*numberErr) Error() string { return "number" }

type codeErr int

func (e codeErr) Error() string { return "code" }
func (e codeErr) Code() int     { return int(e) }

type fieldErr struct{ Code int }

func (fieldErr) Error() string { return "field" }

// init registers this package as a driver, because sqllock reads numbers only from errors of drivers.
func init() { //nolint:gochecknoinits // runs before the tests, because the tests run in parallel
	for _, d := range []Dialect{MySQL, SQLite} {
		drivers[d] = append(drivers[d], "github.com/latchkit/latchkit/sqllock")
	}
}

func TestErrorsOfServersAreToldApart(t *testing.T) {
	for _, tc := range []struct {
		d                Dialect
		err              error
		passing, refused bool
	}{
		{Postgres, stateErr("40001"), true, true},
		{Postgres, stateErr("40P01"), true, true},
		{Postgres, stateErr("40003"), false, false}, // "statement completion unknown"
		{Postgres, stateErr("23505"), false, true},  // for example a deferred constraint
		{Postgres, stateErr("57P01"), true, false},  // the server shuts down, perhaps only after the commit
		{Postgres, stateErr("08006"), false, false},
		{Postgres, errors.New("EOF"), false, false},
		{MySQL, &numberErr{1213}, true, true},
		{MySQL, &numberErr{1205}, true, true},
		{MySQL, &numberErr{1020}, true, true},
		{MySQL, &numberErr{1180}, false, false}, // MySQL returns this error for a COMMIT that failed
		{SQLite, codeErr(5), true, true},
		{SQLite, codeErr(517), true, true}, // BUSY_SNAPSHOT
		{SQLite, codeErr(6), true, true},
		{SQLite, codeErr(13), false, false},
		{SQLite, codeErr(787), false, true}, // for example a deferred foreign key
		{SQLite, fieldErr{5}, true, true},
		{SQLite, &fieldErr{5}, true, true},
		{SQLite, codeErr(1), false, false},
		{SQLite, &textproto.Error{Code: 5}, false, false}, // a code of another package
	} {
		for _, err := range []error{tc.err, fmt.Errorf("around it: %w", tc.err), errors.Join(errors.New("beside it"), tc.err)} {
			if got := tc.d.isTemporary(err); got != tc.passing {
				t.Errorf("%v %v: passing %v", tc.d, err, got)
			}
			if got := tc.d.isRefusal(err); got != tc.refused {
				t.Errorf("%v %v: refused %v", tc.d, err, got)
			}
		}
	}
	for d := Postgres; d <= SQLite; d++ {
		if !d.isTemporary(driver.ErrBadConn) || d.isRefusal(driver.ErrBadConn) || d.isRefusal(sql.ErrTxDone) {
			t.Errorf("%s: a connection that is gone takes the transaction with it, but not a COMMIT", dialectNames[d])
		}
	}
}

func TestAnErrorThatReportsIdlenessIsErrIdle(t *testing.T) {
	for d, err := range map[Dialect]error{Postgres: stateErr("25P03"), MySQL: &numberErr{4031}} {
		i := idleness{dialect: d, limit: time.Hour}
		if got := i.judge(err); !errors.Is(got, ErrIdle) || !errors.Is(got, err) {
			t.Errorf("%s: %v", dialectNames[d], got)
		}
	}
	if got := (&idleness{dialect: MySQL, limit: time.Hour}).judge(&numberErr{1213}); got != nil {
		t.Errorf("a deadlock: %v", got)
	}
}

func TestStatementsTakeThePrefixAndLeaveTheirComments(t *testing.T) {
	for d := Postgres; d <= SQLite; d++ {
		for name, text := range d.statements("app.my_") {
			if strings.Contains(text, "--") || text == "" || strings.HasSuffix(text, ";") {
				t.Errorf("%s %s: %q", dialectNames[d], name, text)
			}
			if strings.Contains(text, "latchkit_fence") || strings.Contains(text, "latchkit_ledger") {
				t.Errorf("%s %s keeps the usual name: %s", dialectNames[d], name, text)
			}
		}
		all := slices.Sorted(maps.Keys(d.statements(defaultPrefix)))
		for _, needed := range []string{"claim", "fence_table", "forget", "give_up", "ledger_table", "look", "operation", "proof", "recall"} {
			if !slices.Contains(all, needed) {
				t.Errorf("%s lacks %s, has %v", dialectNames[d], needed, all)
			}
		}
	}
}

func TestOperationsAreNamedInTheOrderOfTime(t *testing.T) {
	last := ""
	for range 1000 {
		id := newID()
		if len(id) != idBytes || id[:14] < last {
			t.Fatalf("%q after %q", id, last)
		}
		last = id[:14]
	}
	if old := idAt(time.Now().Add(-time.Hour)); old >= last {
		t.Errorf("an hour ago is %q, now %q", old, last)
	}
	if far := idAt(time.Now().AddDate(1000, 0, 0)); len(far) != 14 || far <= last {
		t.Errorf("in a thousand years it is %q", far)
	}
}

func TestAnErrorSaysWhatHappenedToWhat(t *testing.T) {
	for want, e := range map[string]*Error{
		"sqllock: account:42 with fence 7: a newer holder has claimed the resource; the database has fence 9":                         {Resource: "account:42", Fence: 7, Seen: 9, Err: ErrStaleFence},
		"sqllock: account:42 with fence 7, operation X: it is unknown whether the transaction was committed; call sqllock.DB.Resolve": {Resource: "account:42", Fence: 7, Op: "X", Err: ErrCommitUnknown},
	} {
		if e.Error() != want {
			t.Errorf("%q", e.Error())
		}
	}
	for _, k := range kinds {
		if got := (&Error{Err: fmt.Errorf("so: %w", k.sentinel)}).ErrorType(); got != k.name {
			t.Errorf("%v is %q", k.sentinel, got)
		}
	}
}
