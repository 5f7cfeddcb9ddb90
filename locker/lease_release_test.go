package locker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAReleaseIsNotFollowedByARenewal(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		var mu sync.Mutex
		released, late := map[string]bool{}, 0
		l := lockertest.NewLocker(t, lagging{backend, func(cs []store.Claim) {
			mu.Lock()
			for _, c := range cs {
				if released[c.Key] {
					late++
				}
			}
			mu.Unlock()
			time.Sleep(15 * time.Second) // long enough that the keeper reaches its limit of calls under way
		}})
		var leases []*locker.Lease
		for i := range 20 {
			leases = append(leases, acquire(t, l, locker.Rule{Key: string(rune('a' + i)), TTL: 30 * time.Second}))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(8 * time.Second)
		for _, lease := range leases {
			release(t, lease)
			mu.Lock()
			released[lease.Key()] = true
			mu.Unlock()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if late != 0 {
			t.Fatalf("%d renewals were sent after the release", late)
		}
	})
}

func TestAReleaseThatWasSentTooLateIsNoProof(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend, locker.WithoutRenewal())
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		time.Sleep(500 * time.Millisecond)
		backend.Fail(locker.OpRelease, &store.Refusal{Temporary: true, Err: errors.New("LOADING")})
		time.AfterFunc(700*time.Millisecond, func() { // meanwhile the lease has expired, and another holder has taken and released the key
			backend.Fail(locker.OpRelease, nil)
			backend.LoseReplies(locker.OpRelease, 1)
		})
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
}

func TestAtLeastKeepsTheKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second, KeepFor: 10 * time.Second})
		time.Sleep(4 * time.Second)
		release(t, lease)
		if i, _ := l.Inspect(t.Context(), "a"); !i.Kept {
			t.Fatalf("%+v is not kept", i)
		}
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		checkElapsed(t, start, 10*time.Second, 5*time.Millisecond)

		lease = acquire(t, l, locker.Rule{Key: "b", KeepFor: 10 * time.Second})
		time.Sleep(11 * time.Second)
		release(t, lease)
		if i, _ := l.Inspect(t.Context(), "b"); i.Held {
			t.Fatal("kept for longer than KeepFor")
		}
	})
}

func TestAtLeastOutlivesAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", KeepFor: 10 * time.Second, EndAfter: 10 * time.Second})
		lost(t, lease, locker.ErrExpired)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		checkElapsed(t, start, 10*time.Second, 5*time.Millisecond)
	})
}

func TestAtLeastSurvivesTheHoldersCrash(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		crashed := errors.New("crashed")
		store.Fail(locker.OpRenew, crashed)
		store.Fail(locker.OpRelease, crashed)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second, KeepFor: 10 * time.Second})
		time.Sleep(9 * time.Second)
		if store.Len() != 1 {
			t.Fatal("the key was free after its TTL")
		}
		lost(t, lease, locker.ErrLost)
	})
}

// A quorum's node that has not granted the lease may have the lease's token in its queue, and may
// keep it there for longer than the TTL.
func TestALostLeaseThatQueuedIsReleasedAlsoAfterItsTTL(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		down := errors.New("down")
		first := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "a"})
		time.AfterFunc(time.Second, func() { release(t, first) })
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		store.Fail(locker.OpRenew, down)
		store.Fail(locker.OpRelease, down)
		lost(t, lease, locker.ErrLost)
		time.Sleep(5 * time.Second)
		store.Fail(locker.OpRelease, nil)
		before := store.Calls(locker.OpRelease)
		time.Sleep(time.Second)
		if store.Calls(locker.OpRelease) == before {
			t.Error("the token was not released any more, and a node's queue may have it")
		}
	})
}

func TestReleaseIsIdempotent(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := store.Calls(locker.OpRelease); n != 1 {
			t.Fatalf("%d calls", n)
		}
		if cause := context.Cause(lease.Context()); cause != locker.ErrReleased {
			t.Fatal(cause)
		}
	})
}

