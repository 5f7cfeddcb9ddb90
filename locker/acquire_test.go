package locker_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
)

func TestABusyKeyIsRefusedWithTheTimeToComeBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
		defer release(t, lease)

		start := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		since(t, start, 0, 0)
		e := wantErr(t, err, "a", locker.ErrBusy)
		wantNot(t, err, locker.ErrUnavailable)
		if e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
			t.Fatalf("retry after %v", e.RetryAfter)
		}

		_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 3 * time.Second})
		since(t, start, 3*time.Second, 0)
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "retry after") || !strings.Contains(err.Error(), "acquire a") {
			t.Fatalf("the text does not teach: %v", err)
		}
	})
}

func TestAForeignHolderWithoutEndGivesATimeToComeBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		store.Occupy("a", 0)
		_, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
		if e := wantErr(t, err, "a", locker.ErrBusy); e.RetryAfter < time.Millisecond {
			t.Fatalf("retry after %v", e.RetryAfter)
		}
		if calls := store.Calls(locker.OpAcquire); calls > 30 {
			t.Fatalf("%d calls in a second: it spins", calls)
		}
	})
}

func TestAReleaseWakesAWaiterAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Constant(time.Hour)), locker.WithPrefix("p:"))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		got := make(chan *locker.Lease)
		go func() {
			next, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		synctest.Wait()
		start := time.Now()
		release(t, lease)
		release(t, <-got)
		since(t, start, 0, 0)
	})
}

func TestAWaiterComesWhenTheHoldersTimeIsOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Constant(time.Hour)))
		store.Occupy("a", 5*time.Second)
		start := time.Now()
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		since(t, start, 5*time.Second, 2*time.Millisecond)
	})
}

func TestAContextThatEndsIsToldApartFromBusy(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		defer release(t, acquire(t, l, locker.Rule{Key: "a"}))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
		since(t, start, time.Second, 0)
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
		rule   locker.Rule
		cancel bool
		want   []error
		not    []error
	}{
		"a deadline": {rule: locker.Rule{}, want: []error{context.DeadlineExceeded, locker.ErrUnavailable}, not: []error{locker.ErrBusy}},
		"a cancel":   {rule: locker.Rule{}, cancel: true, want: []error{context.Canceled}, not: []error{locker.ErrBusy, locker.ErrUnavailable}},
		"a Wait":     {rule: locker.Rule{Wait: 50 * time.Millisecond}, want: []error{locker.ErrUnavailable}, not: []error{locker.ErrBusy}},
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
				since(t, start, 50*time.Millisecond, 50*time.Millisecond)
				wantErr(t, err, "a", tc.want...)
				wantNot(t, err, tc.not...)

				time.Sleep(time.Minute) // the call has run by now, after its undo
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
		store.LoseReplies(locker.OpAcquire, 1)
		store.Fail(locker.OpRelease, errors.New("EOF"))
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrUnavailable)
		wantNot(t, err, locker.ErrBusy)
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
	locker.Store
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

func TestEveryHoldHasATokenOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := &spy{Store: store}
		l := lockertest.NewLocker(t, s)
		for range 100 {
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
		}
		store.Delay(locker.OpAcquire, 150*time.Millisecond) // longer than the lease: granted too late, and tried again
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: 100 * time.Millisecond, Wait: 5 * time.Second})
		wantErr(t, err, "a", locker.ErrUnavailable)
		if len(s.acquires) < 103 {
			t.Fatal("positive control: nothing was tried again")
		}
		seen := map[string]bool{}
		for _, c := range s.acquires {
			if seen[c.Owner] {
				t.Fatal("a token was used for two holds")
			}
			seen[c.Owner] = true
		}
		store.Delay(locker.OpAcquire, 0)
		time.Sleep(time.Minute)
		if store.Len() != 0 {
			t.Fatal("the late grants were not given back")
		}
	})
}

func TestWhoIsNeverAnsweredHearsUnavailableWithinASecond(t *testing.T) {
	for name, failure := range map[string]error{
		"unclear":   errors.New("EOF"),
		"temporary": &store.Refusal{Temporary: true, Err: errors.New("LOADING")},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, backend *lockertest.Memory) {
				l := lockertest.NewLocker(t, backend)
				backend.Fail(locker.OpAcquire, failure)
				start := time.Now()
				_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
				since(t, start, time.Second, 300*time.Millisecond)
				wantErr(t, err, "a", locker.ErrUnavailable, failure)
				wantNot(t, err, locker.ErrBusy)
				if backend.Calls(locker.OpAcquire) < 3 {
					t.Fatal("it was not repeated")
				}

				start = time.Now()
				_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
				since(t, start, 0, 0)
				wantErr(t, err, "a", locker.ErrUnavailable)
			})
		})
	}
}

