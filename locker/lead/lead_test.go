package lead_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// virtual runs a test with a virtual clock, in a bubble.
func virtual(t *testing.T, test func(t *testing.T, store *lockertest.Memory)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, lockertest.NewMemory()) })
}

// candidate is a process that wants to lead. The function fn of a candidate runs until the context
// of fn ends.
type candidate struct {
	*testing.T
	*lead.Leader
	terms   chan context.Context // gets the context of fn in each term
	running atomic.Int32         // how many calls of fn are running
	slow    atomic.Int64         // how long fn runs after its context has ended
	cancel  context.CancelFunc
	ended   chan error
}

// newCandidate returns a process that wants to lead, with the rule for the key "job".
func newCandidate(t *testing.T, l locker.Locker, rule locker.Rule, opts ...lead.Option) *candidate {
	t.Helper()
	rule.Key = "job"
	leader, err := lead.New(l, rule, append([]lead.Option{lead.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{T: t, Leader: leader, terms: make(chan context.Context, 1000), cancel: cancel, ended: make(chan error, 1)}
	go func() { c.ended <- leader.Run(ctx, c.serve) }()
	t.Cleanup(cancel)
	return c
}

func (c *candidate) serve(ctx context.Context) error {
	if c.running.Add(1) != 1 {
		c.Error("fn runs twice at a time")
	}
	defer c.running.Add(-1)
	c.terms <- ctx
	<-ctx.Done()
	time.Sleep(time.Duration(c.slow.Load()))
	return nil
}

// awaitTerm waits for the next term, and returns its context and its fence.
func (c *candidate) awaitTerm() (ctx context.Context, fence uint64) {
	c.Helper()
	select {
	case ctx = <-c.terms:
	case <-time.After(48 * time.Hour): // a bubble with renewals never ends by itself
		c.Fatal("it does not lead")
	}
	lease, ok := locker.FromContext(ctx)
	if !ok {
		c.Fatal("fn's context has no lease")
	}
	return ctx, lease.Fence()
}

// checkNotLeading checks that the process does not lead, and that fn does not run.
func (c *candidate) checkNotLeading() {
	c.Helper()
	synctest.Wait()
	if _, leading := c.Leading(); leading || len(c.terms) > 0 || c.running.Load() > 0 {
		c.Fatal("it leads as well")
	}
}

// stop ends Run, and returns its error.
func (c *candidate) stop() error {
	c.cancel()
	return <-c.ended
}

func revoke(t *testing.T, l *locker.Engine, fence uint64) {
	t.Helper()
	if err := l.Revoke(t.Context(), "job", fence, "on purpose"); err != nil {
		t.Fatal(err)
	}
}

// When a process stops, the process that has waited longest leads at once, with a larger fence.
func TestTheNextProcessLeadsWhenTheLeaderStops(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var all []*candidate
		for range 3 {
			all = append(all, newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{}))
			synctest.Wait()
		}
		var before uint64
		for i, c := range all {
			ctx, fence := c.awaitTerm()
			term, leading := c.Leading()
			if !leading || term.Fence != fence || fence <= before {
				t.Fatalf("it leads: %t, its term is %d, its fence is %d after %d", leading, term.Fence, fence, before)
			}
			for _, other := range all[i+1:] {
				other.checkNotLeading()
			}
			began := time.Now()
			if err := c.stop(); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(context.Cause(ctx), context.Canceled) {
				t.Errorf("fn's context ended by %v", context.Cause(ctx))
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("it took %v to stop", took)
			}
			before = fence
		}
	})
}

// fn may need some time after its context has ended. No other process leads before fn has
// returned.
func TestNoOtherProcessLeadsBeforeTheFunctionHasReturned(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		first := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{})
		first.awaitTerm()
		second := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{})
		first.slow.Store(int64(time.Minute))
		first.cancel()
		time.Sleep(59 * time.Second)
		second.checkNotLeading()
		if _, leading := first.Leading(); leading {
			t.Error("a process whose function was told to stop still says that it leads")
		}
		time.Sleep(time.Second)
		second.awaitTerm()
		if err := <-first.ended; err != nil {
			t.Error(err)
		}
	})
}

