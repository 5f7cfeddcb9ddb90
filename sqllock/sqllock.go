package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/latchkit/latchkit/locker"
)

// Do takes the lock that rule describes, begins a transaction, claims the lease's fence in it, calls fn, commits, and gives
// the lock up: in this order. The lock is taken before a connection is, so that callers who wait keep none.
//
// How it ends:
//
//	nil                    the transaction is committed
//	ErrCommitUnknown       nobody has answered; ask Resolve before you do it again
//	any other error        nothing was changed in the database
//
// These are the Locker's errors; locker.ErrUnsupported for a lease whose fence is 0; ErrStaleFence, ErrFenceRegressed,
// ErrTooLate; the database's; and fn's, which come back unchanged, with locker.ErrLost beside them when the lease was lost.
// After a loss nothing is committed. A lease that is lost once the transaction is committed is no error: the claim in it
// keeps older holders out.
//
// fn may be called several times, each time in a new transaction; see [WithRetries]. Its context ends with ctx or with the
// lease. ctx ends the wait and the transaction, but no COMMIT that is under way, which [WithAnswerWithin] bounds. If fn
// panics the transaction is rolled back, the lock given up, and the panic goes on.
func Do(ctx context.Context, l locker.Locker, db Beginner, rule locker.Rule, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	return DoAll(ctx, l, db, []locker.Rule{rule}, fn, opts...)
}

// DoAll is Do for several locks at once, which it takes as [locker.RunAll] does. Their fences are claimed in the order of their
// keys as well, whatever the order of rules, so two calls never wait for each other.
func DoAll(ctx context.Context, l locker.Locker, db Beginner, rules []locker.Rule, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	if len(rules) == 0 {
		return fmt.Errorf("%w: sqllock: DoAll without rules has nothing to lock; begin a transaction of your own", locker.ErrInvalidRule)
	}
	c, err := forDB(db, rules, fn, opts)
	if err != nil {
		return err
	}
	return c.run(ctx, l, rules)
}

// Within is Do under a lease that ctx is already within, such as that of a request which an adapter has guarded: the
// innermost one of ctx. Without one it is locker.ErrUnguarded.
func Within(ctx context.Context, db Beginner, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return fmt.Errorf("sqllock: Within: %w; call it inside of locker.Run, or use Do", locker.ErrUnguarded)
	}
	c, err := forDB(db, []locker.Rule{{Key: lease.Key(), Mode: lease.Mode()}}, fn, opts)
	if err != nil {
		return err
	}
	err = c.transact(ctx, []*locker.Lease{lease})
	if lost := lease.Context().Err(); err != nil && lost != nil {
		if cause := context.Cause(lease.Context()); !errors.Is(err, cause) {
			return errors.Join(err, cause)
		}
	}
	return err
}

// DoWith is Do for a library that is not database/sql: give it three lines around the library's transaction, and fn gets
// that. The lease, with its fence, is in fn's context.
func DoWith[T Transaction](ctx context.Context, l locker.Locker, db Database[T], rule locker.Rule, fn func(ctx context.Context, tx T) error, opts ...Option) error {
	if db.Begin == nil || fn == nil {
		return errors.New("sqllock: DoWith: the Database's Begin or the function is nil")
	}
	rules := []locker.Rule{rule}
	c, err := newCall(rules, append([]Option{WithDialect(db.Dialect)}, opts...))
	if err != nil {
		return err
	}
	c.begin = func(ctx context.Context, opts *sql.TxOptions, _ time.Duration) (Transaction, error) {
		tx, err := db.Begin(ctx, opts)
		if err != nil {
			return nil, err
		}
		return tx, nil
	}
	c.fn = func(ctx context.Context, a *attempt) error { return fn(ctx, a.tx.(T)) }
	return c.run(ctx, l, rules)
}

// call is one call of Do, or of its siblings.
type call struct {
	config
	stmts    statements
	locker   locker.Locker // nil: unknown
	begin    begin
	fn       func(ctx context.Context, a *attempt) error
	verifies bool // it reads only: the fence is verified and not claimed
}

