package locker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// refusedByDrain checks the error of a caller that Drain has turned away.
func refusedByDrain(t *testing.T, err error, key string) {
	t.Helper()
	wantErr(t, err, key, locker.ErrClosed)
	if e := (*locker.Error)(nil); !errors.As(err, &e) || e.RetryAfter != time.Second {
		t.Errorf("%v: no time to come back", err)
	}
}

// drainables are Lockers of all kinds in one process, over the given Engine.
func drainables(t *testing.T, e *locker.Engine) map[string]locker.Locker {
	t.Helper()
	reentrant, err := locker.NewReentrant(e)
	if err != nil {
		t.Fatal(err)
	}
	striped, err := locker.NewStriped(e, 8)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]locker.Locker{"engine": e, "reentrant": reentrant, "striped": striped}
}

// Drain refuses the callers that wait and the callers that come later. The holder keeps its context
// and its lease, for much longer than its TTL, and Drain returns when the lease is released.
func TestDrainRefusesWaitersAndNewcomersAndLetsHoldersFinish(t *testing.T) {
	for kind := range drainables(t, lockertest.NewLocker(t, lockertest.NewMemory())) {
		for name, rule := range map[string]locker.Rule{"": {}, " with a limit": {Limit: 1}, " with readers": {Mode: locker.Shared}} {
			t.Run(kind+name, func(t *testing.T) {
				virtual(t, func(t *testing.T, store *lockertest.Memory) {
					e := lockertest.NewLocker(t, store)
					checkDrain(t, drainables(t, e)[kind], rule)
					if store.Len() != 0 || store.Queued() != 0 {
						t.Errorf("%d leases and %d entries of the queue are left", store.Len(), store.Queued())
					}
				})
			})
		}
	}
}

func checkDrain(t *testing.T, l locker.Locker, rule locker.Rule) {
	rule.Key, rule.TTL = "a", time.Second
	begun, ran := make(chan struct{}), make(chan error, 1)
	go func() {
		ran <- locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
			close(begun)
			time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
			return ctx.Err()
		})
	}()
	<-begun
	writer := locker.Rule{Key: "a", Limit: rule.Limit}
	waiter, second := startWaiting(t, l, writer), startWaiting(t, l, writer)
	start := time.Now()
	drained := make(chan error, 2)
	for range 2 { // a second Drain waits as well
		go func() { drained <- locker.Drain(t.Context(), l) }()
	}
	<-waiter.ended
	<-second.ended
	checkElapsed(t, start, 0, 0)
	refusedByDrain(t, waiter.err, "a")
	refusedByDrain(t, second.err, "a")
	for _, key := range []string{"a", "free"} {
		refusedByDrain(t, locker.Run(t.Context(), l, locker.Rule{Key: key, Limit: rule.Limit, Mode: rule.Mode}, mustNotRun(t)), key)
		refusedByDrain(t, locker.RunAll(t.Context(), l, []locker.Rule{{Key: key, Limit: rule.Limit}, {Key: "z", Limit: rule.Limit}}, mustNotRun(t)), key)
	}
	for range 2 {
		if err := <-drained; err != nil {
			t.Error(err)
		}
	}
	checkElapsed(t, start, 10*time.Second, 0)
	if err := <-ran; err != nil {
		t.Errorf("the holder was cut: %v", err)
	}
}

// The work of a holder cannot end without the further locks that it needs. So a caller whose
// context has a lease may take them during a Drain, and may wait for them.
func TestAHolderTakesFurtherLocksDuringDrain(t *testing.T) {
	for kind := range drainables(t, lockertest.NewLocker(t, lockertest.NewMemory())) {
		t.Run(kind, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := drainables(t, e)[kind]
				other := acquire(t, lockertest.NewLocker(t, store.NewProcess()), locker.Rule{Key: "b"})
				begun, draining := make(chan struct{}), make(chan struct{})
				ran := make(chan error, 1)
				go func() {
					ran <- locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
						close(begun)
						return locker.Run(ctx, e, locker.Rule{Key: "b"}, func(ctx context.Context) error { // waits when Drain begins
							<-draining
							return locker.RunAll(ctx, l, rulesOf("c", "d"), func(context.Context) error { return nil }) // comes later
						})
					})
				}()
				<-begun
				synctest.Wait()
				drained := make(chan error, 1)
				go func() { drained <- e.Drain(t.Context()) }()
				synctest.Wait()
				close(draining)
				release(t, other)
				if err := <-ran; err != nil {
					t.Errorf("the holder could not finish: %v", err)
				}
				if err := <-drained; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A holder that does not end in time is told so: its context ends with Drain's, and its lease is
// kept until the release. Close then waits for the release.
func TestTheHoldersTimeIsOverWhenDrainsContextEnds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := l.Drain(ctx)
		checkElapsed(t, start, 5*time.Second, 0)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 leases were still held") {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(lease.Context()), "a", locker.ErrClosed)
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
		if info, _ := store.Inspect(t.Context(), "a"); !info.Held {
			t.Error("the lease was not kept until its release")
		}
		ended, stop := context.WithCancel(t.Context())
		stop()
		if err := l.Drain(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("the second Drain returned %v while the lease was held", err)
		}
		release(t, lease)
		if err := l.Drain(ended); err != nil {
			t.Errorf("nothing is held: %v", err)
		}
	})
}

