package locker_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of calls in other processes that join a lease.

var sesame = sha256.Sum256([]byte("open sesame"))

// delegate delegates a lease by a secret. the cohort waits until this acquisition gets a hold
// or gives up the lead
func delegate(t *testing.T, lease *locker.Lease) locker.Delegation {
	t.Helper()
	if _, err := lease.Delegate(t.Context(), sesame, time.Minute, 1); err != nil {
		t.Fatal(err)
	}
	return locker.Delegation{Secret: sesame}
}

func join(t *testing.T, l *locker.Engine, key string, p locker.Delegation) *locker.Lease {
	t.Helper()
	lease, err := l.Join(t.Context(), locker.Rule{Key: key}, p)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestAJoinLastsAsLongAsTheLeaseAndEndsASecondLater(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		joined := join(t, caller, "a", delegate(t, lease))
		<-time.After(time.Hour)
		if err := joined.Context().Err(); err != nil {
			t.Fatalf("the lease is held, and the join has ended: %v", context.Cause(joined.Context()))
		}
		release(t, lease)
		start := time.Now()
		lost(t, joined, locker.ErrLost)
		checkElapsed(t, start, 0, 1200*time.Millisecond)
		wantErr(t, joined.Release(t.Context()), "a", locker.ErrLost)
		nothingLeft(t, store)
	})
}

func TestAJoinEndsWithoutAnAnswer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		joined := join(t, caller, "a", delegate(t, lease))
		store.Fail(locker.OpJoin, errors.New("connection reset"))
		start := time.Now()
		lost(t, joined, locker.ErrLost)
		checkElapsed(t, start, 2900*time.Millisecond, 100*time.Millisecond)
		store.Fail(locker.OpJoin, nil)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("the lease ended with the join: %v", err)
		}
		release(t, lease)
	})
}

// The holder dies when its lease has little time left. A joined call must not continue after
// another holder has got the key.
func TestAJoinDoesNotOutliveADeadHolder(t *testing.T) {
	for _, ttl := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 30 * time.Second} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			dies := store.NewProcess()
			holder, err := locker.New(dies, locker.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			caller, next := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
			lease := acquire(t, holder, locker.Rule{Key: "a"})
			joined := join(t, caller, "a", delegate(t, lease))
			<-time.After(5 * ttl / 2)
			if err := joined.Context().Err(); err != nil {
				t.Fatalf("ttl %v: %v", ttl, context.Cause(joined.Context()))
			}
			waiting := startWaiting(t, next, locker.Rule{Key: "a"})
			dies.Die()
			<-waiting.ended
			if joined.Context().Err() == nil {
				t.Errorf("ttl %v: the next holder has the key, and the joined call works on", ttl)
			}
			release(t, waiting.awaitGrant(0))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_ = holder.Close(ctx)
		})
	}
}

func TestADelegatedLeaseIsNotPassedOn(t *testing.T) {
	for _, delegated := range []bool{false, true} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
			lease := acquire(t, l, locker.Rule{Key: "a"})
			first, err := l.Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			w := startWaiting(t, l, locker.Rule{Key: "a"})
			if delegated {
				delegate(t, lease)
			}
			release(t, lease)
			next := w.awaitGrant(0)
			second, err := l.Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if passedOn := second.Fence == first.Fence; passedOn == delegated {
				t.Errorf("delegated: %v, passed on: %v", delegated, passedOn)
			}
			if _, err := caller.Join(t.Context(), locker.Rule{Key: "a"}, locker.Delegation{Secret: sesame}); !errors.Is(err, locker.ErrRefused) {
				t.Errorf("the next holder's lease was joined: %v", err)
			}
			release(t, next)
		})
	}
}

// When a lease was passed on to the next caller, its earlier holder cannot delegate it any more.
func TestALeaseThatIsPassedOnIsNotDelegated(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		w := startWaiting(t, l, locker.Rule{Key: "a"})
		release(t, lease)
		next := w.awaitGrant(0)
		_, err := lease.Delegate(t.Context(), sesame, time.Minute, 1)
		wantErr(t, err, "a", locker.ErrReleased)
		release(t, next)
	})
}

// The lease may end after Delegate has checked it, and before Delegate marks its hold as delegated.
// Then the hold may belong to another Lease, and must not be marked.
func TestALeaseThatIsOverIsNotMarkedAsDelegated(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, store *lockertest.Memory, lease *locker.Lease){
		"passed on": func(t *testing.T, _ *lockertest.Memory, lease *locker.Lease) { release(t, lease) },
		"lost": func(t *testing.T, store *lockertest.Memory, lease *locker.Lease) {
			store.Steal("a")
			lost(t, lease, locker.ErrLost)
			store.Free("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				lease := acquire(t, l, locker.Rule{Key: "a"})
				ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
				end(t, store, lease)
				next := ws[0].awaitGrant(time.Minute)
				if locker.MarkDelegated(lease) {
					t.Error("it was marked")
				}
				first, err := l.Inspect(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				release(t, next)
				last := ws[1].awaitGrant(time.Minute)
				if second, err := l.Inspect(t.Context(), "a"); err != nil || second.Fence != first.Fence {
					t.Errorf("the next holder's lease was not passed on: fence %d after %d, %v", second.Fence, first.Fence, err)
				}
				release(t, last)
			})
		})
	}
}