// newCall checks rules and options.
func newCall(rules []locker.Rule, opts []Option) (*call, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if !cfg.dialect.known() {
		return nil, fmt.Errorf("%w: sqllock must know what the database speaks; say so with WithDialect", locker.ErrUnsupported)
	}
	c := &call{config: cfg, stmts: cfg.dialect.statements(cfg.prefix)}
	if c.verifies, err = cfg.readOnly(rules); err != nil {
		return nil, err
	}
	if c.verifies && c.tx == nil {
		c.tx = &sql.TxOptions{ReadOnly: true}
		if c.dialect != SQLite { // whose transactions have no other isolation
			c.tx.Isolation = sql.LevelRepeatableRead
		}
	}
	for _, r := range rules {
		if err := checkKey(r.Key); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// forDB makes the call for a database of database/sql.
func forDB(db Beginner, rules []locker.Rule, fn func(context.Context, *Tx) error, opts []Option) (*call, error) {
	if fn == nil {
		return nil, errors.New("sqllock: the function is nil")
	}
	c, err := withDB(db, rules, opts)
	if err != nil {
		return nil, err
	}
	c.fn = func(ctx context.Context, a *attempt) error {
		s := a.tx.(*standard)
		tx := &Tx{attempt: a, tx: s.Tx}
		a.spoilt = func() error { return tx.spoilt() }
		return fn(ctx, tx)
	}
	return c, nil
}

// withDB makes a call that has nothing to run yet.
func withDB(db Beginner, rules []locker.Rule, opts []Option) (*call, error) {
	if isNil(db) {
		return nil, errors.New("sqllock: the database is nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if cfg.dialect == 0 {
		if cfg.dialect, err = detect(db); err != nil {
			return nil, err
		}
	}
	c, err := newCall(rules, append(slices.Clip(opts), WithDialect(cfg.dialect)))
	if err != nil {
		return nil, err
	}
	c.begin = open(db, c.stmts)
	return c, nil
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// checkKey refuses keys that a database's text cannot hold.
func checkKey(key string) error {
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: sqllock writes the key into a column of text; give UTF-8 without NUL", locker.ErrInvalidKey)
	}
	return nil
}

// run holds the locks around the transaction.
func (c *call) run(ctx context.Context, l locker.Locker, rules []locker.Rule) error {
	if isNil(l) {
		return errors.New("sqllock: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	c.locker = l
	committed := false
	transact := func(ctx context.Context) error {
		err := c.transact(ctx, leasesOf(ctx, rules))
		committed = err == nil
		return err
	}
	var err error
	if len(rules) == 1 {
		err = locker.Run(ctx, l, rules[0], transact)
	} else {
		err = locker.RunAll(ctx, l, rules, transact)
	}
	if committed { // the transaction is there, whatever became of the locks afterwards
		return nil
	}
	return err
}

// leasesOf returns the leases of rules, which are the innermost of ctx, in the order of their keys.
func leasesOf(ctx context.Context, rules []locker.Rule) []*locker.Lease {
	keys := make(map[string]bool)
	for _, r := range rules {
		keys[r.Key] = true
	}
	leases := slices.Clone(locker.LeasesFromContext(ctx)[:len(keys)])
	slices.SortFunc(leases, func(a, b *locker.Lease) int { return strings.Compare(a.Key(), b.Key()) })
	return leases
}

// transact tries the transaction until it is committed, cannot be, or must not be any more.
func (c *call) transact(ctx context.Context, leases []*locker.Lease) (err error) {
	for _, l := range leases {
		if l.Fence() == 0 || l.Fence() > math.MaxInt64 {
			return &locker.Error{Op: locker.OpTransact, Key: l.Key(), Err: fmt.Errorf(
				"%w: its leases have no fence that a database could check; use a Locker whose server mints one, such as NewSingle", locker.ErrUnsupported)}
		}
	}
	tries, returned := 0, false
	ctx, end := leases[0].Observe(ctx, locker.OpTransact)
	defer func() {
		if !returned { // fn panicked, or called runtime.Goexit
			err = errPanicked
		}
		end(c.outcome(err, tries))
	}()
	for pause := range betweenTries {
		tries++
		again := false
		again, err = c.try(ctx, leases)
		if !again || tries > c.retries || !sleep(ctx, pause, left(leases)-c.marginOf(leases)) {
			break
		}
	}
	returned = true
	return err
}

// betweenTries are the pauses between attempts: those who came too close to each other must not do so again.
var betweenTries = locker.Jitter(locker.Exponential(5*time.Millisecond, 200*time.Millisecond))

// sleep lets pause pass. It is false when that takes longer than most, or ctx ends.
func sleep(ctx context.Context, pause, most time.Duration) bool {
	if pause > most {
		return false
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// left is what is left of the lease that ends first.
func left(leases []*locker.Lease) time.Duration {
	least := time.Duration(math.MaxInt64)
	for _, l := range leases {
		least = min(least, time.Until(l.Expires()))
	}
	return least
}

func (c *call) marginOf(leases []*locker.Lease) time.Duration {
	if c.margin > 0 {
		return c.margin
	}
	return min(100*time.Millisecond, left(leases)/4)
}

var errPanicked = errors.New("sqllock: the function did not return")

// outcome is what the Observer is told.
func (c *call) outcome(err error, tries int) locker.Outcome {
	o := locker.Outcome{Result: locker.ResultCommitted, Err: err, Calls: tries}
	switch {
	case err == nil:
	case errors.Is(err, ErrStaleFence):
		o.Result = locker.ResultStaleFence
	case errors.Is(err, ErrFenceRegressed):
		o.Result = locker.ResultFenceRegressed
	case errors.Is(err, ErrCommitUnknown):
		o.Result = locker.ResultCommitUnknown
	default:
		o.Result = locker.ResultRolledBack
		if code := c.dialect.code(err); code != "" {
			o.Err = coded{err, code}
		}
	}
	return o
}

// coded gives a database's error the type by which OpenTelemetry's conventions for databases name it.
type coded struct {
	error
	code string
}

func (c coded) Unwrap() error     { return c.error }
func (c coded) ErrorType() string { return c.code }
