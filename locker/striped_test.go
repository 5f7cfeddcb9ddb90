package locker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func striped(t *testing.T, l locker.Locker, n int) locker.Locker {
	t.Helper()
	s, err := locker.NewStriped(l, n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The stripe of a key must never change, because processes of another version and programs in
// other languages compute it too.
func TestTheStripeOfAKeyIsFixed(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		s := striped(t, e, 64)
		for key, stripe := range map[string]string{"order:1": "stripe:18/64", "order:42": "stripe:49/64", "a": "stripe:12/64"} {
			lease := acquire(t, s, locker.Rule{Key: key})
			if info, err := e.Inspect(t.Context(), stripe); err != nil || !info.Held || info.Fence != lease.Fence() || lease.Fence() == 0 {
				t.Errorf("%s has another stripe than %s: %+v, %v", key, stripe, info, err)
			}
			if lease.Key() != key {
				t.Errorf("the lease of %s is one of %s", key, lease.Key())
			}
			if info, err := lease.Inspect(t.Context()); err != nil || !info.Held {
				t.Errorf("Inspect of the lease: %+v, %v", info, err)
			}
			release(t, lease)
		}
		if store.Len() != 0 {
			t.Error("a stripe is still held")
		}
	})
}

// Under a stripe, its own key is held, and the key that the caller gave is not.
func TestAStripeIsNotTheKeyOfItsCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		outer := acquire(t, striped(t, e, 64), locker.Rule{Key: "a"})
		release(t, acquireInside(t, e, outer, locker.Rule{Key: "a"}))
		_, err := e.Acquire(outer.Context(), locker.Rule{Key: "stripe:12/64"})
		wantErr(t, err, "stripe:12/64", locker.ErrSelfDeadlock)
		release(t, outer)
	})
}

// No stripe has many more keys than another stripe.
func TestStripesHaveTheirShareOfKeys(t *testing.T) {
	const stripes, keys = 64, 64 * 1000
	for _, format := range []string{"order:%d", "%08d", "tenant:%d:invoice", "550e8400-e29b-41d4-a716-%012d"} {
		counts := make(map[string]int)
		for i := range keys {
			counts[locker.StripeOf(striped(t, plain{}, stripes), fmt.Sprintf(format, i))]++
		}
		for stripe, n := range counts {
			if n < 800 || n > 1200 {
				t.Errorf("%s has %d keys such as %q, want about 1000", stripe, n, fmt.Sprintf(format, 7))
			}
		}
		if len(counts) != stripes {
			t.Errorf("%d stripes are used", len(counts))
		}
	}
}

// sameStripe returns two keys with the same stripe, and one key with another stripe.
func sameStripe(t *testing.T, s locker.Locker) (one, same, other string) {
	t.Helper()
	one = "order:0"
	for i := 1; same == "" || other == ""; i++ {
		key := fmt.Sprint("order:", i)
		if locker.StripeOf(s, key) == locker.StripeOf(s, one) {
			same = key
		} else {
			other = key
		}
	}
	return one, same, other
}

// Two keys of one stripe exclude each other, and the error gives the reason.
func TestKeysOfAStripeExcludeEachOther(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 8)
		one, same, other := sameStripe(t, s)
		lease := acquire(t, s, locker.Rule{Key: one})
		release(t, acquire(t, s, locker.Rule{Key: other, Wait: locker.NoWait}))
		for _, key := range []string{one, same} {
			_, err := s.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
			if e := wantErr(t, err, key, locker.ErrBusy); !strings.Contains(e.Error(), "of 8, which other keys share") || e.RetryAfter == 0 {
				t.Error(e)
			}
			if err := locker.RunAll(t.Context(), s, []locker.Rule{{Key: key, Wait: locker.NoWait}, {Key: other}}, mustNotRun(t)); !errors.Is(err, locker.ErrBusy) {
				t.Error(err)
			} else {
				wantErr(t, err, key)
			}
		}
		release(t, lease)
		release(t, acquire(t, s, locker.Rule{Key: same, Wait: locker.NoWait}))
	})
}

