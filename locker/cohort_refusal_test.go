package locker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// When the server is unavailable, the leader gets an error that says so. The waiters behind the
// leader must get the same error.
//
// The waits of all these callers end at the same time, so a waiter may become the leader just
// before its own wait ends. The scheduler decides whether this happens, so the test repeats it
// often.
func TestAFollowersErrorIsThatOfItsLeader(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2)
			_ = acquire(t, ls[0], locker.Rule{Key: "a"})
			ws := crowd(t, ls[1], locker.Rule{Key: "a", Wait: 8 * time.Second}, 5)
			store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
			for _, w := range ws {
				<-w.ended
				wantErr(t, w.err, "a", locker.ErrUnavailable)
				wantNot(t, w.err, locker.ErrBusy)
			}
		})
	}
}

// Before the first answer, a caller whose context ends is told of the server: the leader, the next
// leader, which takes over the question, and a caller that has sent nothing.
func TestACallerWhoseTimeEndsBeforeAnAnswerIsToldOfTheServer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, time.Minute)
		errs := make(chan error, 3)
		for _, ms := range []int{100, 500, 400} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
			defer cancel()
			go func() {
				_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
				errs <- err
			}()
			<-time.After(time.Millisecond)
		}
		for range 3 {
			wantErr(t, <-errs, "a", locker.ErrUnavailable, context.DeadlineExceeded)
		}
	})
}

func TestWhoIsOneTooManyHearsWhenToRetry(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2, locker.WithMaxWaiters(2))
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		for _, l := range ls { // the first Locker has the holder; in the second, only the leader knows of a holder
			ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			if e := wantErr(t, err, "a", locker.ErrTooManyWaiters); e.RetryAfter < time.Millisecond || e.RetryAfter > time.Second {
				t.Errorf("retry after %v, while the holder has just begun", e.RetryAfter)
			}
			for _, w := range ws {
				w.cancel()
				<-w.ended
			}
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

// Until its first answer, a leader does not know whether it must wait. But the other callers
// already count as waiters behind this leader.
func TestWhoComesLastIsRefusedWhenTheLeaderMustWaitAsWell(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMaxWaiters(2))
		store.Occupy("a", time.Minute)
		store.DelayReplies(locker.OpAcquire, 50*time.Millisecond)
		var ws []*waiting
		for range 3 {
			ws = append(ws, startWaiting(t, l, locker.Rule{Key: "a"}))
			<-time.After(time.Millisecond)
		}
		store.DelayReplies(locker.OpAcquire, 0)
		<-ws[2].ended
		if e := wantErr(t, ws[2].err, "a", locker.ErrTooManyWaiters); e.RetryAfter < time.Millisecond || e.RetryAfter > time.Second {
			t.Errorf("retry after %v, while nothing is known of the holder", e.RetryAfter)
		}
		if waited := ws[2].grantedAt.Sub(ws[2].began); waited > 50*time.Millisecond {
			t.Errorf("refused after %v; the leader was answered earlier", waited)
		}
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrTooManyWaiters)
		store.Free("a")
		for _, w := range ws[:2] {
			<-w.ended
			release(t, w.lease)
		}
		ws = crowd(t, l, locker.Rule{Key: "a"}, 3) // one caller has the key and these three wait, so the counter is full
		release(t, ws[0].lease)
		for _, w := range ws[1:] {
			<-w.ended
			release(t, w.lease)
		}
		nothingLeft(t, store)
	})
}

// What the process knows about one key does not apply to another key.
func TestAKeyOfWhichNothingWasHeardIsNotWaitedFor(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		next := startWaiting(t, l, locker.Rule{Key: "a"})
		release(t, lease)
		release(t, next.awaitGrant(0))
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		start := time.Now()
		leader := startWaiting(t, l, locker.Rule{Key: "b", Wait: 20 * time.Second})
		<-time.After(900 * time.Millisecond)
		follower := startWaiting(t, l, locker.Rule{Key: "b", Wait: 20 * time.Second})
		for _, w := range []*waiting{leader, follower} {
			<-w.ended
			wantErr(t, w.err, "b", locker.ErrUnavailable)
		}
		checkElapsed(t, start, time.Second, 2*time.Second)
	})
}

// onHold is an Observer that calls a function when a hold begins.
type onHold func()

func (f onHold) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	if op == locker.OpHold {
		f()
	}
	return ctx, nil
}

// A hold may end before its cohort is notified that the hold has begun. Then the waiters must
// not wait for this hold for ever. The scheduler decides which notification comes first, so the
// test repeats this often.
func TestAHoldThatIsLostAtOnceLeavesTheKeyToOthers(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			const ttl = time.Second
			l := lockertest.NewLocker(t, store, locker.WithObserver(onHold(func() { <-time.After(ttl) })))
			var wg sync.WaitGroup
			for i := range 50 { // all 50 run at the same time, so that they disturb each other
				wg.Go(func() {
					rule := locker.Rule{Key: fmt.Sprint("a", i), TTL: ttl}
					lease := acquire(t, l, rule)
					<-lease.Context().Done()
					_ = lease.Release(t.Context())
					<-time.After(time.Minute)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					if _, err := l.Acquire(ctx, rule); ctx.Err() != nil {
						t.Errorf("no process holds the key, and it was not to be had for an hour: %v", err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// Waiters for a permit that came before their leader's first answer have waited as long as it has. A
// question that fails while they lead, or the end of their wait, does not say that nobody answered.
func TestWaitersForAPermitRememberThatTheyWereAnswered(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		rule := locker.Rule{Key: "a", Limit: 2}
		held := acquire(t, ls[0], rule)
		_ = acquire(t, ls[0], rule)
		store.DelayReplies(locker.OpAcquire, 50*time.Millisecond)
		leader := startWaiting(t, ls[1], rule)
		rule.Wait = 20 * time.Second
		next := startWaiting(t, ls[1], rule)
		rule.Wait = 4025 * time.Millisecond
		last := startWaiting(t, ls[1], rule) // its wait ends while the next leader asks
		<-time.After(4 * time.Second)
		release(t, held)
		_ = leader.awaitGrant(0)
		<-last.ended
		wantErr(t, last.err, "a", locker.ErrBusy)
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		<-time.After(2 * time.Second)
		store.Fail(locker.OpAcquire, nil)
		select {
		case <-next.ended:
			t.Errorf("it was waiting for 20 s, and ended with %v", next.err)
		default:
			next.cancel()
			<-next.ended
		}
	})
}

// A waiter gets the lease just as its wait ends. An earlier question of the leader, which failed, does
// not make this a server that did not answer. The scheduler decides, so the test repeats it.
func TestAWaiterThatIsLateForItsTurnFoundTheKeyBusy(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2)
			held := acquire(t, ls[0], locker.Rule{Key: "a"})
			leader := startWaiting(t, ls[1], locker.Rule{Key: "a"})
			store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
			<-time.After(3 * time.Second)
			late := startWaiting(t, ls[1], locker.Rule{Key: "a", Wait: 3 * time.Second})
			store.Fail(locker.OpAcquire, nil)
			<-time.After(3*time.Second - time.Millisecond)
			release(t, held)
			lease := leader.awaitGrant(0)
			<-time.After(time.Until(late.began.Add(3 * time.Second)))
			_ = lease.Release(t.Context())
			<-late.ended
			if late.lease != nil {
				release(t, late.lease)
			} else {
				wantErr(t, late.err, "a", locker.ErrBusy)
			}
		})
	}
}