// The loss of the lease ends fn's context. The process is a candidate again when fn has returned,
// and not before.
func TestALostTermIsFollowedByAnother(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		c := newCandidate(t, l, locker.Rule{TTL: 3 * time.Second})
		ctx, fence := c.awaitTerm()
		c.slow.Store(int64(time.Minute))
		revoke(t, l, fence)
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, locker.ErrRevoked) {
			t.Errorf("fn's context ended by %v", cause)
		}
		time.Sleep(59 * time.Second)
		if info, err := l.Inspect(t.Context(), "job"); err != nil || info.Held || info.Waiters != 0 {
			t.Errorf("it stands although fn has not returned: %+v, %v", info, err)
		}
		c.slow.Store(0) // affects only the next term, because fn already sleeps
		if _, again := c.awaitTerm(); again <= fence {
			t.Errorf("the term after %d is %d", fence, again)
		}
		store.Wipe()
		c.awaitTerm()
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
}

// If fn returns while its context has not ended, Run ends and returns the same error. Then the key
// is free.
func TestTheFunctionsReturnEndsRun(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		torn := errors.New("the table is torn")
		for _, want := range []error{nil, torn} {
			if err := lead.Run(t.Context(), l, locker.Rule{Key: "job"}, func(context.Context) error { return want }); err != want {
				t.Errorf("%v, want %v", err, want)
			}
			if info, err := l.Inspect(t.Context(), "job"); err != nil || info.Held {
				t.Errorf("the key is still held: %+v, %v", info, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := lead.Run(ctx, l, locker.Rule{Key: "job"}, func(context.Context) error { cancel(); return torn })
		if err != torn {
			t.Errorf("an error beside the end of ctx: %v, want %v", err, torn)
		}
		ctx, cancel = context.WithCancel(t.Context())
		err = lead.Run(ctx, l, locker.Rule{Key: "job"}, func(ctx context.Context) error { cancel(); return context.Cause(ctx) })
		if err != nil {
			t.Errorf("the end of ctx is no error: %v", err)
		}
	})
}

// If fn returns an error after its context has ended, Run returns the error or logs it.
func TestErrorsAfterATermAreNotLost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, torn := lockertest.NewLocker(t, store), errors.New("the table is torn")
		var log strings.Builder
		leader, err := lead.New(l, locker.Rule{Key: "job"}, lead.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
		if err != nil {
			t.Fatal(err)
		}
		terms, ended := 0, make(chan error)
		go func() {
			ended <- leader.Run(t.Context(), func(ctx context.Context) error {
				terms++
				<-ctx.Done()
				if terms == 2 { // the end of the context is no failure of fn
					return ctx.Err()
				}
				return torn
			})
		}()
		for range 2 {
			synctest.Wait()
			leader.StepDown("on purpose")
			time.Sleep(2 * time.Second)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "the table is torn") {
			t.Errorf("two terms logged:\n%s", got)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, locker.ErrClosed) || !errors.Is(err, torn) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// ctx may end while fn still returns after the end of its term. Then fn's error may be the cause of
// its own context, which is not the cause of ctx.
func TestTheCauseOfATermIsNoErrorOfRun(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		leader, err := lead.New(lockertest.NewLocker(t, store), locker.Rule{Key: "job"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = leader.Run(ctx, func(term context.Context) error {
			leader.StepDown("on purpose")
			<-ctx.Done()
			return fmt.Errorf("stopped: %w", context.Cause(term))
		})
		if err != nil {
			t.Errorf("err = %v", err)
		}
	})
}

func TestAPanicGoesOnAndFreesTheLead(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		leader, err := lead.New(l, locker.Rule{Key: "job"})
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if got := recover(); got != "torn" {
					t.Errorf("recovered %v", got)
				}
			}()
			_ = leader.Run(t.Context(), func(context.Context) error { panic("torn") })
		}()
		if info, err := l.Inspect(t.Context(), "job"); err != nil || info.Held {
			t.Errorf("the key is still held: %+v, %v", info, err)
		}
		if _, leading := leader.Leading(); leading {
			t.Error("it says that it leads")
		}
		for range leader.Terms() { // ends, because the channel is closed
		}
	})
}