// If two keys of one RunAll have the same stripe, they have two leases but only one lock.
func TestRunAllTakesAStripeOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 1)
		err := locker.RunAll(t.Context(), s, []locker.Rule{{Key: "b"}, {Key: "a"}, {Key: "c", TTL: time.Minute}, {Key: "a"}}, func(ctx context.Context) error {
			if store.Len() != 1 {
				t.Errorf("%d locks are held", store.Len())
			}
			var keys []string
			var fence uint64
			for _, lease := range locker.LeasesFromContext(ctx) {
				keys = append(keys, lease.Key())
				if fence != 0 && lease.Fence() != fence || lease.Fence() == 0 {
					t.Errorf("the fence of %s is %d, not %d", lease.Key(), lease.Fence(), fence)
				}
				fence = lease.Fence()
			}
			if fmt.Sprint(keys) != "[c b a]" {
				t.Errorf("leases of %q", keys)
			}
			return locker.RunAll(ctx, s, rulesOf("d", "e"), nothing) // ctx holds the stripe of these keys
		})
		if err != nil {
			t.Fatal(err)
		}
		if store.Len() != 0 {
			t.Error("the stripe is still held")
		}
	})
}

// When a stripe is lost, the leases of all its keys end. RunAll names these keys.
func TestALostStripeEndsTheLeasesOfItsKeys(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 1)
		err := locker.RunAll(t.Context(), s, rulesOf("a", "b"), func(ctx context.Context) error {
			store.Steal("stripe:0/1")
			<-ctx.Done()
			for _, lease := range locker.LeasesFromContext(ctx) {
				lost(t, lease, locker.ErrLost)
			}
			return nil
		})
		if !errors.Is(err, locker.ErrLost) || !strings.Contains(err.Error(), " a:") || !strings.Contains(err.Error(), " b:") {
			t.Error(err)
		}
	})
}

// A nested acquire of another key with the same stripe uses the outer lease. Otherwise the acquire
// would wait for its own caller, because the two keys share a stripe.
func TestANestedKeyOfTheSameStripeJoins(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 8)
		one, same, other := sameStripe(t, s)
		err := locker.Run(t.Context(), s, locker.Rule{Key: one}, func(outer context.Context) error {
			return locker.Run(outer, s, locker.Rule{Key: same}, func(ctx context.Context) error {
				inner, _ := locker.FromContext(ctx)
				if inner.Key() != same {
					t.Errorf("the inner lease is %v", inner)
				}
				for _, key := range []string{one, same} { // the error is the same as without stripes
					if _, err := s.Acquire(ctx, locker.Rule{Key: key, Wait: locker.NoWait}); !errors.Is(err, locker.ErrSelfDeadlock) {
						t.Errorf("a nested acquire of the same key: %v", err)
					}
				}
				return locker.RunAll(ctx, s, rulesOf(other), nothing)
			})
		})
		if err != nil || store.Len() != 0 {
			t.Errorf("%v, %d locks are held", err, store.Len())
		}
		outer := acquire(t, s, locker.Rule{Key: one})
		joined, err := s.Acquire(outer.Context(), locker.Rule{Key: same})
		if err != nil {
			t.Fatal(err)
		}
		release(t, outer)
		if store.Len() != 1 {
			t.Error("the stripe was released before its last lease")
		}
		release(t, joined)
		if store.Len() != 0 {
			t.Error("the stripe was not released with its last lease")
		}
		// After the release of the outer lease, a nested acquire with its context takes a new
		// lease.
		release(t, acquire(t, s, locker.Rule{Key: same}))
		again, err := s.Acquire(context.WithoutCancel(outer.Context()), locker.Rule{Key: same, Wait: locker.NoWait})
		if err != nil || again.Fence() == outer.Fence() {
			t.Errorf("%v, %v", again, err)
		}
		release(t, again)
	})
}

// A reentrant Locker over a striped one grants every key of a stripe that its caller holds, also to
// RunAll, and in both directions between the two Lockers. No caller waits for its own stripe.
func TestAReentrantLockerOverStripesEntersTheStripesOfItsCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 8)
		one, same, other := sameStripe(t, s)
		r, err := locker.NewReentrant(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, outer := range []locker.Locker{r, s} {
			err = locker.Run(t.Context(), outer, locker.Rule{Key: one}, func(ctx context.Context) error {
				for _, key := range []string{one, same} {
					runNested(ctx, t, r, key)
				}
				runNested(ctx, t, s, same)
				return locker.RunAll(ctx, r, rulesOf(one, same, other), nothing)
			})
			if err != nil || store.Len() != 0 {
				t.Errorf("%v, %d locks are held", err, store.Len())
			}
		}
		lease := acquire(t, r, locker.Rule{Key: one})
		_, err = r.Acquire(t.Context(), locker.Rule{Key: same, Wait: locker.NoWait})
		wantErr(t, err, same, locker.ErrBusy) // another caller waits
		release(t, lease)
	})
}

