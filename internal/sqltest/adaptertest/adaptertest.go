// Package adaptertest has the tests that every adapter of sqllock must pass: pgxlock, gormlock and
// sqlxlock. An adapter's own tests cover only what is special about its library.
package adaptertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// An Adapter is an adapter of sqllock, on a database with the tables of sqllock and with an
// account whose balance is 100. T is the type of a transaction in the adapter's library.
type Adapter[T any] struct {
	// New returns the adapter's Handle for the database.
	New func(l locker.Locker, opts ...sqllock.Option) (*sqllock.Handle[T], error)
	// InTx begins a transaction without the adapter. In this transaction, InTx claims with h,
	// deposits, verifies the claim twice, and commits.
	InTx func(ctx context.Context, h *sqllock.Handle[T], amount int) error
	// Deposit reads the account's balance, and then writes the sum of this balance and amount.
	Deposit func(ctx context.Context, tx T, amount int) error
	// Exec runs a statement.
	Exec func(ctx context.Context, tx T, text string) error
	// Balance returns the account's balance.
	Balance func(t *testing.T) int
}

// Account is the Rule for the account's key.
var Account = locker.Rule{Key: "account:1", TTL: 10 * time.Second}

// Run runs all tests. The function open makes a database for each test.
func Run[T any](t *testing.T, open func(t *testing.T) Adapter[T]) {
	t.Helper()
	for name, test := range map[string]func(*bank[T]){
		"each call claims and commits":                         (*bank[T]).claimsAndCommits,
		"an overtaken holder commits nothing":                  (*bank[T]).losesKey,
		"an error and a panic leave nothing":                   (*bank[T]).failsCleanly,
		"a transaction that ends by its text is noticed":       (*bank[T]).endsByText,
		"an operation happens once":                            (*bank[T]).doneOnce,
		"a transaction that somebody else began is claimed in": (*bank[T]).inTx,
		"no COMMIT is sent after the end of ctx was seen":      (*bank[T]).seesTheEnd,
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			b := &bank[T]{Adapter: open(t), t: t, store: store, l: lockertest.NewLocker(t, store)}
			b.Handle = b.handle(b.l)
			test(b)
		})
	}
}

// bank is the fixture of a test.
type bank[T any] struct {
	Adapter[T]
	*sqllock.Handle[T]
	t     *testing.T
	store *lockertest.Memory
	l     *locker.Engine
}

// handle returns the adapter's Handle for the locks of l.
func (b *bank[T]) handle(l locker.Locker) *sqllock.Handle[T] {
	b.t.Helper()
	h, err := b.New(l)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

func (b *bank[T]) deposit(amount int) func(ctx context.Context, tx T) error {
	return func(ctx context.Context, tx T) error { return b.Deposit(ctx, tx, amount) }
}

func (b *bank[T]) wantBalance(want int) {
	b.t.Helper()
	if got := b.Balance(b.t); got != want {
		b.t.Errorf("the account has %d, want %d", got, want)
	}
}

func (b *bank[T]) claimsAndCommits() {
	rules := []locker.Rule{Account, {Key: "account:2"}}
	if err := errors.Join(
		b.Do(b.t.Context(), Account, b.deposit(1)),
		b.DoAll(b.t.Context(), rules, b.deposit(10)),
		locker.RunAll(b.t.Context(), b.l, rules, func(ctx context.Context) error {
			return errors.Join(b.Within(ctx, b.deposit(100)), b.WithinAll(ctx, []string{Account.Key}, b.deposit(1000)))
		}),
	); err != nil {
		b.t.Error(err)
	}
	b.wantBalance(100 + 1111)
}

// losesKey lets the outer function lose its key to a newer holder, which commits first.
func (b *bank[T]) losesKey() {
	newer, err := locktest.NewEngine(b.store.NewProcess())
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = newer.Close(context.Background()) }()
	tenant := locker.Rule{Key: "tenant"}
	err = locker.Run(b.t.Context(), b.l, tenant, func(ctx context.Context) error {
		return locker.Run(ctx, b.l, Account, func(ctx context.Context) error {
			b.store.Free(tenant.Key)
			if err := b.handle(newer).Do(context.Background(), tenant, b.deposit(50)); err != nil {
				return err
			}
			return b.Within(ctx, b.deposit(10))
		})
	})
	if !errors.Is(err, sqllock.ErrStaleFence) {
		b.t.Errorf("err = %v, want ErrStaleFence", err)
	}
	b.wantBalance(150)
}