func TestAJoinWhoseAnswerWasLostIsUnavailableAndLeavesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		pass := delegate(t, lease)
		store.LoseReplies(locker.OpJoin, 1)
		releases := store.Calls(locker.OpRelease)
		_, err := caller.Join(t.Context(), locker.Rule{Key: "a"}, pass)
		wantErr(t, err, "a", locker.ErrUnavailable)
		wantNot(t, err, locker.ErrRefused)
		synctest.Wait()
		if n := store.Calls(locker.OpRelease) - releases; n != 1 {
			t.Errorf("what may have joined has left %d times", n)
		}
		release(t, join(t, caller, "a", pass))
		release(t, lease)
	})
}

func TestAnAbandonedJoinReturnsAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		pass := delegate(t, lease)
		store.Delay(locker.OpJoin, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := caller.Join(ctx, locker.Rule{Key: "a"}, pass)
		checkElapsed(t, start, 100*time.Millisecond, 0)
		wantErr(t, err, "a", context.DeadlineExceeded)
		store.Delay(locker.OpDelegate, time.Second)
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		_, err = lease.Delegate(ctx, sesame, time.Minute, 0)
		checkElapsed(t, start, 100*time.Millisecond, 0)
		wantErr(t, err, "a", context.DeadlineExceeded)
		release(t, lease)
	})
}

func TestWhatCannotBeJoinedOrDelegatedSaysWhy(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		plain := lockertest.NewLocker(t, struct{ locker.Store }{store.NewProcess()})
		l := lockertest.NewLocker(t, store)
		_, err := plain.Join(t.Context(), locker.Rule{Key: "a"}, locker.Delegation{})
		wantErr(t, err, "a", locker.ErrUnsupported)
		lease := acquire(t, plain, locker.Rule{Key: "a"})
		_, err = lease.Delegate(t.Context(), sesame, time.Minute, 1)
		wantErr(t, err, "a", locker.ErrUnsupported)
		release(t, lease)

		lease = acquire(t, l, locker.Rule{Key: "a"})
		for _, within := range []time.Duration{0, -1, time.Microsecond} {
			_, err = lease.Delegate(t.Context(), sesame, within, 1)
			wantErr(t, err, "a", locker.ErrInvalidRule)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = lease.Delegate(gone, sesame, time.Minute, 1)
		wantErr(t, err, "a", context.Canceled)
		_, err = l.Join(gone, locker.Rule{Key: "a"}, locker.Delegation{})
		wantErr(t, err, "a", context.Canceled)
		_, err = l.Join(t.Context(), locker.Rule{Key: ""}, locker.Delegation{})
		wantErr(t, err, "", locker.ErrInvalidKey)
		store.Fail(locker.OpDelegate, errors.New("connection reset"))
		_, err = lease.Delegate(t.Context(), sesame, time.Minute, 1)
		wantErr(t, err, "a", locker.ErrUnavailable)
		store.Fail(locker.OpDelegate, nil)

		// A delegation without a secret allows a limited number of hops, which the Engine counts.
		pass, err := lease.Delegate(t.Context(), [32]byte{}, time.Minute, 1)
		if err != nil {
			t.Fatal(err)
		}
		first := join(t, l, "a", pass)
		pass, err = first.Delegate(t.Context(), [32]byte{}, time.Minute, 9)
		if err != nil || pass.Depth != 0 {
			t.Fatalf("%+v, %v", pass, err)
		}
		second := join(t, l, "a", pass)
		_, err = second.Delegate(t.Context(), [32]byte{}, time.Minute, 9)
		wantErr(t, err, "a", locker.ErrUnsupported)
		bySecret := join(t, l, "a", delegate(t, lease))
		_, err = bySecret.Delegate(t.Context(), [32]byte{}, time.Minute, 9)
		wantErr(t, err, "a", locker.ErrUnsupported)
		for _, lease := range []*locker.Lease{second, first, bySecret, lease} {
			release(t, lease)
		}
	})
}