// Close during a Drain ends the contexts of the holders at once, and Drain says so.
func TestCloseEndsADrain(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(t.Context()) }()
		synctest.Wait()
		if err := lease.Context().Err(); err != nil {
			t.Fatalf("Drain has ended the holder's context: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-drained; !errors.Is(err, locker.ErrClosed) {
			t.Errorf("Drain returned %v", err)
		}
		wantErr(t, context.Cause(lease.Context()), "a", locker.ErrClosed)
		if err := l.Drain(t.Context()); err != nil {
			t.Errorf("Drain after Close returned %v", err)
		}
		release(t, lease)
	})
}

// A holder that wants a further lock while Close ends its context is refused, and leaves nothing
// for which a later Drain would wait.
func TestDrainAfterACloseThatRefusedAHolderReturns(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
		ran := make(chan error, 1)
		go func() {
			ran <- locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
				<-ctx.Done()
				_, err := l.Acquire(context.WithoutCancel(ctx), locker.Rule{Key: "b"})
				wantErr(t, err, "b", locker.ErrClosed)
				return nil
			})
		}()
		synctest.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := l.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Only a lease of the same Locker, which has not ended, makes its caller a holder.
func TestDrainRefusesCallersWithOtherLeases(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, other := lockertest.NewLocker(t, store), lockertest.NewLocker(t, lockertest.NewMemory())
		kept, ended, foreign := acquire(t, l, locker.Rule{Key: "kept"}), acquire(t, l, locker.Rule{Key: "ended"}), acquire(t, other, locker.Rule{Key: "foreign"})
		release(t, ended)
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(t.Context()) }()
		synctest.Wait()
		for name, lease := range map[string]*locker.Lease{"of another Locker": foreign, "that has ended": ended} {
			next, err := l.Acquire(context.WithoutCancel(lease.Context()), locker.Rule{Key: "new"})
			if err == nil {
				release(t, next)
			}
			t.Log("a lease " + name)
			refusedByDrain(t, err, "new")
		}
		release(t, acquireInside(t, l, kept, locker.Rule{Key: "new"}))
		release(t, kept)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		release(t, foreign)
	})
}

// A lease that was lost, and a caller that left, are no holders.
func TestDrainDoesNotWaitForWhatHasEnded(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lost := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		left := startWaiting(t, l, locker.Rule{Key: "a"})
		left.cancel()
		<-left.ended
		time.AfterFunc(3*time.Second, func() { store.Steal("a") })
		start := time.Now()
		if err := l.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkElapsed(t, start, 3*time.Second, time.Second)
		wantErr(t, context.Cause(lost.Context()), "a", locker.ErrLost)
	})
}

func TestDrainRefusesALockerThatItCannotDrain(t *testing.T) {
	l := struct{ locker.Locker }{lockertest.NewLocker(t, lockertest.NewMemory())}
	if err := locker.Drain(t.Context(), l); !errors.Is(err, locker.ErrUnsupported) {
		t.Fatal(err)
	}
}

// Whoever acquires while Drain begins is either a holder, for which Drain waits, or is refused. No
// lease is granted after Drain has returned.
func TestNoLeaseIsGrantedAfterDrainHasReturned(t *testing.T) {
	server := redistest.Shared(t)
	for kind, newLocker := range map[string]func() (*locker.Engine, error){
		"New":          func() (*locker.Engine, error) { return locker.New(server.Client(t)) },
		"NewReadWrite": func() (*locker.Engine, error) { return locker.NewReadWrite(server.Client(t)) },
		"NewSemaphore": func() (*locker.Engine, error) { return locker.NewSemaphore(server.Client(t), 2) },
		"NewRedlock": func() (*locker.Engine, error) {
			clients := make([]locker.Client, 3)
			for i := range clients {
				clients[i] = redistest.Start(t).Client(t)
			}
			if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
				return nil, err
			}
			return locker.NewRedlock(clients)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			for range 5 {
				l, err := newLocker()
				if err != nil {
					t.Fatal(err)
				}
				checkNoLateLease(t, l, "drain:"+kind)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func checkNoLateLease(t *testing.T, l *locker.Engine, key string) {
	var drained atomic.Bool
	ended := make(chan error, 8)
	for range cap(ended) {
		go func() {
			for {
				err := locker.Run(context.Background(), l, locker.Rule{Key: key}, func(ctx context.Context) error {
					if drained.Load() {
						t.Error("a lease was granted after Drain")
					}
					return ctx.Err()
				})
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the load itself; nothing depends on how far it gets
	if err := l.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	drained.Store(true)
	for range cap(ended) {
		refusedByDrain(t, <-ended, key)
	}
}
