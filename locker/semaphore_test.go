package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of semaphores on real servers.

func TestNewSemaphoreRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{})
	defer func() { _ = c.Close() }()
	for _, n := range []int{-1, 0, 1 << 31} {
		if _, err := locker.NewSemaphore(c, n); err == nil || !strings.Contains(err.Error(), "give how many leases") {
			t.Errorf("n = %d: %v", n, err)
		}
	}
	if _, err := locker.NewSemaphore(nil, 1); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Error(err)
	}
}

func TestRulesOfSemaphores(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{})
	defer func() { _ = c.Close() }()
	sem, single := newSemaphore(t, c, 3), newSingle(t, c)
	quorum, err := locker.NewRedlock([]locker.Client{c, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"})})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		l      locker.Locker
		rule   locker.Rule
		target error
		says   string
	}{
		{sem, locker.Rule{}, nil, ""},
		{sem, locker.Rule{Weight: 3}, nil, ""},
		{sem, locker.Rule{Limit: 100, Weight: 100}, nil, ""},
		{single, locker.Rule{}, nil, ""},
		{sem, locker.Rule{Weight: 4}, locker.ErrInvalidRule, "more than the Limit of 3"},
		{sem, locker.Rule{Weight: -1}, locker.ErrInvalidRule, "Weight is -1"},
		{sem, locker.Rule{Limit: -1}, locker.ErrInvalidRule, "Limit is -1"},
		{sem, locker.Rule{Limit: 1 << 31}, locker.ErrInvalidRule, "Limit is 2147483648"},
		{sem, locker.Rule{Mode: locker.Shared}, locker.ErrInvalidRule, "leave Mode out"},
		{single, locker.Rule{Limit: 2}, locker.ErrUnsupported, "NewSemaphore"},
		{single, locker.Rule{Weight: 1}, locker.ErrUnsupported, "NewSemaphore"},
		{quorum, locker.Rule{Limit: 2}, locker.ErrUnsupported, "two of the three votes"},
	} {
		err := locker.Check(x.l, x.rule)
		if !errors.Is(err, x.target) && err != nil || (err == nil) != (x.target == nil) || x.target != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v, want %v with %q", x.rule, err, x.target, x.says)
		}
	}
}

// unitsInUse counts the units in use. It also has the largest number of units that were in use at
// the same time.
type unitsInUse struct{ used, most atomic.Int64 }

func (c *unitsInUse) enter(units int64) {
	now := c.used.Add(units)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
}

func (c *unitsInUse) leave(units int64) { c.used.Add(-units) }

