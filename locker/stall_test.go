package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// NoWait means that the caller waits for no holder. A server that stands still for a moment, as
// during a fork or a slow fsync, is no holder. The caller gets the lock, or learns of the holder,
// as soon as the server answers.
func TestAStallOfTheServerFailsNoCallerWithNoWait(t *testing.T) {
	t.Parallel()
	// The bubble below has the exact second. Here, a busy machine has 0.4 s for the answers.
	for _, stall := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(stall.String(), func(t *testing.T) {
			t.Parallel()
			servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
			client := func(s *redistest.Server) *redis.Client {
				return s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
			}
			opened, err := locker.Open("redis://" + servers[0].Addr())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = opened.Close(context.Background()) })
			clients := []locker.Client{client(servers[0]), client(servers[1]), client(servers[2])}
			if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
				t.Fatal(err)
			}
			quorum, err := locker.NewRedlock(clients)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = quorum.Close(context.Background()) })
			lockers := map[string]*locker.Engine{
				"Open": opened, "New": newSingle(t, clients[0]), "default client": newSingle(t, servers[0].Client(t)),
				"semaphore": newSemaphore(t, clients[0], 2), "readers": newReadWrite(t, clients[0]), "quorum": quorum,
			}
			other := newSingle(t, clients[0])
			holder := acquire(t, other, locker.Rule{Key: "held"})
			for name, l := range lockers {
				for range 3 { // the servers are fast
					release(t, acquire(t, l, locker.Rule{Key: name}))
				}
			}
			for _, s := range servers {
				s.Pause()
				time.AfterFunc(stall, s.Resume)
			}
			var work sync.WaitGroup
			try := func(name string, l *locker.Engine, rule locker.Rule) {
				work.Go(func() {
					rule.Wait = locker.NoWait
					lease, err := l.Acquire(t.Context(), rule)
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			for name, l := range lockers {
				try(name, l, locker.Rule{Key: "free:" + name})
			}
			try("a reader", lockers["readers"], locker.Rule{Key: "read", Mode: locker.Shared})
			work.Go(func() {
				if _, err := lockers["New"].Acquire(t.Context(), locker.Rule{Key: "held", Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
					t.Errorf("a held key: %v", err)
				}
			})
			work.Go(func() {
				rules := []locker.Rule{{Key: "all:1", Wait: locker.NoWait}, {Key: "all:2", Wait: locker.NoWait}}
				if err := locker.RunAll(t.Context(), lockers["New"], rules, doNothing); err != nil {
					t.Errorf("two keys: %v", err)
				}
			})
			work.Wait()
			release(t, holder)
			for name, l := range lockers { // no question without an answer has left a lease
				release(t, acquire(t, l, locker.Rule{Key: "free:" + name, Wait: time.Second}))
			}
		})
	}
}

func doNothing(context.Context) error { return nil }

// The server answers nothing for longer than a second.
func TestACallerWithNoWaitAsksForASecond(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		for _, rules := range [][]locker.Rule{{{Key: "a", Wait: locker.NoWait}}, {{Key: "a", Wait: locker.NoWait}, {Key: "b", Wait: locker.NoWait}}} {
			start := time.Now()
			err := locker.RunAll(t.Context(), l, rules, mustNotRun(t))
			wantErr(t, err, "a", locker.ErrUnavailable)
			checkElapsed(t, start, time.Second, 500*time.Millisecond)

			start = time.Now()
			time.AfterFunc(900*time.Millisecond, func() { store.Fail(locker.OpAcquire, nil) })
			if err := locker.RunAll(t.Context(), l, rules, doNothing); err != nil {
				t.Error(err)
			}
			checkElapsed(t, start, 900*time.Millisecond, 500*time.Millisecond)
			store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		}
		store.Fail(locker.OpAcquire, nil)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}

// The pauses of the Backoff are for callers that wait for a holder.
func TestALongBackoffDelaysNoCallerWithNoWait(t *testing.T) {
	virtual(t, func(t *testing.T, memory *lockertest.Memory) {
		l := lockertest.NewLocker(t, memory, locker.WithBackoff(func(yield func(time.Duration) bool) {
			for yield(time.Minute) {
			}
		}))
		memory.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		start := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrUnavailable)
		checkElapsed(t, start, time.Second, 500*time.Millisecond)
	})
}

// A question of RunAll was executed and its answer lost, and then the server refuses questions for a
// while. The caller does not meet its own leases as those of another holder: it asks again with the
// same tokens.
func TestRunAllWithNoWaitIsNotBusyWithItsOwnLeases(t *testing.T) {
	virtual(t, func(t *testing.T, memory *lockertest.Memory) {
		l := lockertest.NewLocker(t, memory)
		memory.LoseReplies(locker.OpAcquire, 1)
		refuse := time.AfterFunc(0, func() {
			memory.Fail(locker.OpAcquire, &store.Refusal{Temporary: true, Err: errors.New("LOADING")})
		})
		defer refuse.Stop()
		time.AfterFunc(300*time.Millisecond, func() { memory.Fail(locker.OpAcquire, nil) })
		rules := []locker.Rule{{Key: "a", Wait: locker.NoWait}, {Key: "b", Wait: locker.NoWait}}
		if err := locker.RunAll(t.Context(), l, rules, doNothing); err != nil {
			t.Error(err)
		}
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}
