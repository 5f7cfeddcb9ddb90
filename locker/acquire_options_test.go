package locker_test

import (
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

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
		for range 2 { // the second acquire begins again with the first pause
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrBusy)
			synctest.Wait() // wait until the waiter has left the queue, because only the head polls a foreign holder
		}
		checkElapsed(t, start, 6*time.Second, 0)
	})
}

func TestInvalidRulesSendNothing(t *testing.T) {
	long := strings.Repeat("k", 513)
	for name, tc := range map[string]struct {
		rule locker.Rule
		want error
		text string
	}{
		"empty key":               {locker.Rule{}, locker.ErrInvalidKey, "empty"},
		"over-long key":           {locker.Rule{Key: long}, locker.ErrInvalidKey, "512"},
		"reserved key":            {locker.Rule{Key: "latchkit:f:{1}"}, locker.ErrInvalidKey, "latchkit:"},
		"brace without a tag":     {locker.Rule{Key: "a}b"}, locker.ErrInvalidKey, "slot"},
		"empty tag":               {locker.Rule{Key: "a{}b"}, locker.ErrInvalidKey, "slot"},
		"negative TTL":            {locker.Rule{Key: "a", TTL: -time.Second}, locker.ErrInvalidRule, "TTL"},
		"sub-millisecond TTL":     {locker.Rule{Key: "a", TTL: time.Microsecond}, locker.ErrInvalidRule, "1ms"},
		"sub-millisecond OnceFor": {locker.Rule{Key: "a", OnceFor: time.Microsecond}, locker.ErrInvalidRule, "OnceFor"},
		"endless TTL":             {locker.Rule{Key: "a", TTL: math.MaxInt64}, locker.ErrInvalidRule, "10 years"},
		"endless OnceFor":         {locker.Rule{Key: "a", OnceFor: math.MaxInt64}, locker.ErrInvalidRule, "OnceFor"},
		"negative KeepFor":        {locker.Rule{Key: "a", KeepFor: -1}, locker.ErrInvalidRule, "KeepFor"},
		"negative EndAfter":       {locker.Rule{Key: "a", EndAfter: -1}, locker.ErrInvalidRule, "EndAfter"},
		"negative Wait":           {locker.Rule{Key: "a", Wait: -2}, locker.ErrInvalidRule, "NoWait"},
		"EndAfter before KeepFor": {locker.Rule{Key: "a", KeepFor: 2 * time.Second, EndAfter: time.Second}, locker.ErrInvalidRule, "KeepFor"},
		"TTL above the limit":     {locker.Rule{Key: "a", TTL: time.Hour}, locker.ErrInvalidRule, "WithMaxTTL"},
		"KeepFor above it":        {locker.Rule{Key: "a", KeepFor: time.Hour}, locker.ErrInvalidRule, "WithMaxTTL"},
		"KeepFor of a reader":     {locker.Rule{Key: "a", Mode: locker.Shared, KeepFor: time.Second}, locker.ErrInvalidRule, "use Exclusive"},
		"no such mode":            {locker.Rule{Key: "a", Mode: 7}, locker.ErrInvalidRule, "Mode"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, locker.WithMaxTTL(time.Minute))
				_, err := l.Acquire(t.Context(), tc.rule)
				wantErr(t, err, tc.rule.Key, tc.want)
				wantNot(t, err, locker.ErrBusy)
				if !strings.Contains(err.Error(), tc.text) {
					t.Fatalf("%q does not say %q", err, tc.text)
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
			release(t, acquire(t, l, locker.Rule{Key: key, TTL: 1500 * time.Microsecond, KeepFor: time.Minute}))
		}
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: time.Millisecond, Wait: time.Second})
		// The holder does not use the last 2 ms of a lease (the drift), so such a lease would be
		// over before it begins.
		wantErr(t, err, "a", locker.ErrInvalidRule)
		if !strings.Contains(err.Error(), "raise TTL") {
			t.Fatal(err)
		}
	})
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []locker.Option
		text string
	}{
		"endless TTL":      {[]locker.Option{locker.WithTTL(math.MaxInt64)}, "WithTTL"},
		"no TTL":           {[]locker.Option{locker.WithTTL(0)}, "WithTTL"},
		"endless MaxTTL":   {[]locker.Option{locker.WithMaxTTL(math.MaxInt64)}, "WithMaxTTL"},
		"MaxTTL too short": {[]locker.Option{locker.WithMaxTTL(time.Second)}, "WithMaxTTL"},
		"adaptive of 2 ms": {[]locker.Option{locker.WithAdaptiveTTL(2*time.Millisecond, time.Second)}, "ends before its holder learns of it"},
		"reserved prefix":  {[]locker.Option{locker.WithPrefix("latchkit:")}, "WithPrefix"},
		"negative waiters": {[]locker.Option{locker.WithMaxWaiters(-1)}, "WithMaxWaiters"},
		"huge prefix":      {[]locker.Option{locker.WithPrefix(strings.Repeat("p", 300))}, "WithPrefix"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := locktest.NewEngine(lockertest.NewMemory(), tc.opts...); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("%v, want it to name %s", err, tc.text)
			}
		})
	}
}

func TestABackoffOfZerosAsksAtMostOnceAMillisecond(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "a"})
		zeros := lockertest.NewLocker(t, store.NewProcess(), locker.WithoutQueue(), locker.WithBackoff(locker.Exponential(0, 0)))
		asked := store.Calls(locker.OpAcquire)
		_, err := zeros.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 100 * time.Millisecond})
		wantErr(t, err, "a", locker.ErrBusy)
		if n := store.Calls(locker.OpAcquire) - asked; n > 102 {
			t.Errorf("%d questions in 100 ms", n)
		}
	})
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
	if got := fmt.Sprint(take(locker.Exponential(5*ms, 5*ms), 3)); got != "[5ms 5ms 5ms]" {
		t.Error(got)
	}
	growing := locker.Exponential(5*ms, 30*ms)
	for range 2 {
		if got := fmt.Sprint(take(growing, 5)); got != "[5ms 10ms 20ms 30ms 30ms]" {
			t.Error(got)
		}
	}
	seen := map[time.Duration]bool{}
	for _, d := range take(locker.Jitter(locker.Exponential(10*ms, 10*ms)), 200) {
		if d < 5*ms || d > 10*ms {
			t.Fatalf("%v", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Fatalf("%d different pauses of 200", len(seen))
	}
}