func TestAWaiterThatSawAHolderOutlastsAnOutage(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Occupy("a", 20*time.Second)
		time.AfterFunc(time.Second, func() { store.Fail(locker.OpAcquire, errors.New("EOF")) })
		time.AfterFunc(30*time.Second, func() { store.Fail(locker.OpAcquire, nil) })
		start := time.Now()
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		since(t, start, 30*time.Second, time.Second)
	})
}

func TestARefusalForGoodIsReturnedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend)
		oom := &store.Refusal{Err: errors.New("OOM")}
		backend.Fail(locker.OpAcquire, oom)
		start := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		since(t, start, 0, 0)
		wantErr(t, err, "a", locker.ErrUnavailable, oom)
		if n := backend.Calls(locker.OpAcquire); n != 1 {
			t.Fatalf("%d calls", n)
		}
		if n := backend.Calls(locker.OpRelease); n != 0 {
			t.Fatalf("%d undos of a call that did not run", n)
		}
	})
}

func TestAGrantThatMeetsACancelIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		for range 50 { // which of the two is seen first is chance
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

// endsUnseen is a context that ends in the moment between the answer and the look at it: Err says so, Done did not.
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

// ending is a Store that ends its caller's context with the grant.
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

// cancelling cancels its caller's context the moment the grant is there.
type cancelling struct {
	*lockertest.Memory
	_ *testing.T
}

func (c cancelling) Acquire(ctx context.Context, claim store.Claim) (store.Grant, error) {
	g, err := c.Memory.Acquire(ctx, claim)
	(*ctx.Value(cancelling{}).(*context.CancelFunc))()
	return g, err
}

func TestMaxWaitersCountsPerKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMaxWaiters(2))
		a, b := acquire(t, l, locker.Rule{Key: "a"}), acquire(t, l, locker.Rule{Key: "b"})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { release(t, acquire(t, l, locker.Rule{Key: "a"})) })
		}
		wg.Go(func() { release(t, acquire(t, l, locker.Rule{Key: "b"})) })
		synctest.Wait()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		if e := wantErr(t, err, "a", locker.ErrTooManyWaiters); e.RetryAfter < time.Millisecond {
			t.Fatalf("retry after %v", e.RetryAfter)
		}
		wantNot(t, err, locker.ErrBusy)
		release(t, a)
		release(t, b)
		wg.Wait()
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}

func TestABackoffThatEndsEndsTheWait(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var three iter.Seq[time.Duration] = func(yield func(time.Duration) bool) {
			for range 3 {
				if !yield(time.Second) {
					return
				}
			}
		}
		l := lockertest.NewLocker(t, store, locker.WithBackoff(three))
		store.Occupy("a", 0)
		start := time.Now()
		for range 2 { // ranging again starts over
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrBusy)
			synctest.Wait() // until it has left the queue: the head alone polls a foreign holder
		}
		since(t, start, 6*time.Second, 0)
	})
}

func TestInvalidRulesSendNothing(t *testing.T) {
	long := strings.Repeat("k", 513)
	for name, tc := range map[string]struct {
		rule locker.Rule
		want error
		says string
	}{
		"empty key":             {locker.Rule{}, locker.ErrInvalidKey, "empty"},
		"over-long key":         {locker.Rule{Key: long}, locker.ErrInvalidKey, "512"},
		"reserved key":          {locker.Rule{Key: "latchkit:f:{1}"}, locker.ErrInvalidKey, "latchkit:"},
		"brace without a tag":   {locker.Rule{Key: "a}b"}, locker.ErrInvalidKey, "slot"},
		"empty tag":             {locker.Rule{Key: "a{}b"}, locker.ErrInvalidKey, "slot"},
		"negative TTL":          {locker.Rule{Key: "a", TTL: -time.Second}, locker.ErrInvalidRule, "TTL"},
		"sub-millisecond TTL":   {locker.Rule{Key: "a", TTL: time.Microsecond}, locker.ErrInvalidRule, "1ms"},
		"sub-millisecond Once":  {locker.Rule{Key: "a", Once: time.Microsecond}, locker.ErrInvalidRule, "Once"},
		"endless TTL":           {locker.Rule{Key: "a", TTL: math.MaxInt64}, locker.ErrInvalidRule, "10 years"},
		"endless Once":          {locker.Rule{Key: "a", Once: math.MaxInt64}, locker.ErrInvalidRule, "Once"},
		"negative AtLeast":      {locker.Rule{Key: "a", AtLeast: -1}, locker.ErrInvalidRule, "AtLeast"},
		"negative AtMost":       {locker.Rule{Key: "a", AtMost: -1}, locker.ErrInvalidRule, "AtMost"},
		"negative Wait":         {locker.Rule{Key: "a", Wait: -2}, locker.ErrInvalidRule, "NoWait"},
		"AtMost before AtLeast": {locker.Rule{Key: "a", AtLeast: 2 * time.Second, AtMost: time.Second}, locker.ErrInvalidRule, "AtLeast"},
		"TTL above the limit":   {locker.Rule{Key: "a", TTL: time.Hour}, locker.ErrInvalidRule, "WithMaxTTL"},
		"AtLeast above it":      {locker.Rule{Key: "a", AtLeast: time.Hour}, locker.ErrInvalidRule, "WithMaxTTL"},
		"no such mode":          {locker.Rule{Key: "a", Mode: 7}, locker.ErrInvalidRule, "Mode"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, locker.WithMaxTTL(time.Minute))
				_, err := l.Acquire(t.Context(), tc.rule)
				wantErr(t, err, tc.rule.Key, tc.want)
				wantNot(t, err, locker.ErrBusy)
				if !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("%q does not say %q", err, tc.says)
				}
				if store.Calls(locker.OpAcquire) != 0 {
					t.Fatal("the Store was asked")
				}
			})
		})
	}
}