func TestReleaseRepeatsAndGivesUpAfterTwoSeconds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		eof := errors.New("EOF")
		store.Fail(locker.OpRelease, eof)
		start := time.Now()
		err := lease.Release(t.Context())
		checkElapsed(t, start, 2*time.Second, 0)
		wantErr(t, err, "a", locker.ErrUnavailable, eof)
		wantNot(t, err, locker.ErrLost)
		if lease.Release(t.Context()) != err {
			t.Fatal("the second release says something else")
		}
		store.Fail(locker.OpRelease, nil)
		time.Sleep(time.Second)
		if store.Len() != 0 {
			t.Fatal("the release did not go on in the background")
		}
	})
}

func TestAHangingReleaseDoesNotHoldUpItsCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Delay(locker.OpRelease, 10*time.Second)
		start := time.Now()
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrUnavailable)
		checkElapsed(t, start, 2*time.Second, 0)
		time.Sleep(20 * time.Second)
		if store.Len() != 0 {
			t.Fatal("the key is still held")
		}
	})
}

func TestAReleaseThatComesAfterALossSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Steal("a")
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
}

func TestALostAnswerDoesNotHideALoss(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend, locker.WithoutRenewal())
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		backend.Fail(locker.OpRelease, &store.Refusal{Temporary: true, Err: errors.New("LOADING")})
		time.AfterFunc(100*time.Millisecond, func() {
			backend.Steal("a")
			backend.Fail(locker.OpRelease, nil)
		})
		// The server has refused the earlier attempts, so they did not run. Therefore the answer
		// "not ours" means that the lease was lost.
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
}

// A program may recover from the panic, as net/http does.
func TestAReleaseWithANilContextLeavesTheReleaseToALaterCall(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		lease := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "a"})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a nil context was accepted")
				}
			}()
			_ = lease.Release(nil) //nolint:staticcheck // the mistake that is tested
		}()
		release(t, lease)
		if store.Len() != 0 {
			t.Error("the key is still held")
		}
	})
}

// twice sends each release twice, like a link that asks once more over another connection, and returns
// the answer of the second.
type twice struct{ store.Store }

func (s twice) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	if _, err := s.Store.Release(ctx, c); err != nil {
		return store.Grant{}, err
	}
	g, err := s.Store.Release(ctx, c)
	g.Doubled = true
	return g, err
}

func TestAReleaseThatWasSentTwiceIsNoLoss(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, twice{backend})
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}

// KeepFor counts from when the caller receives the grant, and not from when it sent the request.
func TestAtLeastCountsFromTheGrant(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.DelayReplies(locker.OpAcquire, 900*time.Millisecond)
		lease := acquire(t, l, locker.Rule{Key: "a", KeepFor: 10 * time.Second})
		store.DelayReplies(locker.OpAcquire, 0)
		start := time.Now()
		release(t, lease)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		checkElapsed(t, start, 10*time.Second, 100*time.Millisecond)
	})
}

// warnedOf counts the warnings with each code.
type warnedOf map[string]int

func (warnedOf) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

func (w warnedOf) Warn(warning locker.Warning) { w[warning.Code]++ }

// A server that refuses one release refuses the next ones too, and one warning a minute is enough.
func TestRefusedReleasesAreWarnedOfOnceAMinute(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		seen := warnedOf{}
		l := lockertest.NewLocker(t, backend, locker.WithObserver(seen))
		refuse := func() {
			for i := range 100 {
				lease := acquire(t, l, locker.Rule{Key: fmt.Sprint(i), TTL: 10 * time.Second})
				backend.Fail(locker.OpRelease, &store.Refusal{Err: errors.New("NOPERM")})
				wantErr(t, lease.Release(t.Context()), lease.Key(), locker.ErrUnavailable)
				synctest.Wait() // the repetition of the release is refused, too
				backend.Fail(locker.OpRelease, nil)
			}
		}
		refuse()
		if n := seen["release-refused"]; n != 1 {
			t.Fatalf("%d warnings of 100 refused releases", n)
		}
		time.Sleep(2 * time.Minute)
		refuse()
		if n := seen["release-refused"]; n != 2 {
			t.Errorf("%d warnings after another 100 refused releases", n)
		}
	})
}