func runNested(ctx context.Context, t *testing.T, l locker.Locker, key string) {
	t.Helper()
	if err := locker.Run(ctx, l, locker.Rule{Key: key, Wait: locker.NoWait}, nothing); err != nil {
		t.Errorf("a nested acquire of %s: %v", key, err)
	}
}

// A lease of another striped Locker does not count, although its stripe has the same name. A lease
// that was released does not hide the lease around it.
func TestOnlyHeldStripesOfTheSameLockerAreJoined(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		elsewhere := lockertest.NewMemory()
		here, there := striped(t, lockertest.NewLocker(t, store), 1), striped(t, lockertest.NewLocker(t, elsewhere), 1)
		err := locker.Run(t.Context(), here, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			lease, err := there.Acquire(ctx, locker.Rule{Key: "b"})
			if err != nil {
				return err
			}
			if elsewhere.Len() != 1 {
				t.Error("the stripe of the other Locker is not held")
			}
			release(t, lease)
			inner, err := here.Acquire(ctx, locker.Rule{Key: "b"})
			if err != nil {
				return err
			}
			release(t, inner)
			joined, err := here.Acquire(context.WithoutCancel(inner.Context()), locker.Rule{Key: "c", Wait: locker.NoWait})
			if err != nil {
				return err
			}
			release(t, joined)
			return nil
		})
		if err != nil || store.Len() != 0 {
			t.Errorf("%v, %d locks are held", err, store.Len())
		}
	})
}

// revokes is an Observer. When the lease of its key begins, it revokes the lease of its stripe, and
// waits until the holder notices the loss.
type revokes struct {
	key, stripe string
	engine      *locker.Engine
}

func (r *revokes) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	if op == locker.OpHold && rule.Key == r.key {
		if info, err := r.engine.Inspect(ctx, r.stripe); err == nil {
			_ = r.engine.Revoke(ctx, r.stripe, info.Fence, "drill")
		}
		<-time.After(time.Hour) // in a bubble, so no real time passes
	}
	return ctx, nil
}

// A RunAll may fail when it already has some stripes. Then it gives back these stripes, and also
// its parts of leases that its caller already had.
func TestARunAllThatFailsLeavesNoStripe(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		observer := new(revokes)
		e := lockertest.NewLocker(t, store, locker.WithObserver(observer))
		s := striped(t, e, 8)
		one, same, other := sameStripe(t, s)
		stripe, both := locker.StripeOf(s, other), ""
		for i := 0; both == ""; i++ {
			if key := fmt.Sprint("zz:", i); locker.StripeOf(s, key) == stripe {
				both = key
			}
		}
		observer.key, observer.stripe, observer.engine = both, stripe, e
		err := locker.RunAll(t.Context(), s, rulesOf(one, same, other, both), mustNotRun(t))
		if !errors.Is(err, locker.ErrRevoked) || store.Len() != 0 {
			t.Errorf("%v, %d locks are held", err, store.Len())
		}

		busy := acquire(t, s, locker.Rule{Key: other})
		err = locker.Run(t.Context(), s, locker.Rule{Key: one}, func(ctx context.Context) error {
			return locker.RunAll(ctx, s, []locker.Rule{{Key: same}, {Key: other, Wait: locker.NoWait}}, mustNotRun(t))
		})
		if !errors.Is(err, locker.ErrBusy) || store.Len() != 1 {
			t.Errorf("%v, %d locks are held", err, store.Len())
		}
		release(t, busy)
	})
}

