package locker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestModesOfNestedHolds(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		shared := acquireInside(t, l, outer, locker.Rule{Key: "a", Mode: locker.Shared})
		if shared.Mode() != locker.Shared || outer.Mode() != locker.Exclusive {
			t.Errorf("modes %v, %v", shared.Mode(), outer.Mode())
		}
		again := acquireInside(t, l, shared, locker.Rule{Key: "a"}) // this lease is still Exclusive
		release(t, outer)
		release(t, shared)
		release(t, again)
	})
}

// While the writer reads its own key, and after that, no other reader comes in.
func TestAWriterThatReadsItsOwnKeyKeepsItsExclusiveLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], writing)
		other, before := startWaiting(t, ls[1], reading), store.Calls(locker.OpAcquire)
		_, err := ls[0].Acquire(lease.Context(), reading)
		wantErr(t, err, "a", locker.ErrSelfDeadlock)
		if n := store.Calls(locker.OpAcquire) - before; n != 0 {
			t.Errorf("the Store was asked %d times", n)
		}
		checkHeld(t, lease)
		other.checkWaiting()
		release(t, lease)
		release(t, other.awaitGrant(0))
	})
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		ls, _ := processes(t, store, 1)
		outer := acquire(t, l, writing)
		near, far := startWaiting(t, e, reading), startWaiting(t, ls[0], reading)
		nested := acquireInside(t, l, outer, reading)
		release(t, outer)
		for _, r := range []*waiting{near, far} {
			r.checkWaiting()
		}
		if nested.Fence() != outer.Fence() {
			t.Errorf("fence %d inside %d", nested.Fence(), outer.Fence())
		}
		checkHeld(t, nested)
		release(t, nested)
		release(t, near.awaitGrant(0))
		release(t, far.awaitGrant(0))
	})
}

func TestExclusiveInsideSharedIsRefusedAtOnce(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a", Mode: locker.Shared})
		inner := acquireInside(t, l, outer, locker.Rule{Key: "a", Mode: locker.Shared})
		if inner.Fence() != outer.Fence() {
			t.Errorf("fence %d inside %d", inner.Fence(), outer.Fence())
		}
		before, start := calls(store), time.Now()
		for _, holder := range []*locker.Lease{outer, inner} {
			_, err := l.Acquire(holder.Context(), locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrUnsupported)
			wantErr(t, locker.RunAll(holder.Context(), l, rulesOf("a", "b"), mustNotRun(t)), "a", locker.ErrUnsupported)
		}
		checkElapsed(t, start, 0, 0)
		if calls(store) != before {
			t.Error("the Store was asked")
		}
		release(t, outer)
		release(t, inner)
	})
}

func TestNestedRulesThatWouldNeedTheServerAreRefused(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		lease := acquire(t, l, locker.Rule{Key: "a", OnceFor: time.Minute, KeepFor: time.Minute})
		before := calls(store)
		for text, rule := range map[string]locker.Rule{
			"OnceFor": {Key: "a", OnceFor: time.Hour},
			"KeepFor": {Key: "a", KeepFor: time.Hour},
		} {
			_, err := l.Acquire(lease.Context(), rule)
			wantErr(t, err, "a", locker.ErrUnsupported)
			if !strings.Contains(err.Error(), "set "+text+" on the outer hold") {
				t.Errorf("the text does not teach: %v", err)
			}
		}
		_, err := l.Acquire(lease.Context(), locker.Rule{Key: "a", TTL: -1})
		wantErr(t, err, "a", locker.ErrInvalidRule)
		release(t, acquireInside(t, l, lease, locker.Rule{Key: "a", OnceFor: time.Minute, KeepFor: time.Second, TTL: time.Hour, Wait: locker.NoWait}))
		if calls(store) != before {
			t.Error("the Store was asked")
		}
		release(t, lease)
		<-time.After(time.Minute)
	})
}

func TestAReentrantOverAReentrant(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outermost := locktest.Reentrant(t, l)
		lease := acquire(t, outermost, locker.Rule{Key: "a"})
		nested := acquireInside(t, outermost, lease, locker.Rule{Key: "a"})
		if err := nested.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		release(t, lease)
		checkHeld(t, nested)
		store.Steal("a")
		lost(t, nested, locker.ErrLost)
		store.Free("a")
	})
}

func TestAReentrantNeedsALocker(t *testing.T) {
	t.Parallel()
	for _, none := range []locker.Locker{nil, (*locker.Engine)(nil)} {
		if l, err := locker.NewReentrant(none); l != nil || err == nil || !strings.Contains(err.Error(), "NewReentrant") {
			t.Errorf("%v, %v", l, err)
		}
	}
}
