package locker_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// fragile is a context that panics when its nth method is called on the goroutine of its caller.
type fragile struct {
	context.Context
	goroutine string
	left      *int
}

func newFragile(t *testing.T, n int) fragile { return fragile{t.Context(), goroutineName(), &n} }

// goroutineName identifies the goroutine that calls it.
func goroutineName() string {
	text := make([]byte, 64)
	name, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), "[")
	return name
}

func (f fragile) tick() {
	if goroutineName() == f.goroutine {
		if *f.left--; *f.left == 0 {
			panic("a method of the context")
		}
	}
}

func (f fragile) Done() <-chan struct{}       { f.tick(); return f.Context.Done() }
func (f fragile) Err() error                  { f.tick(); return f.Context.Err() }
func (f fragile) Value(key any) any           { f.tick(); return f.Context.Value(key) }
func (f fragile) Deadline() (time.Time, bool) { f.tick(); return f.Context.Deadline() }

// AfterFunc makes package context watch the context without a goroutine.
func (f fragile) AfterFunc(do func()) (stop func() bool) { return context.AfterFunc(f.Context, do) }

// A fragileStep is a step with a context that may panic, while other callers hold and want the key.
type fragileStep struct {
	held  string // who holds the key "a": "", "here" or "there"
	units bool   // the key is a semaphore of two units
	step  func(t *testing.T, ctx context.Context, l locker.Locker)
}

var fragileRule = locker.Rule{Key: "a", TTL: 2 * time.Second}

// acquireAndRelease acquires the lock of rule with ctx, and releases it with another context.
func acquireAndRelease(rule locker.Rule) func(t *testing.T, ctx context.Context, l locker.Locker) {
	return func(_ *testing.T, ctx context.Context, l locker.Locker) { releaseGranted(l.Acquire(ctx, rule)) }
}

func releaseGranted(lease *locker.Lease, err error) {
	if err == nil {
		_ = lease.Release(context.Background())
	}
}

// runAll runs a function that does nothing under locks of all keys.
func runAll(keys ...string) func(t *testing.T, ctx context.Context, l locker.Locker) {
	rules := []locker.Rule{}
	for _, key := range keys {
		rules = append(rules, locker.Rule{Key: key, TTL: fragileRule.TTL})
	}
	return func(_ *testing.T, ctx context.Context, l locker.Locker) {
		_ = locker.RunAll(ctx, l, rules, func(context.Context) error { return nil })
	}
}

// withLease calls step with a lease, and releases the lease with another context.
func withLease(step func(ctx context.Context, lease *locker.Lease) error) func(t *testing.T, ctx context.Context, l locker.Locker) {
	return func(t *testing.T, ctx context.Context, l locker.Locker) {
		lease := acquire(t, l, fragileRule)
		defer releaseGranted(lease, nil)
		_ = step(ctx, lease)
	}
}

func readRule() locker.Rule { r := fragileRule; r.Mode = locker.Shared; return r }

func unitRule() locker.Rule { r := fragileRule; r.Limit = 2; return r }

var fragileSteps = map[string]fragileStep{
	"acquire":                         {step: acquireAndRelease(fragileRule)},
	"acquire, held here":              {held: "here", step: acquireAndRelease(fragileRule)},
	"acquire, held there":             {held: "there", step: acquireAndRelease(fragileRule)},
	"acquire of a unit":               {units: true, step: acquireAndRelease(unitRule())},
	"acquire of a unit, held here":    {units: true, held: "here", step: acquireAndRelease(unitRule())},
	"acquire of a unit, held there":   {units: true, held: "there", step: acquireAndRelease(unitRule())},
	"acquire by a reader":             {step: acquireAndRelease(readRule())},
	"acquire by a reader, held here":  {held: "here", step: acquireAndRelease(readRule())},
	"acquire by a reader, held there": {held: "there", step: acquireAndRelease(readRule())},
	"Run": {step: func(_ *testing.T, ctx context.Context, l locker.Locker) {
		_ = locker.Run(ctx, l, fragileRule, func(context.Context) error { return nil })
	}},
	"Run, held there": {held: "there", step: func(_ *testing.T, ctx context.Context, l locker.Locker) {
		_ = locker.Run(ctx, l, fragileRule, func(context.Context) error { return nil })
	}},
	"RunAll":             {step: runAll("a", "b", "c")},
	"RunAll, held there": {held: "there", step: runAll("0", "a", "b")},
	"release":            {step: withLease(func(ctx context.Context, lease *locker.Lease) error { return lease.Release(ctx) })},
	"complete":           {step: withLease(func(ctx context.Context, lease *locker.Lease) error { return lease.Complete(ctx) })},
	"extend":             {step: withLease(func(ctx context.Context, lease *locker.Lease) error { return lease.Extend(ctx, time.Minute) })},
	"a nested acquire": {step: func(t *testing.T, ctx context.Context, l locker.Locker) {
		re := must(locker.NewReentrant(l))
		_ = locker.Run(t.Context(), re, fragileRule, func(held context.Context) error {
			releaseGranted(re.Acquire(fragileHolder{held, ctx}, fragileRule))
			return nil
		})
	}},
}

