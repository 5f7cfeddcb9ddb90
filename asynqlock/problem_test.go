package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// refusingLocker is a Locker that refuses every Rule, and records the Rule.
type refusingLocker struct {
	err   error
	asked locker.Rule
}

func (r *refusingLocker) Acquire(_ context.Context, rule locker.Rule) (*locker.Lease, error) {
	r.asked = rule
	return nil, r.err
}

// Inspect lets asynqlock.New accept rules that drop or archive tasks.
func (r *refusingLocker) Inspect(context.Context, string) (locker.Info, error) {
	return locker.Info{}, nil
}

// refuse runs a task without a server. The task does not get its lock, and refuse returns the
// task's Problem.
func refuse(t *testing.T, l *refusingLocker, policies ...asynqlock.Policy) *asynqlock.Problem {
	t.Helper()
	err := guard(t, l, policies...).Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it ran")
		return nil
	})).ProcessTask(t.Context(), job("42"))
	p, ok := errors.AsType[*asynqlock.Problem](err)
	if !ok || !errors.Is(err, l.err) || p.Type != "job" {
		t.Fatalf("%v, want a Problem that is %v", err, l.err)
	}
	return p
}

func TestEachRefusalHasItsVerdict(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		locker.ErrDone:           "already-done dropped",
		locker.ErrTooManyWaiters: "too-many-waiters snoozed",
		locker.ErrClosed:         "lock-closed snoozed",
		locker.ErrInvalidKey:     "invalid-key archived",
		locker.ErrInvalidRule:    "lock-misconfigured snoozed",
		locker.ErrUnsupported:    "lock-misconfigured snoozed",
		locker.ErrUnavailable:    "lock-unavailable snoozed",
		locker.ErrQuorum:         "lock-unavailable snoozed",
		context.Canceled:         "lock-unavailable snoozed",
		locker.ErrBusy:           "lock-busy archived",
	} {
		p := refuse(t, &refusingLocker{err: &locker.Error{Op: locker.OpAcquire, Key: "account:42", Err: err}}, asynqlock.Archive())
		if got := p.Code + " " + string(p.Verdict); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
		if dropped, archived := errors.Is(p, asynq.RevokeTask), errors.Is(p, asynq.SkipRetry); dropped != (p.Verdict == asynqlock.Dropped) || archived != (p.Verdict == asynqlock.Archived) {
			t.Errorf("%s: asynq drops the task: %t, archives it: %t", want, dropped, archived)
		}
	}
}

// The Locker's error names the holder, for operators of the locks. asynq keeps the text of a
// Problem beside the task, where more people read it.
func TestTheErrorOfATaskDoesNotNameTheHolder(t *testing.T) {
	t.Parallel()
	for _, policy := range []asynqlock.Policy{asynqlock.Archive(), asynqlock.Snooze(time.Minute)} {
		p := refuse(t, &refusingLocker{err: &locker.Error{Op: locker.OpAcquire, Key: "account:42", HolderMetadata: "report@pod-7f9c:1", Err: locker.ErrBusy}}, policy)
		if inside := p.Unwrap()[0].Error(); !strings.Contains(inside, "report@pod-7f9c") {
			t.Errorf("the control: the Locker's error is %q", inside)
		}
		if text := p.Error(); strings.Contains(text, "report") || strings.Contains(text, "7f9c") || !strings.Contains(text, asynqlock.CodeBusy) {
			t.Errorf("the text is %q", text)
		}
	}
}

// Tasks that were put off together come back at different times. The first task comes back when the
// lock may be free, and the other tasks come back soon after it.
func TestATaskComesBackWhenThereIsHope(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		policies []asynqlock.Policy
		hope     time.Duration // the RetryAfter that the Locker's error has
		least    time.Duration
	}{
		{nil, 0, 5 * time.Second},
		{nil, time.Millisecond, time.Second},
		{nil, 3 * time.Second, 3 * time.Second},
		{nil, time.Hour, 10 * time.Second},
		{[]asynqlock.Policy{asynqlock.Snooze(time.Minute)}, time.Millisecond, time.Minute},
	} {
		distinct := make(map[time.Duration]bool)
		for range 10 {
			p := refuse(t, &refusingLocker{err: &locker.Error{Op: locker.OpAcquire, RetryAfter: tc.hope, Err: locker.ErrBusy}}, tc.policies...)
			distinct[p.RetryAfter] = true
			if p.RetryAfter < tc.least || p.RetryAfter > tc.least*5/4+1 {
				t.Errorf("hope in %v: it comes again in %v, want %v or up to a quarter more", tc.hope, p.RetryAfter, tc.least)
			}
		}
		if len(distinct) == 1 {
			t.Errorf("hope in %v: ten tasks come again at the same time", tc.hope)
		}
	}
}

func TestPoliciesBecomeTheRule(t *testing.T) {
	t.Parallel()
	l := &refusingLocker{err: locker.ErrBusy}
	_ = refuse(t, l)
	if want := (locker.Rule{Key: "account:42", Name: "job", Wait: locker.NoWait}); l.asked != want {
		t.Errorf("asked for %+v, want %+v", l.asked, want)
	}
	_ = refuse(t, l, asynqlock.Once(time.Hour), asynqlock.Wait(5*time.Second),
		asynqlock.Rule(locker.Rule{Name: "booking", TTL: time.Minute, EndAfter: time.Hour, Mode: locker.Shared}))
	if want := (locker.Rule{
		Key: "account:42", Name: "booking", Mode: locker.Shared, TTL: time.Minute, Wait: 5 * time.Second, EndAfter: time.Hour, OnceFor: time.Hour,
	}); l.asked != want {
		t.Errorf("asked for %+v, want %+v", l.asked, want)
	}
}