func TestCloseEndsJoinsToo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder := lockertest.NewLocker(t, store)
		caller, err := locker.New(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		joined := join(t, caller, "a", delegate(t, lease))
		if err := caller.Close(t.Context()); err != nil {
			t.Error(err)
		}
		lost(t, joined, locker.ErrClosed)
		_, err = caller.Join(t.Context(), locker.Rule{Key: "a"}, locker.Delegation{Secret: sesame})
		wantErr(t, err, "a", locker.ErrClosed)
		if err := joined.Release(t.Context()); err != nil {
			t.Error(err)
		}
		release(t, lease)
	})
}

func TestTheObserverSeesJoinsAsLeases(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		holder, caller := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store, locker.WithObserver(&rec))
		lease := acquire(t, holder, locker.Rule{Key: "a"})
		joined := join(t, caller, "a", delegate(t, lease))
		release(t, joined)
		release(t, lease)
		want := map[locker.Op]locker.Result{
			locker.OpAcquire: locker.ResultAcquired, locker.OpHold: locker.ResultReleased, locker.OpRelease: locker.ResultReleased,
		}
		for _, e := range rec.Records() {
			if e.Outcome.Result != want[e.Op] || e.Outcome.Fence != lease.Fence() {
				t.Errorf("%v: %+v", e.Op, e.Outcome)
			}
			delete(want, e.Op)
		}
		if len(want) > 0 {
			t.Errorf("not seen: %v", want)
		}
	})
}

// This test repeats the test above on a real server, whose scripts measure the time.
func TestAJoinOnRedisEndsWithTheLeaseAndLeavesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	newLocker := func() *locker.Engine {
		l, err := locker.NewSingle(server.Client(t), locker.WithTTL(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}
	holder, caller := newLocker(), newLocker()
	lease := acquire(t, holder, locker.Rule{Key: "a"})
	if _, err := lease.Delegate(t.Context(), sesame, 10*time.Second, 1); err != nil {
		t.Fatal(err)
	}
	joins := make([]*locker.Lease, 0, 100)
	for range cap(joins) { // more than the number of dead joins that the server remembers
		joins = append(joins, join(t, caller, "a", locker.Delegation{Secret: sesame}))
	}
	for _, joined := range joins[1:] {
		release(t, joined)
	}
	if n := client.HLen(t.Context(), redisstore.JoinsKey("a")).Val(); n != 2 { // the entries are the secret and one join
		t.Errorf("%d fields are left", n)
	}
	release(t, lease)
	lost(t, joins[0], locker.ErrLost)
	eventually(t, "the joins have run out", func() bool { return client.Exists(t.Context(), redisstore.JoinsKey("a")).Val() == 0 })
}

// What the server knows about delegations and joins must last as long as the lease. Otherwise the
// server would refuse a joined call while the lease is held.
func TestJoinsAreRememberedAsLongAsTheLease(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client)
	key := t.Name()
	lease := acquire(t, l, locker.Rule{Key: key, TTL: time.Minute})
	remembered := func(after string) {
		t.Helper()
		// The test reads the TTL of the joins first, because time passes before it reads the TTL
		// of the lease.
		joins := client.PTTL(t.Context(), redisstore.JoinsKey(key)).Val()
		if left := client.PTTL(t.Context(), key).Val(); joins < left {
			t.Errorf("%s: for %v, and the lease lasts %v", after, joins, left)
		}
	}
	if _, err := lease.Delegate(t.Context(), sesame, time.Second, 0); err != nil {
		t.Fatal(err)
	}
	remembered("after a delegation for a second")
	if err := lease.Extend(t.Context(), 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	joined := join(t, l, key, locker.Delegation{Secret: sesame})
	remembered("after a join of a lease that was extended")
	if _, err := lease.Delegate(t.Context(), sesame, time.Hour, 0); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), redisstore.JoinsKey(key)).Val(); left < 30*time.Minute {
		t.Errorf("after a delegation for an hour: for %v", left)
	}
	release(t, joined)
	release(t, lease)
}

// Many calls may die without leaving, and many secrets may stay unused. The server removes the
// entries of these calls and secrets, and no other entries.
func TestTheDeadWhoHaveJoinedAreForgotten(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client)
	key := t.Name()
	lease := acquire(t, l, locker.Rule{Key: key})
	pass := delegate(t, lease)
	living := join(t, l, key, pass)
	for i := range 100 {
		dead := fmt.Sprintf("%d %d 0 1", lease.Fence(), lease.Fence()) // the entry has run out, because its time is in 1970
		if err := client.HSet(t.Context(), redisstore.JoinsKey(key), fmt.Sprint("s:", i), dead).Err(); err != nil {
			t.Fatal(err)
		}
	}
	again := join(t, l, key, pass)
	if n := client.HLen(t.Context(), redisstore.JoinsKey(key)).Val(); n != 3 { // the entries are the secret and two joins
		t.Errorf("%d fields are left", n)
	}
	release(t, living)
	release(t, again)
	release(t, lease)
}