// A context panics in one of its methods, at each of the places where the library calls them. A web
// framework recovers such a panic, so the process lives on. Nothing may then be held, renewed or
// left, and other callers get the lock.
func TestAContextThatPanicsLeavesNothing(t *testing.T) {
	quietly(t)
	for name, c := range fragileSteps {
		t.Run(name, func(t *testing.T) {
			panics := 0
			for n := 1; panics == n-1; n++ {
				virtual(t, func(t *testing.T, store *lockertest.Memory) {
					if c.check(t, store, n) {
						panics++
					}
				})
				if n > 200 {
					t.Fatal("the step has no end")
				}
			}
			if panics == 0 {
				t.Error("positive control: nothing panicked")
			}
		})
	}
}

// check makes the step with a context that panics at its nth call, and reports whether it has
// panicked.
func (c fragileStep) check(t *testing.T, store *lockertest.Memory, n int) (panicked bool) {
	want := fragileRule
	if c.units {
		want = unitRule()
	}
	here, there := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store.NewProcess())
	if c.held != "" {
		holder := map[string]*locker.Engine{"here": here, "there": there}[c.held]
		leases := []*locker.Lease{acquire(t, holder, want)}
		if c.units {
			leases = append(leases, acquire(t, holder, want))
		}
		time.AfterFunc(5*time.Second, func() {
			for _, lease := range leases {
				releaseGranted(lease, nil)
			}
		})
	}
	later := make(chan struct{}) // closed when a caller that waits behind the step was served
	time.AfterFunc(time.Second, func() {
		defer close(later)
		releaseGranted(here.Acquire(context.Background(), want))
	})
	func() {
		defer func() { panicked = recover() != nil }()
		c.step(t, newFragile(t, n), here)
	}()
	select {
	case <-later:
	case <-time.After(20 * time.Second):
		t.Errorf("call %d: a later caller does not get the lock", n)
	}
	<-time.After(time.Minute)
	for _, k := range []string{"0", "a", "b", "c"} {
		lease, err := there.Acquire(t.Context(), locker.Rule{Key: k, Wait: locker.NoWait, Limit: want.Limit})
		if err != nil {
			t.Errorf("call %d: %v", n, err)
		}
		releaseGranted(lease, err)
	}
	synctest.Wait()
	nothingLeft(t, store)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := here.Close(ctx); err != nil || time.Since(began) > time.Second {
		t.Errorf("call %d: Close took %v: %v", n, time.Since(began), err)
	}
	return panicked
}

// fragileHolder is a context of a holder that panics like another context.
type fragileHolder struct {
	context.Context
	fragile context.Context
}

func (w fragileHolder) Done() <-chan struct{} { w.fragile.Done(); return w.Context.Done() }
func (w fragileHolder) Err() error            { _ = w.fragile.Err(); return w.Context.Err() }
func (w fragileHolder) Value(key any) any     { w.fragile.Value(key); return w.Context.Value(key) }

func (w fragileHolder) AfterFunc(do func()) (stop func() bool) {
	return context.AfterFunc(w.Context, do)
}

