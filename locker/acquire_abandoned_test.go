package locker_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	steps "github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAContextThatEndsIsToldApartFromBusy(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		defer release(t, acquire(t, l, locker.Rule{Key: "a"}))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
		checkElapsed(t, start, time.Second, 0)
		wantErr(t, err, "a", context.Canceled, locker.ErrBusy)

		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, locker.Rule{Key: "a"})
		wantErr(t, err, "a", context.DeadlineExceeded, locker.ErrBusy)
		wantNot(t, err, locker.ErrUnavailable)
	})
}

func TestADeadContextSendsNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := lockertest.NewLocker(t, store).Acquire(ctx, locker.Rule{Key: "a"})
		wantErr(t, err, "a", context.Canceled)
		wantNot(t, err, locker.ErrBusy, locker.ErrUnavailable)
		if store.Calls(locker.OpAcquire) != 0 {
			t.Fatal("the Store was asked")
		}
	})
}

func TestAHangingCallDoesNotHoldUpItsCaller(t *testing.T) {
	for name, tc := range map[string]struct {
		rule     locker.Rule
		cancel   bool
		want     []error
		unwanted []error
	}{
		"a deadline": {rule: locker.Rule{}, want: []error{context.DeadlineExceeded, locker.ErrUnavailable}, unwanted: []error{locker.ErrBusy}},
		"a cancel":   {rule: locker.Rule{}, cancel: true, want: []error{context.Canceled}, unwanted: []error{locker.ErrBusy, locker.ErrUnavailable}},
		"a Wait":     {rule: locker.Rule{Wait: 50 * time.Millisecond}, want: []error{locker.ErrUnavailable}, unwanted: []error{locker.ErrBusy}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				store.Delay(locker.OpAcquire, 10*time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if tc.cancel {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(100*time.Millisecond, cancel)
				}
				defer cancel()
				rule := tc.rule
				rule.Key = "a"
				start := time.Now()
				_, err := l.Acquire(ctx, rule)
				checkElapsed(t, start, 50*time.Millisecond, 50*time.Millisecond)
				wantErr(t, err, "a", tc.want...)
				wantNot(t, err, tc.unwanted...)

				time.Sleep(time.Minute) // by now, the server has run the late call after its undo
				if store.Len() != 0 {
					t.Fatal("the abandoned acquire took the key")
				}
			})
		})
	}
}

func TestAnAbandonedAcquireIsUndoneOnceTheServerAnswers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		wantNot(t, loseAcquire(t, l, store, locker.Rule{Key: "a"}), locker.ErrBusy)
		time.Sleep(5 * time.Second)
		if store.Len() != 1 {
			t.Fatal("positive control: the lost acquire should still hold the key")
		}
		store.Fail(locker.OpRelease, nil)
		time.Sleep(time.Second)
		if store.Len() != 0 {
			t.Fatal("the undo was not repeated")
		}
	})
}

// spy records the claims of releases.
type spy struct {
	store.Store
	mu       sync.Mutex
	releases []store.Claim
	acquires []store.Claim
}

func (s *spy) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.mu.Lock()
	s.acquires = append(s.acquires, c)
	s.mu.Unlock()
	return s.Store.Acquire(ctx, c)
}

func (s *spy) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.mu.Lock()
	s.releases = append(s.releases, c)
	s.mu.Unlock()
	return s.Store.Release(ctx, c)
}

func TestAReleaseUndoesExactlyWhenAnAcquireIsUnanswered(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := &spy{Store: store}
		l := lockertest.NewLocker(t, s)
		release(t, acquire(t, l, locker.Rule{Key: "clear"}))
		store.LoseReplies(locker.OpAcquire, 1)
		release(t, acquire(t, l, locker.Rule{Key: "unclear"}))
		if len(s.releases) != 2 || s.releases[0].TombstoneTTL != 0 || s.releases[1].TombstoneTTL < time.Minute {
			t.Fatalf("releases %+v", s.releases)
		}
	})
}

func TestAGrantThatMeetsACancelIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		for range 50 { // 50 times, because chance decides whether the grant or the cancellation is noticed first
			l := lockertest.NewLocker(t, cancelling{store, t})
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), cancelling{}, new(context.CancelFunc)))
			*ctx.Value(cancelling{}).(*context.CancelFunc) = cancel
			_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
			wantErr(t, err, "a", context.Canceled)
			time.Sleep(time.Second)
			if store.Len() != 0 {
				t.Fatal("the key stays taken")
			}
		}
	})
}

// endsUnseen is a context that ends between the answer and the next check. Its Err returns the
// error already, but its Done is not closed yet.
type endsUnseen struct {
	context.Context
	ended *atomic.Bool
}

func (c endsUnseen) Done() <-chan struct{} { return nil }

func (c endsUnseen) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// ending is a Store that marks its caller's context as ended when it grants a lease.
type ending struct {
	*lockertest.Memory
	ended *atomic.Bool
}

func (s ending) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	defer s.ended.Store(true)
	return s.Memory.Acquire(ctx, c)
}

func TestAGrantToADeadCallerIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var ended atomic.Bool
		l := lockertest.NewLocker(t, ending{store, &ended})
		_, err := l.Acquire(endsUnseen{t.Context(), &ended}, locker.Rule{Key: "a"})
		wantErr(t, err, "a", context.Canceled)
		synctest.Wait()
		if store.Len() != 0 {
			t.Fatal("the key stays taken")
		}
	})
}

// cancelling is a Store that cancels its caller's context when it grants a lease.
type cancelling struct {
	*lockertest.Memory
	_ *testing.T
}

func (c cancelling) Acquire(ctx context.Context, claim store.Claim) (store.Grant, error) {
	g, err := c.Memory.Acquire(ctx, claim)
	(*ctx.Value(cancelling{}).(*context.CancelFunc))()
	return g, err
}

// If a caller takes back its call before the call is sent, there must be no undo.
func TestACallThatWasNotSentIsNotUndone(t *testing.T) {
	virtual(t, func(t *testing.T, memory *lockertest.Memory) {
		s := &unsent{Memory: memory, Steps: steps.Wrap(memory, nil, new(steps.Pool), func(error) {})}
		l := lockertest.NewLocker(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
		wantErr(t, err, "a", context.DeadlineExceeded, locker.ErrUnavailable)
		if n := s.undos.Load(); n != 0 {
			t.Errorf("%d undos of a call that was not sent", n)
		}
	})
}

// unsent is a Store whose acquires are never sent.
type unsent struct {
	*lockertest.Memory
	steps.Steps
	undos atomic.Int32
}

func (s *unsent) Begin(_ context.Context, _ steps.Step, _ store.Claim, onAnswer func(store.Grant, error)) *steps.Future {
	f := new(steps.Future)
	f.Init(nil, neverSent{}, onAnswer)
	return f
}

func (s *unsent) Repeat(steps.Chore) { s.undos.Add(1) }

// neverSent is a call that still waits to be sent.
type neverSent struct{}

func (neverSent) Leave() (sent bool) { return false }
