// Package storetest checks the rules that every idempotency.Store obeys. To test a Store of your
// own, give [Run] a function that makes the Store.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker/idempotency"
)

// Run checks a Store. setup returns an empty Store for each subtest. If the Store is an
// idempotency.Transactor, Run also checks the rules of its transactions.
func Run(t *testing.T, setup func(t *testing.T) idempotency.Store) {
	for name, law := range map[string]func(*testing.T, bench){
		"an unknown key has no Record":                   unknownKey,
		"a Record comes back as it was written":          comesBack,
		"a Record replaces only the one that it expects": expected,
		"an open Record differs from one that is not":    openOrNot,
		"the zero Record removes":                        removes,
		"a Swap that is executed twice changes nothing":  twice,
		"of many Swaps at once one wins":                 oneWins,
		"keys are separate":                              separateKeys,
		"an ended context ends a call":                   endedContext,
		"a Record expires":                               expiredRecord,
		"a transaction commits work and answer together": commitTogether,
		"a transaction that fails leaves no answer":      rollsBack,
		"a transaction sees the Record of a later run":   overtakenTransaction,
		"a panic rolls back, and goes on":                panickingWork,
	} {
		t.Run(name, func(t *testing.T) { law(t, bench{t, setup(t)}) })
	}
}

const lifetime = time.Minute

var none idempotency.Record

// begun returns the Record of a run that is in progress. The names of runs have any bytes.
func begun(run string) idempotency.Record {
	return idempotency.Record{Run: "\x00 \xff" + run, Open: true}
}

// done returns the Record of a run that has answered.
func done(run, answer string) idempotency.Record {
	return idempotency.Record{Run: "\x00 \xff" + run, Answer: []byte(answer)}
}

// bench makes calls of the tested Store that must not fail.
type bench struct {
	*testing.T
	idempotency.Store
}

// is reports whether a Store would take one Record for the other.
func is(a, b idempotency.Record) bool { return a.Run == b.Run && a.Open == b.Open }

// swap replaces old by next, and fails the test if key did not have old.
func (b bench) swap(key string, old, next idempotency.Record) {
	b.Helper()
	b.swapNot(key, old, next, next)
}

// swapNot calls Swap, and fails the test unless the key then has the Record want.
func (b bench) swapNot(key string, old, next, want idempotency.Record) {
	b.Helper()
	now, err := b.Swap(b.Context(), key, old, next, lifetime)
	if err != nil || !is(now, want) {
		b.Fatalf("Swap: %+v, %v; want %+v", now, err, want)
	}
}

// check fails the test unless Load returns the Record want for key.
func (b bench) check(key string, want idempotency.Record) {
	b.Helper()
	if got, err := b.Load(b.Context(), key); err != nil || !is(got, want) || !bytes.Equal(got.Answer, want.Answer) || (got.Answer == nil) != (want.Answer == nil) {
		b.Errorf("Load: %+v, %v; want %+v", got, err, want)
	}
}

func unknownKey(t *testing.T, b bench) { b.check("a", none) }

func comesBack(t *testing.T, b bench) {
	for i, rec := range []idempotency.Record{
		begun("1"), done("2", "x"), done("3", "\x00 not text \xff"), done("4", string(make([]byte, 5000))), {Run: "5"},
	} {
		key := fmt.Sprint(i)
		b.swap(key, none, rec)
		for range 2 {
			b.check(key, rec)
		}
	}
}

func expected(t *testing.T, b bench) {
	b.swap("a", none, begun("1"))
	b.swapNot("a", none, begun("2"), begun("1"))
	b.swapNot("a", begun("3"), begun("2"), begun("1"))
	b.swapNot("a", begun("3"), none, begun("1"))
	b.swap("a", begun("1"), begun("2"))
	b.swap("a", begun("2"), done("2", "first"))
	now, err := b.Swap(t.Context(), "a", begun("2"), done("2", "second"), lifetime)
	if want := done("2", "first"); err != nil || !is(now, want) {
		t.Errorf("Swap: %+v, %v; want %+v", now, err, want)
	}
	now, err = b.Swap(t.Context(), "a", none, begun("4"), lifetime)
	if want := done("2", "first"); err != nil || !reflect.DeepEqual(now, want) {
		t.Errorf("Swap: %+v, %v; want %+v with its answer", now, err, want)
	}
	b.check("a", done("2", "first"))
	b.swap("a", done("2", "first"), begun("5")) // an answer of an earlier run goes with it
	b.check("a", begun("5"))
	b.swap("a", begun("5"), done("5", "x"))
	b.swap("a", done("5", "x"), begun("5"))
	b.check("a", begun("5"))
	b.swapNot("b", begun("1"), done("1", "x"), none)
	b.check("b", none)
}

func openOrNot(t *testing.T, b bench) {
	b.swap("a", none, begun("1"))
	b.swapNot("a", done("1", "x"), none, begun("1"))
	b.swap("a", begun("1"), done("1", "x"))
	b.swapNot("a", begun("1"), none, done("1", "x"))
	b.check("a", done("1", "x"))
}