// The functions that make metadata and pauses panic. Nothing is then held or left.
func TestAFunctionOfTheCallerThatPanicsLeavesNothing(t *testing.T) {
	for name, opt := range map[string]locker.Option{
		"metadata":        locker.WithMetadata(func(context.Context) string { panic("metadata") }),
		"the first pause": locker.WithBackoff(func(func(time.Duration) bool) { panic("backoff") }),
		"a pause after other pauses": locker.WithBackoff(func(yield func(time.Duration) bool) {
			_ = yield(time.Second)
			_ = yield(2 * time.Second)
			panic("backoff")
		}),
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l, other := lockertest.NewLocker(t, store, opt, locker.WithoutQueue()), lockertest.NewLocker(t, store.NewProcess())
				lease := acquire(t, other, locker.Rule{Key: "a"})
				panicked := false
				func() {
					defer func() { panicked = recover() != nil }()
					_, _ = l.Acquire(t.Context(), locker.Rule{Key: "a"})
				}()
				if !panicked {
					t.Error("positive control: nothing panicked")
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				<-time.After(time.Minute)
				nothingLeft(t, store)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A Locker that is nil, as after an error of New that nobody has checked, and a function that is nil
// are refused with an error that says what to give.
func TestALockerOrAFunctionThatIsNilIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, rule := lockertest.NewLocker(t, store), locker.Rule{Key: "a"}
		nop := func(context.Context) error { return nil }
		errs := []error{
			locker.Run(t.Context(), l, rule, nil), locker.RunAll(t.Context(), l, []locker.Rule{rule}, nil), locker.RunAll(t.Context(), l, nil, nil),
		}
		for _, none := range []locker.Locker{nil, (*locker.Engine)(nil)} {
			_, err := locker.NewReentrant(none)
			errs = append(errs, err, locker.Check(none, rule), locker.Drain(t.Context(), none),
				locker.Run(t.Context(), none, rule, nop), locker.RunAll(t.Context(), none, []locker.Rule{rule}, nop))
		}
		for i, err := range errs {
			if err == nil || !strings.Contains(err.Error(), " is nil; ") {
				t.Errorf("call %d: %v", i, err)
			}
		}
		nothingLeft(t, store)
	})
}

// A caller whose context holds the key is refused at once, by every Locker that is not reentrant.
func TestNoLockerWaitsForItsOwnCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		plain := lockertest.NewLocker(t, store)
		for _, l := range []locker.Locker{plain, must(locker.NewStriped(plain, 1))} {
			for _, modes := range [][2]locker.Mode{{locker.Exclusive, locker.Exclusive}, {locker.Exclusive, locker.Shared}, {locker.Shared, locker.Exclusive}} {
				err := locker.Run(t.Context(), l, locker.Rule{Key: "a", Mode: modes[0]}, func(ctx context.Context) error {
					_, err := l.Acquire(ctx, locker.Rule{Key: "a", Mode: modes[1]})
					return err
				})
				wantErr(t, err, "a", locker.ErrSelfDeadlock)
				wantErr(t, err, "a", locker.ErrUnsupported)
			}
			if err := locker.Run(t.Context(), l, locker.Rule{Key: "a", Mode: locker.Shared}, func(ctx context.Context) error {
				return locker.Run(ctx, l, locker.Rule{Key: "a", Mode: locker.Shared}, func(context.Context) error { return nil })
			}); err != nil {
				t.Errorf("a reader that reads again: %v", err)
			}
		}
	})
}

// A lease whose whole time is kept free for clocks that differ could never be used. It is refused
// before anything is sent.
func TestALeaseThatCouldNeverBeUsedIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		for _, rule := range []locker.Rule{{Key: "a", TTL: time.Millisecond}, {Key: "a", TTL: 2 * time.Millisecond}, {Key: "a", EndAfter: time.Millisecond}} {
			_, err := l.Acquire(t.Context(), rule)
			wantErr(t, err, "a", locker.ErrInvalidRule)
			if err := locker.Check(l, rule); err == nil {
				t.Errorf("Check accepts %+v", rule)
			}
		}
		if _, err := locktest.NewEngine(store, locker.WithTTL(2*time.Millisecond)); err == nil {
			t.Error("WithTTL accepts 2 ms")
		}
		release(t, acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Millisecond}))
	})
}

// A nested RunAll that wants further units of a semaphore does not wait for them. Its error says
// that the caller holds units, and not that the keys are in the wrong order.
func TestARunAllThatWantsFurtherUnitsSaysWhyItDoesNotWait(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, rules := lockertest.NewLocker(t, store), []locker.Rule{{Key: "a", Limit: 2}}
		acquire(t, l, rules[0]) // of another caller
		err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			return locker.RunAll(ctx, l, rules, func(context.Context) error { return nil })
		})
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "holds units of this key") || strings.Contains(err.Error(), "sorts behind") {
			t.Error(err)
		}
	})
}

// must returns the Locker of a constructor that cannot fail.
func must(l locker.Locker, err error) locker.Locker {
	if err != nil {
		panic(err)
	}
	return l
}