// An error of RunAll names the first of the keys that have the stripe, and Observers get the Name
// of the key's rule.
func TestStripesAreNamedByTheirKeys(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var recorder lockertest.Recorder
		s := striped(t, lockertest.NewLocker(t, store, locker.WithObserver(&recorder)), 1)
		if err := locker.Check(s, locker.Rule{}); err != nil {
			t.Errorf("Check without a key: %v", err)
		}
		release(t, acquire(t, s, locker.Rule{Key: "order:1"}))
		if records := recorder.Records(locker.OpAcquire); len(records) != 1 || records[0].Rule.Name != "order" || records[0].Rule.Key != "stripe:0/1" {
			t.Errorf("%+v", records)
		}
		busy := acquire(t, s, locker.Rule{Key: "x"})
		_, err := s.Acquire(t.Context(), locker.Rule{Key: "order:1", Wait: locker.NoWait})
		wantErr(t, err, "order:1", locker.ErrBusy)
		err = locker.RunAll(t.Context(), s, []locker.Rule{{Key: "b", Wait: locker.NoWait}, {Key: "a", Wait: locker.NoWait}}, mustNotRun(t))
		if !errors.Is(err, locker.ErrBusy) {
			t.Error(err)
		}
		wantErr(t, err, "a")
		release(t, busy)
	})
}

func TestAStripedLockerRefusesWhatConcernsOneKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := striped(t, lockertest.NewLocker(t, store), 8)
		for _, rule := range []locker.Rule{{Key: "a", OnceFor: time.Minute}, {Key: "a", KeepFor: time.Minute}, {Key: "a", Mode: 7}, {}, {Key: "latchkit:a"}} {
			want := locker.ErrUnsupported
			switch {
			case rule.Mode != 0:
				want = locker.ErrInvalidRule
			case rule.Key != "a":
				want = locker.ErrInvalidKey
			}
			_, err := s.Acquire(t.Context(), rule)
			wantErr(t, err, rule.Key, want)
			wantErr(t, locker.RunAll(t.Context(), s, []locker.Rule{rule}, mustNotRun(t)), rule.Key, want)
			if err := locker.Check(s, rule); rule.Key != "" && !errors.Is(err, want) {
				t.Errorf("Check of %+v: %v", rule, err)
			}
		}
		var none *locker.Engine
		for says, f := range map[string]func() error{
			"the Locker is nil": func() error { _, err := locker.NewStriped(none, 8); return err },
			"0 stripes":         func() error { _, err := locker.NewStriped(s, 0); return err },
			"1048577 stripes":   func() error { _, err := locker.NewStriped(s, 1<<20+1); return err },
		} {
			if err := f(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %q", err, says)
			}
		}
		if store.Calls(locker.OpAcquire) != 0 {
			t.Error("the server was asked")
		}
	})
}

// Callers from two processes take random sets of keys. They never deadlock, and never hold the same
// stripe at the same time. On a quorum, n stripes are used instead of a lock for each key.
func TestStripesUnderRandomRunAlls(t *testing.T) {
	t.Parallel()
	clients := []locker.Client{redistest.Start(t).Client(t), redistest.Start(t).Client(t), redistest.Start(t).Client(t)}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	quorum := func() locker.Locker {
		l, err := locker.NewRedlock(clients)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(context.Background()) })
		return l
	}
	c := redistest.Shared(t).Client(t)
	for name, lockers := range map[string][2]locker.Locker{
		"one server": {newSingle(t, c, locker.WithPrefix(t.Name()+":")), newSingle(t, c, locker.WithPrefix(t.Name()+":"))},
		"a quorum":   {quorum(), quorum()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const stripes, keys = 4, 32
			var inside [stripes]sync.Mutex
			var callers sync.WaitGroup
			for caller := range 8 {
				s := striped(t, lockers[caller%2], stripes)
				random := rand.New(rand.NewPCG(uint64(caller), 1))
				callers.Go(func() {
					for range 15 {
						rules, taken := []locker.Rule{}, map[string]*sync.Mutex{}
						for range 1 + random.IntN(4) {
							key := fmt.Sprint("key:", random.IntN(keys))
							stripe := locker.StripeOf(s, key)
							rules = append(rules, locker.Rule{Key: key, Wait: stuckAfter})
							var number int
							_, _ = fmt.Sscanf(stripe, "stripe:%d/", &number)
							taken[stripe] = &inside[number]
						}
						if err := locker.RunAll(t.Context(), s, rules, func(context.Context) error {
							for stripe, m := range taken {
								if !m.TryLock() {
									t.Errorf("two callers hold %s", stripe)
									return nil
								}
								defer m.Unlock()
							}
							return nil
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
		})
	}
}