// A process that steps down becomes a candidate again, behind all other processes. If there is no
// other process, it leads again after a second.
func TestAProcessStepsDownBehindAllOthers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		first := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{})
		ctx, _ := first.awaitTerm()
		second := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{})
		synctest.Wait()
		if second.StepDown("it does not lead") {
			t.Error("a process that does not lead stepped down")
		}
		began := time.Now()
		if !first.StepDown("for an upgrade") {
			t.Error("the leader did not step down")
		}
		second.awaitTerm()
		if cause := context.Cause(ctx); !errors.Is(cause, lead.ErrSteppedDown) || !strings.Contains(cause.Error(), "job: this process has stepped down: for an upgrade") {
			t.Errorf("fn's context ended by %v", cause)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the second leads after %v", took)
		}
		if first.StepDown("once more") {
			t.Error("a process whose term is over stepped down")
		}
		time.Sleep(time.Hour)
		first.checkNotLeading()
		if err := second.stop(); err != nil {
			t.Error(err)
		}
		first.awaitTerm()
		for _, lasts := range []time.Duration{0, time.Hour} {
			time.Sleep(lasts)
			began = time.Now()
			first.StepDown("again")
			first.awaitTerm()
			if took := time.Since(began); took != time.Second {
				t.Errorf("alone, it leads again %v after a term of %v, want 1 s", took, lasts)
			}
		}
	})
}

// EndAfter makes the leaders take turns. When EndAfter is over, fn's context ends. When fn has
// returned, the next process leads. The two processes never lead at the same time.
func TestTermsRotate(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		rule := locker.Rule{EndAfter: time.Hour}
		one, other := newCandidate(t, lockertest.NewLocker(t, store), rule), newCandidate(t, lockertest.NewLocker(t, store), rule)
		synctest.Wait()
		if len(one.terms) == 0 {
			one, other = other, one
		}
		one.slow.Store(int64(5 * time.Second))
		for range 10 {
			ctx, _ := one.awaitTerm()
			began := time.Now()
			<-ctx.Done()
			if took := time.Since(began); took != time.Hour || !errors.Is(context.Cause(ctx), locker.ErrExpired) {
				t.Errorf("the term ended after %v by %v", took, context.Cause(ctx))
			}
			other.checkNotLeading()
			other.awaitTerm()
			if late := time.Since(began) - time.Hour; late > 5*time.Second {
				t.Errorf("the next term began %v after the end of the last", late)
			}
			one.checkNotLeading()
			other.StepDown("back")
		}
	})
}

// A term that ends by EndAfter does not count as short, even if EndAfter is less than the TTL. So
// Run does not pause before the process is a candidate again.
func TestARotationWithinATTLIsNoShortTerm(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		c := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{TTL: 10 * time.Second, EndAfter: 2 * time.Second})
		for range 5 {
			ctx, _ := c.awaitTerm()
			<-ctx.Done()
			ended := time.Now()
			next, _ := c.awaitTerm()
			if paused := time.Since(ended); paused > 100*time.Millisecond {
				t.Errorf("the next term began after %v", paused)
			}
			<-next.Done()
		}
	})
}