func TestShortButLegalTimesAreNotRoundedAway(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		for _, key := range []string{"{tag}rest", "a{tag}}b", "ключ", "with space\x00and more"} {
			release(t, acquire(t, l, locker.Rule{Key: key, TTL: 1500 * time.Microsecond, AtLeast: time.Minute}))
		}
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: time.Millisecond, Wait: time.Second})
		wantErr(t, err, "a", locker.ErrUnavailable) // 1 ms is legal, and over before it begins: drift is 2 ms
		if !strings.Contains(err.Error(), "raise the TTL") {
			t.Fatal(err)
		}
	})
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []locker.Option
		says string
	}{
		"nil option":       {[]locker.Option{nil}, "nil"},
		"endless TTL":      {[]locker.Option{locker.WithTTL(math.MaxInt64)}, "WithTTL"},
		"no TTL":           {[]locker.Option{locker.WithTTL(0)}, "WithTTL"},
		"MaxTTL too short": {[]locker.Option{locker.WithMaxTTL(time.Second)}, "WithMaxTTL"},
		"nil Backoff":      {[]locker.Option{locker.WithBackoff(nil)}, "WithBackoff"},
		"negative waiters": {[]locker.Option{locker.WithMaxWaiters(-1)}, "WithMaxWaiters"},
		"huge prefix":      {[]locker.Option{locker.WithPrefix(strings.Repeat("p", 300))}, "WithPrefix"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := locker.New(lockertest.NewMemory(), tc.opts...); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v, want it to name %s", err, tc.says)
			}
		})
	}
	if _, err := locker.New(nil); err == nil {
		t.Fatal("a nil Store was accepted")
	}
	if _, err := locker.New((*lockertest.Memory)(nil)); err == nil {
		t.Fatal("a nil pointer was accepted as a Store")
	}
}

func TestThePrefixIsTheStoresAndTheKeyTheCallers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithPrefix("shop:"))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		defer release(t, lease)
		if lease.Key() != "a" {
			t.Fatalf("key %q", lease.Key())
		}
		if i, err := store.Inspect(t.Context(), "shop:a"); err != nil || !i.Held {
			t.Fatalf("%+v %v", i, err)
		}
		if i, err := l.Inspect(t.Context(), "a"); err != nil || i.Fence != lease.Fence() {
			t.Fatalf("%+v %v", i, err)
		}
	})
}

func TestBackoffs(t *testing.T) {
	take := func(b locker.Backoff, n int) (ds []time.Duration) {
		for d := range b {
			if ds = append(ds, d); len(ds) == n {
				break
			}
		}
		return ds
	}
	ms := time.Millisecond
	if got := fmt.Sprint(take(locker.Constant(5*ms), 3)); got != "[5ms 5ms 5ms]" {
		t.Error(got)
	}
	growing := locker.Exponential(5*ms, 30*ms)
	for range 2 {
		if got := fmt.Sprint(take(growing, 5)); got != "[5ms 10ms 20ms 30ms 30ms]" {
			t.Error(got)
		}
	}
	seen := map[time.Duration]bool{}
	for _, d := range take(locker.Jitter(locker.Constant(10*ms)), 200) {
		if d < 5*ms || d > 10*ms {
			t.Fatalf("%v", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Fatalf("%d different pauses of 200", len(seen))
	}
}

func TestAnOutageIsNotPolledAtTheHoldersPace(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Constant(time.Second)))
		store.Occupy("a", time.Millisecond)
		time.AfterFunc(500*time.Microsecond, func() { store.Fail(locker.OpAcquire, errors.New("EOF")) })
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Minute})
		wantErr(t, err, "a", locker.ErrUnavailable) // what the holder does by then, nobody knows
		wantNot(t, err, locker.ErrBusy)
		if n := store.Calls(locker.OpAcquire); n > 70 {
			t.Fatalf("%d calls in a minute of outage", n)
		}
	})
}