func TestSemaphoreAdmitsAtMostNOfAllProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const n = 5
	var inside unitsInUse
	var wg sync.WaitGroup
	var fences sync.Map
	for p := range 3 {
		l := newSemaphore(t, server.Client(t), n)
		for g := range 20 {
			wg.Go(func() {
				weight := 1
				if g == 0 && p == 0 {
					weight = n
				}
				for range 10 {
					err := locker.Run(t.Context(), l, locker.Rule{Key: "crowd", Weight: weight}, func(ctx context.Context) error {
						lease, _ := locker.FromContext(ctx)
						if _, twice := fences.LoadOrStore(lease.Fence(), true); twice {
							t.Errorf("fence %d came twice", lease.Fence())
						}
						inside.enter(int64(weight))
						defer inside.leave(int64(weight))
						time.Sleep(time.Millisecond) //nolint:forbidigo // the work
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if most := inside.most.Load(); most != n {
		t.Errorf("%d units were in use at once, want %d: no more, and no fewer when 60 callers wait", most, n)
	}
	nothingLeftBut(t, server.Client(t), "latchkit:x:") // a waiter whose message came before its answer may leave a tombstone
}

// Callers of one process that have equal rules do not share permits. They pass their permits on to
// each other, so most leases need no call.
func TestPermitsArePassedOnInsideAProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newSemaphore(t, server.Client(t), 2)
	before := scriptsRun(t, server.Client(t))
	var inside unitsInUse
	var wg sync.WaitGroup
	const callers, each = 20, 50
	for range callers {
		wg.Go(func() {
			for range each {
				err := locker.Run(t.Context(), l, locker.Rule{Key: "pass"}, func(context.Context) error {
					inside.enter(1)
					defer inside.leave(1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ran := scriptsRun(t, server.Client(t)) - before
	if inside.most.Load() > 2 || ran > callers*each/2 {
		t.Errorf("%d inside at once, %d scripts for %d leases", inside.most.Load(), ran, callers*each)
	}
	eventually(t, "the last place in the queue is given up", func() bool { return inLine(t, server.Client(t), "pass") == 0 })
	nothingLeftBut(t, server.Client(t))
}

func TestHeavyWaiterIsNotOvertaken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newSemaphore(t, server.Client(t), 4), newSemaphore(t, server.Client(t), 4)
	client := server.Client(t)
	one, two := acquire(t, a, locker.Rule{Key: "k"}), acquire(t, b, locker.Rule{Key: "k", Weight: 2})
	heavy := queues(t, a, locker.Rule{Key: "k", Weight: 4}, client)
	light := queues(t, b, locker.Rule{Key: "k"}, client)
	if _, err := b.Acquire(t.Context(), locker.Rule{Key: "k", Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
		t.Fatalf("%v, want ErrBusy: one unit is free, but others wait", err)
	}
	release(t, one)
	heavy.WaitsStill()
	light.WaitsStill()
	release(t, two)
	lease := heavy.Granted(0)
	if lease.Units() != 4 {
		t.Errorf("%d units, want 4", lease.Units())
	}
	light.WaitsStill()
	release(t, lease)
	release(t, light.Granted(0))
	nothingLeftBut(t, client)
}

func TestPermitsAndOtherLockers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	sem, single, rw := newSemaphore(t, server.Client(t), 2, locker.WithFair()), newSingle(t, server.Client(t)), newReadWrite(t, server.Client(t))
	key := locker.Rule{Key: "mixed"}

	one, two := acquire(t, sem, key), acquire(t, sem, key)
	if client.SetNX(t.Context(), key.Key, "foreign", time.Minute).Val() {
		t.Fatal("another library took a key with permits")
	}
	if err := single.Revoke(t.Context(), key.Key, one.Fence(), "drill"); !errors.Is(err, locker.ErrUnsupported) || !strings.Contains(err.Error(), "NewSemaphore") {
		t.Errorf("revoke by a Locker of locks: %v", err)
	}
	writer := queues(t, single, key, client)
	third := queues(t, sem, key, client)
	release(t, one)
	writer.WaitsStill() // the writer waits, because it needs the key alone
	third.WaitsStill()  // the third caller waits, because no caller overtakes the writer
	release(t, two)
	lease := writer.Granted(0)
	third.WaitsStill()
	reader := queues(t, rw, locker.Rule{Key: key.Key, Mode: locker.Shared}, client)
	fourth := queues(t, newSemaphore(t, server.Client(t), 2), key, client)
	release(t, lease)
	// The writer's Locker has no permits, so its release hands the key to only one owner. So the
	// third caller has the key alone.
	lease = third.Granted(0)
	reader.WaitsStill()
	fourth.WaitsStill()
	release(t, lease)
	lease = reader.Granted(0)
	fourth.WaitsStill()
	release(t, lease)
	release(t, fourth.Granted(0))
	nothingLeftBut(t, client)
}

func TestSemaphoreLeasesThatAreNested(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sem := newSemaphore(t, server.Client(t), 3)
	rule := locker.Rule{Key: "nested", Weight: 2}
	err := locker.Run(t.Context(), sem, rule, func(ctx context.Context) error {
		more, err := sem.Acquire(ctx, locker.Rule{Key: "nested"})
		if err != nil {
			return fmt.Errorf("one more unit: %w", err)
		}
		defer func() { _ = more.Release(ctx) }()
		_, err = sem.Acquire(ctx, locker.Rule{Key: "nested", Wait: locker.NoWait})
		if !errors.Is(err, locker.ErrBusy) {
			return fmt.Errorf("a fourth unit: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	again := locktest.Reentrant(t, sem)
	err = locker.Run(t.Context(), again, rule, func(ctx context.Context) error {
		inner, err := again.Acquire(ctx, locker.Rule{Key: "nested", Wait: locker.NoWait})
		if err != nil {
			return err
		}
		_ = inner.Release(ctx)
		if _, err := again.Acquire(ctx, locker.Rule{Key: "nested", Weight: 3}); !errors.Is(err, locker.ErrUnsupported) {
			return fmt.Errorf("3 units inside 2: %w", err)
		}
		info, err := sem.Inspect(ctx, "nested")
		if err != nil || info.Used != 2 || info.Limit != 3 || len(info.Permits) != 1 {
			return fmt.Errorf("%+v %w", info, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestANestedAcquireOfUnitsThatCanNeverFitIsASelfDeadlock(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		for _, c := range []struct{ outer, inner locker.Rule }{
			{locker.Rule{Limit: 2, Weight: 2}, locker.Rule{Limit: 2}},
			{locker.Rule{Limit: 1}, locker.Rule{Limit: 3}},
			{locker.Rule{Limit: 3}, locker.Rule{Limit: 1}},
			{locker.Rule{Limit: 3, Weight: 2}, locker.Rule{Limit: 3, Weight: 2}},
		} {
			c.outer.Key, c.inner.Key = "a", "a"
			outer := acquire(t, l, c.outer)
			c.inner.Wait = time.Second
			_, err := l.Acquire(outer.Context(), c.inner)
			wantErr(t, err, "a", locker.ErrSelfDeadlock)
			wantErr(t, locker.RunAll(outer.Context(), l, []locker.Rule{c.inner}, mustNotRun(t)), "a", locker.ErrSelfDeadlock)
			_, err = l.Acquire(t.Context(), c.inner)
			wantErr(t, err, "a", locker.ErrBusy) // another caller waits
			release(t, outer)
			synctest.Wait() // the waiter that gave up has left the queue, behind which a newcomer would be busy
		}
		first := acquire(t, l, locker.Rule{Key: "a", Limit: 3})
		second, err := l.Acquire(first.Context(), locker.Rule{Key: "a", Limit: 3, Wait: locker.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Acquire(second.Context(), locker.Rule{Key: "a", Limit: 3, Weight: 2, Wait: time.Second})
		wantErr(t, err, "a", locker.ErrSelfDeadlock)
		third, err := l.Acquire(second.Context(), locker.Rule{Key: "a", Limit: 3, Wait: locker.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		release(t, first)
		release(t, second)
		release(t, third)
	})
}

func TestRunAllTakesAKeyOnceWithTheLargestWeight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sem := newSemaphore(t, server.Client(t), 5)
	rules := []locker.Rule{{Key: "b"}, {Key: "a", Weight: 3}, {Key: "b", Weight: 2, Limit: 4}}
	err := locker.RunAll(t.Context(), sem, rules, func(ctx context.Context) error {
		for key, want := range map[string]store.Permit{"a": {Weight: 3, Limit: 5}, "b": {Weight: 2, Limit: 4}} {
			info, err := sem.Inspect(ctx, key)
			if err != nil || len(info.Permits) != 1 || info.Permits[0].Weight != want.Weight || info.Permits[0].Limit != want.Limit {
				return fmt.Errorf("%s: %+v %w", key, info, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	nothingLeftBut(t, server.Client(t))
}

func TestPermitsAreRevokedOneByOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sem := newSemaphore(t, server.Client(t), 2)
	rule := locker.Rule{Key: "k", TTL: 3 * time.Second}
	one, two := acquire(t, sem, rule), acquire(t, sem, rule)
	next := queues(t, newSemaphore(t, server.Client(t), 2), rule, server.Client(t))
	if err := sem.Revoke(t.Context(), "k", one.Fence(), "drill"); err != nil {
		t.Fatal(err)
	}
	lost(t, one, locker.ErrRevoked)
	lease := next.Granted(0)
	release(t, two)
	release(t, lease)
}

func TestAtLeastIsARateLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sem := newSemaphore(t, server.Client(t), 2)
	rule := locker.Rule{Key: "rate", KeepFor: 500 * time.Millisecond}
	began := time.Now()
	for range 4 {
		release(t, acquire(t, sem, rule))
	}
	if took := time.Since(began); took < 480*time.Millisecond {
		t.Errorf("4 starts within %v, and 2 are allowed in %v", took, rule.KeepFor)
	}
}

// Callers of the process that holds the units come later than a heavy waiter. With WithFair they
// are served after the heavy waiter, also inside their process.
func TestWithFairLighterWaitersDoNotOvertakeAHeavyOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	a := newSemaphore(t, server.Client(t), 3, locker.WithFair())
	b := newSemaphore(t, server.Client(t), 3, locker.WithFair())
	for range 20 {
		held := acquire(t, a, locker.Rule{Key: "k", Weight: 3})
		heavy := queues(t, a, locker.Rule{Key: "k", Weight: 3}, client)
		first := queues(t, a, locker.Rule{Key: "k"}, client)
		second := queues(t, b, locker.Rule{Key: "k"}, client)
		release(t, held)
		lease := heavy.Granted(0)
		if first.Over() || second.Over() {
			t.Fatal("a lighter waiter has overtaken the heavy one")
		}
		release(t, lease)
		release(t, first.Granted(0))
		release(t, second.Granted(0))
	}
}

// A waiter whose message of a grant is lost asks, and hears that another holder has completed the work.
func TestAWaiterThatHearsThatTheWorkIsDoneHoldsNoPermit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	if err := c.Do(t.Context(), "acl", "setuser", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish").Err(); err != nil {
		t.Fatal(err)
	}
	mute := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "secret" })
	holders := locktest.Semaphore(t, mute, 2, locker.WithTTL(5*time.Minute))
	rule := locker.Rule{Key: "units", OnceFor: time.Minute}
	one, two := acquire(t, holders, rule), acquire(t, holders, rule)
	waits, ended := locktest.Semaphore(t, c, 2, locker.WithTTL(5*time.Minute), locker.WithoutRenewal()), make(chan error, 1)
	go func() {
		_, err := waits.Acquire(t.Context(), rule)
		ended <- err
	}()
	eventually(t, "it waits", func() bool { return c.ZCard(t.Context(), redisstore.QueueKey("units")).Val() == 1 })
	release(t, one)
	if err := two.Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-ended, "units", locker.ErrDone)
	eventually(t, "no permit is held", func() bool { return c.Exists(t.Context(), "units").Val() == 0 })
}