// If fn ignores the end of its term, its process does not lead for ever: the lease ends after the
// time of WithGrace.
func TestATermThatIsTooLongLosesItsLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		rule := locker.Rule{EndAfter: time.Hour}
		one := newCandidate(t, lockertest.NewLocker(t, store), rule, lead.WithGrace(time.Minute))
		one.awaitTerm()
		one.slow.Store(int64(5 * time.Minute))
		other := newCandidate(t, lockertest.NewLocker(t, store), rule)
		began := time.Now()
		other.awaitTerm()
		if took := time.Since(began); took < time.Hour+50*time.Second || took > time.Hour+2*time.Minute {
			t.Errorf("the other process leads after %v, want 1 h 1 min", took)
		}
		time.Sleep(10 * time.Minute) // by then, fn has returned
	})
}

func TestCloseEndsRun(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		closes := lockertest.NewLocker(t, store)
		leader := newCandidate(t, closes, locker.Rule{})
		ctx, _ := leader.awaitTerm()
		leader.slow.Store(int64(3 * time.Second))
		waits := lockertest.NewLocker(t, store)
		waiter := newCandidate(t, waits, locker.Rule{})
		synctest.Wait()
		if err := waits.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waiter.ended; !errors.Is(err, locker.ErrClosed) {
			t.Errorf("a process that waited: %v", err)
		}
		if err := closes.Close(t.Context()); err != nil { // Close waits until fn has returned
			t.Error(err)
		}
		closed := time.Now()
		if err := <-leader.ended; !errors.Is(err, locker.ErrClosed) || !errors.Is(context.Cause(ctx), locker.ErrClosed) {
			t.Errorf("the leader: %v, its context: %v", err, context.Cause(ctx))
		}
		if took := time.Since(closed); took > 0 {
			t.Errorf("Run ended %v after Close", took)
		}
		if store.Len() != 0 {
			t.Error("the key is still held")
		}
	})
}

// Without options, a leader's metadata shows its program, host and process. When the leader dies,
// the key is free after DefaultTTL.
func TestALeaderShowsItsProcess(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		c := newCandidate(t, l, locker.Rule{})
		c.awaitTerm()
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Inspect(t.Context(), "job")
		if err != nil || info.Metadata != fmt.Sprintf("lead.test@%s:%d", host, os.Getpid()) || info.Left != lead.DefaultTTL {
			t.Errorf("%+v %v, want this process for %v", info, err, lead.DefaultTTL)
		}
	})
}

func TestALeaderRunsOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		c := newCandidate(t, lockertest.NewLocker(t, store), locker.Rule{})
		c.awaitTerm()
		if err := c.Leader.Run(t.Context(), c.serve); err == nil || !strings.Contains(err.Error(), "make a Leader for each call") {
			t.Error(err)
		}
	})
}

func TestWhatCannotLeadIsRefused(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	var none *locker.Engine
	for says, f := range map[string]func() error{
		"Wait is -1ns":        func() error { _, err := lead.New(l, locker.Rule{Key: "job", Wait: locker.NoWait}); return err },
		"OnceFor is 1m0s":     func() error { _, err := lead.New(l, locker.Rule{Key: "job", OnceFor: time.Minute}); return err },
		"the Mode is shared":  func() error { _, err := lead.New(l, locker.Rule{Key: "job", Mode: locker.Shared}); return err },
		"TTL is 1ns":          func() error { _, err := lead.New(l, locker.Rule{Key: "job", TTL: 1}); return err },
		"the Locker is nil":   func() error { _, err := lead.New(none, locker.Rule{Key: "job"}); return err },
		"WithGrace(0s)":       func() error { _, err := lead.New(l, locker.Rule{Key: "job"}, lead.WithGrace(0)); return err },
		"the function is nil": func() error { return lead.Run(t.Context(), l, locker.Rule{Key: "job"}, nil) },
		"are reserved": func() error {
			return lead.Run(t.Context(), l, locker.Rule{Key: "latchkit:job"}, func(context.Context) error { return nil })
		},
	} {
		err := f()
		var e *locker.Error
		if !errors.As(err, &e) || e.Op != "lead" && e.Op != locker.OpAcquire || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