func (b *bank[T]) failsCleanly() {
	errOnPurpose := errors.New("on purpose")
	fails := func(ctx context.Context, tx T) error {
		return errors.Join(b.Deposit(ctx, tx, 10), errOnPurpose)
	}
	if err := b.Do(b.t.Context(), Account, fails); !errors.Is(err, errOnPurpose) {
		b.t.Errorf("err = %v, want the function's", err)
	}
	func() {
		defer func() {
			if r := recover(); r != errOnPurpose {
				b.t.Errorf("the panic was %v", r)
			}
		}()
		_ = b.Do(b.t.Context(), Account, func(ctx context.Context, tx T) error {
			_ = b.Deposit(ctx, tx, 10)
			panic(errOnPurpose)
		})
	}()
	b.wantBalance(100)
	rule := Account
	rule.Wait = locker.NoWait // no wait, because the panic has released the lock
	if err := b.Do(b.t.Context(), rule, b.deposit(1)); err != nil {
		b.t.Errorf("after the panic: %v", err)
	}
	b.wantBalance(101)
}

func (b *bank[T]) endsByText() {
	err := b.Do(b.t.Context(), Account, func(ctx context.Context, tx T) error {
		return errors.Join(b.Deposit(ctx, tx, 10), b.Exec(ctx, tx, "ROLLBACK"))
	})
	if !errors.Is(err, sqllock.ErrEnded) {
		b.t.Errorf("err = %v, want ErrEnded", err)
	}
	b.wantBalance(100)
	if err := b.Do(b.t.Context(), Account, b.deposit(1)); err != nil {
		b.t.Errorf("afterwards: %v", err)
	}
}

func (b *bank[T]) doneOnce() {
	once := b.Operation("invoice:4711")
	if err := once.Do(b.t.Context(), Account, b.deposit(10)); err != nil {
		b.t.Error(err)
	}
	if err := once.Do(b.t.Context(), Account, b.deposit(10)); !errors.Is(err, locker.ErrDone) {
		b.t.Errorf("again: %v, want ErrDone", err)
	}
	b.wantBalance(110)
}

func (b *bank[T]) inTx() {
	once := b.Operation("invoice:4711")
	if err := locker.Run(b.t.Context(), b.l, Account, func(ctx context.Context) error {
		return b.Adapter.InTx(ctx, once, 10)
	}); err != nil {
		b.t.Error(err)
	}
	b.wantBalance(110)
	if err := once.Do(b.t.Context(), Account, b.deposit(1)); !errors.Is(err, locker.ErrDone) {
		b.t.Errorf("again: %v, want ErrDone", err)
	}
	if err := b.Adapter.InTx(b.t.Context(), b.Handle, 10); !errors.Is(err, locker.ErrUnguarded) {
		b.t.Errorf("without a lease: %v, want ErrUnguarded", err)
	}
}

// seesTheEnd lets the function see the end of its context before sqllock is told: package context
// tells the contexts that were made of it one after the other, and here they are many.
func (b *bank[T]) seesTheEnd() {
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	var free []context.CancelFunc
	err := b.Do(ctx, Account, func(ctx context.Context, tx T) error {
		if err := b.Deposit(ctx, tx, 10); err != nil {
			return err
		}
		for range 20_000 {
			_, cancel := context.WithCancel(ctx)
			free = append(free, cancel)
		}
		go cancel()
		<-ctx.Done()
		return nil
	})
	for _, f := range free {
		f()
	}
	if !errors.Is(err, context.Canceled) {
		b.t.Errorf("err = %v, want context.Canceled", err)
	}
	b.wantBalance(100)
}