func removes(t *testing.T, b bench) {
	b.swap("a", none, none)
	b.swap("a", none, begun("1"))
	b.swap("a", begun("1"), none)
	b.check("a", none)
	b.swap("a", none, done("2", "x"))
	b.swap("a", done("2", "x"), none)
	b.check("a", none)
	b.swap("a", none, begun("3"))
	b.check("a", begun("3"))
}

func twice(t *testing.T, b bench) {
	for range 2 {
		b.swap("a", none, begun("1"))
	}
	b.check("a", begun("1"))
	for range 2 {
		b.swap("a", begun("1"), done("1", "x"))
	}
	b.check("a", done("1", "x"))
	for range 2 {
		b.swap("a", done("1", "x"), none)
	}
	b.check("a", none)
}

func oneWins(t *testing.T, b bench) {
	b.swap("a", none, begun("first"))
	var all sync.WaitGroup
	results := make([]idempotency.Record, 5)
	for i := range results {
		all.Go(func() {
			var err error
			if results[i], err = b.Swap(t.Context(), "a", begun("first"), begun(fmt.Sprint(i)), lifetime); err != nil {
				t.Errorf("Swap: %v", err)
			}
		})
	}
	all.Wait()
	for _, r := range results {
		if !is(r, results[0]) {
			t.Errorf("two Swaps have won: %+v", results)
		}
	}
	b.check("a", results[0])
}

func separateKeys(t *testing.T, b bench) {
	b.swap("a", none, begun("1"))
	b.check("A", none)
	b.check("a ", none)
	b.swap("b", none, begun("2"))
	b.check("a", begun("1"))
}

func endedContext(t *testing.T, b bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	_, load := b.Load(ctx, "a")
	_, swap := b.Swap(ctx, "a", none, begun("1"), lifetime)
	for name, err := range map[string]error{"Load": load, "Swap": swap} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v; want context.Canceled", name, err)
		}
	}
}

func expiredRecord(t *testing.T, b bench) {
	const short = 50 * time.Millisecond
	gone := func(key string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if rec, err := b.Load(t.Context(), key); err != nil {
				t.Fatal(err)
			} else if is(rec, none) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the Record %q of %v is there after 10s", key, short)
			}
		}
		b.swapNot(key, begun("1"), begun("2"), none)
		b.swap(key, none, begun("2"))
	}
	if _, err := b.Swap(t.Context(), "a", none, begun("1"), short); err != nil {
		t.Fatal(err)
	}
	gone("a")
	b.swap("b", none, begun("1"))
	if _, err := b.Swap(t.Context(), "b", begun("1"), done("1", "x"), short); err != nil {
		t.Fatal(err)
	}
	gone("b")
}

var errWork = errors.New("the work failed")

// transactor returns the Store as a Transactor. The laws that call it concern only a Transactor.
func (b bench) transactor() (idempotency.Transactor, bool) {
	tr, ok := b.Store.(idempotency.Transactor)
	return tr, ok
}

// swapIn replaces old by next in the transaction of ctx.
func (b bench) swapIn(ctx context.Context, old, next idempotency.Record) idempotency.Record {
	b.Helper()
	now, err := b.Swap(ctx, "a", old, next, lifetime)
	if err != nil {
		b.Errorf("Swap: %v", err)
	}
	return now
}

func commitTogether(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.swap("a", none, begun("1"))
	err := tr.Transact(t.Context(), func(ctx context.Context) error {
		if now := b.swapIn(ctx, begun("1"), done("1", "committed")); !is(now, done("1", "")) {
			t.Errorf("Swap: %+v", now)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Transact: %v", err)
	}
	b.check("a", done("1", "committed"))
}

func rollsBack(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.swap("a", none, begun("1"))
	err := tr.Transact(t.Context(), func(ctx context.Context) error {
		b.swapIn(ctx, begun("1"), done("1", "rolled back"))
		return errWork
	})
	if err != errWork {
		t.Errorf("Transact: %v; want the error of the work, unchanged", err)
	}
	b.check("a", begun("1"))
	b.swap("a", begun("1"), done("1", "saved by itself"))
	b.check("a", done("1", "saved by itself"))
}

func overtakenTransaction(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.swap("a", none, begun("1"))
	b.swap("a", begun("1"), begun("2"))
	err := tr.Transact(t.Context(), func(ctx context.Context) error {
		if now := b.swapIn(ctx, begun("1"), done("1", "late")); !is(now, begun("2")) {
			t.Errorf("Swap: %+v; want the Record of the later run", now)
		}
		return errWork
	})
	if err != errWork {
		t.Errorf("Transact: %v", err)
	}
	b.check("a", begun("2"))
}

func panickingWork(t *testing.T, b bench) {
	tr, ok := b.transactor()
	if !ok {
		return
	}
	b.swap("a", none, begun("1"))
	func() {
		defer func() {
			if r := recover(); r != "of the work" {
				t.Errorf("recovered %v; want the panic of the work", r)
			}
		}()
		_ = tr.Transact(t.Context(), func(ctx context.Context) error {
			b.swapIn(ctx, begun("1"), done("1", "rolled back"))
			panic("of the work")
		})
	}()
	b.check("a", begun("1"))
}
