package locker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	steps "github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// lane is a Memory that sends releases as a link sends them. A release is sent together with the
// next acquire, or alone after 1 ms.
type lane struct {
	*lockertest.Memory
	steps.Steps
	pool *steps.Pool

	mu         sync.Mutex
	isSlow     bool // makes the method Prompt return false
	neverSends bool // delayed releases are never sent
	listed     []*delayed
	sends      []steps.Step
	acqs       int // number of acquires that were sent
}

// delayed is a release that waits for the next acquire.
type delayed struct {
	send func()
	once sync.Once
}

// Recall returns true only to its first caller.
func (c *delayed) Recall() (first bool) {
	c.once.Do(func() { first = true })
	return first
}

// Leave is not called, because no caller waits for the release.
func (c *delayed) Leave() (sent bool) { panic("no caller waits") }

func (s *lane) Prompt(string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isSlow
}

func (s *lane) Begin(ctx context.Context, step steps.Step, c store.Claim, onAnswer func(store.Grant, error)) *steps.Future {
	if step == steps.Acquire {
		s.change(func(s *lane) { s.acqs++ })
		s.flush()
	}
	if step == steps.Acquire || step == steps.Undo || onAnswer == nil {
		return s.Steps.Begin(ctx, step, c, onAnswer)
	}
	f := new(steps.Future)
	call := &delayed{send: func() { f.Deliver(s.Release(ctx, c)) }}
	f.Init(s.pool, call, onAnswer)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends = append(s.sends, step)
	if step != steps.ReleaseLater {
		call.Recall()
		s.pool.Do(call.send)
		return f
	}
	s.listed = append(s.listed, call)
	if !s.neverSends {
		time.AfterFunc(time.Millisecond, func() {
			if call.Recall() {
				s.pool.Do(call.send)
			}
		})
	}
	return f
}

// flush sends the releases that are still delayed.
func (s *lane) flush() {
	var along []*delayed
	s.change(func(s *lane) { along, s.listed = s.listed, nil })
	for _, call := range along {
		if call.Recall() {
			call.send()
		}
	}
}

func (s *lane) Close(ctx context.Context) error {
	return errors.Join(s.Steps.Close(ctx), s.pool.Stop(ctx))
}

// sentSteps returns the steps by which the releases so far were sent.
func (s *lane) sentSteps() []steps.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sends)
}

func (s *lane) acquires() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acqs
}

// change calls edit under the mutex.
func (s *lane) change(edit func(s *lane)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s)
}

// newBackground returns a Locker with WithBackgroundRelease, and its Store.
func newBackground(t *testing.T, memory *lockertest.Memory, opts ...locker.Option) (*lane, *locker.Engine) {
	t.Helper()
	s := &lane{Memory: memory, pool: new(steps.Pool)}
	s.Steps = steps.Wrap(memory, nil, s.pool, func(error) {})
	l, err := locker.NewWithBackgroundRelease(s, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// backgroundTest runs a test of a Locker with WithBackgroundRelease in a bubble.
func backgroundTest(t *testing.T, test func(t *testing.T, s *lane, l *locker.Engine), opts ...locker.Option) {
	t.Helper()
	virtual(t, func(t *testing.T, memory *lockertest.Memory) {
		s, l := newBackground(t, memory, opts...)
		test(t, s, l)
		s.flush()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// runFor makes one call of Run with rule and fn, which must return nil after the time want, with a
// tolerance of a millisecond.
func runFor(t *testing.T, l locker.Locker, rule locker.Rule, want time.Duration, fn func(context.Context) error) {
	t.Helper()
	began := time.Now()
	if err := locker.Run(t.Context(), l, rule, fn); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took < want || took > want+time.Millisecond {
		t.Errorf("Run took %v, not %v", took, want)
	}
}

const slowRelease = 15 * time.Millisecond // slow, but still so fast that the server counts as prompt

func TestBackgroundReleaseDoesNotKeepRun(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		s.Delay(locker.OpRelease, slowRelease)
		var lease *locker.Lease
		runFor(t, l, locker.Rule{Key: "a"}, 0, func(ctx context.Context) error {
			lease, _ = locker.FromContext(ctx)
			return nil
		})
		if cause := context.Cause(lease.Context()); !errors.Is(cause, locker.ErrReleased) {
			t.Errorf("the lease's context ended with %v", cause)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("a Release after Run: %v", err)
		}
		if s.Len() != 1 {
			t.Error("positive control: the key is free already")
		}
		time.Sleep(slowRelease + 2*time.Millisecond) //nolint:forbidigo // in a bubble
		if s.Len() != 0 {
			t.Error("the key was not released")
		}

		mine := errors.New("mine")
		began := time.Now()
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "b"}, func(context.Context) error { return mine }); err != mine || time.Since(began) > 0 {
			t.Errorf("Run returned %v after %v", err, time.Since(began))
		}
		began = time.Now()
		if err := locker.RunAll(t.Context(), l, []locker.Rule{{Key: "c"}, {Key: "d"}}, nothing); err != nil || time.Since(began) > 0 {
			t.Errorf("RunAll returned %v after %v", err, time.Since(began))
		}
	})
}

func TestBackgroundReleaseReportsALossThatTheClockShows(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		s.Fail(locker.OpRenew, errors.New("EOF"))
		err := locker.Run(t.Context(), l, locker.Rule{Key: "a", TTL: time.Second}, func(context.Context) error {
			time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
			return nil
		})
		wantErr(t, err, "a", locker.ErrLost)
	})
}

// The release is sent together with the next acquire. If there is no acquire, the release is sent
// alone.
func TestBackgroundReleaseTravelsWithOthers(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
		runFor(t, l, locker.Rule{Key: "b"}, 0, func(context.Context) error {
			if s.Calls(locker.OpRelease) != 1 {
				t.Error("the release did not travel with the next acquire")
			}
			return nil
		})
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // in a bubble
		if s.Calls(locker.OpRelease) != 2 || s.Len() != 0 {
			t.Error("the release did not go by itself")
		}
	})
}

func TestBackgroundReleaseLeavesTheKeyFreeForItsOwnProcess(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		fences := make(map[uint64]bool)
		last := uint64(0)
		for range 3 * locker.DefaultHandoffs {
			runFor(t, l, locker.Rule{Key: "a"}, 0, func(ctx context.Context) error {
				lease, _ := locker.FromContext(ctx)
				if lease.Fence() <= last || fences[lease.Fence()] || lease.Context().Err() != nil {
					t.Errorf("fence %d after %d, %v", lease.Fence(), last, lease.Context().Err())
				}
				last = lease.Fence()
				return nil
			})
		}
		if n := s.acquires(); n != 3 {
			t.Errorf("%d acquires for three streaks", n)
		}
		// A Run that outlasts the time of a streak also leaves its release to the next acquire,
		// and this acquire begins a new streak.
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // in a bubble
		if s.Len() != 0 {
			t.Error("the key is held still")
		}
		runFor(t, l, locker.Rule{Key: "a"}, 12*time.Millisecond, func(context.Context) error {
			time.Sleep(12 * time.Millisecond) //nolint:forbidigo // in a bubble
			return nil
		})
		runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
		if n := s.acquires(); n != 5 {
			t.Errorf("%d acquires: a streak went on after its time", n)
		}
	})
}

// A hold that is taken over from a background release is renewed, and can be lost, like every
// other hold.
func TestBackgroundReleaseTakesAWholeHoldOver(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		runFor(t, l, locker.Rule{Key: "a", TTL: time.Second}, 0, nothing)
		runFor(t, l, locker.Rule{Key: "a", TTL: time.Second}, 5*time.Second, func(ctx context.Context) error {
			time.Sleep(5 * time.Second) //nolint:forbidigo // in a bubble
			return context.Cause(ctx)
		})
		if s.acquires() != 1 {
			t.Error("positive control: the hold was not taken over")
		}
		runFor(t, l, locker.Rule{Key: "b", TTL: time.Second}, 0, nothing)
		err := locker.Run(t.Context(), l, locker.Rule{Key: "b", TTL: time.Second}, func(ctx context.Context) error {
			s.Steal("b")
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, "b", locker.ErrLost)
	})
}

// A caller that cannot take the hold over waits for the release. No acquire overtakes the release.
func TestBackgroundReleaseIsNotOvertaken(t *testing.T) {
	rules := map[string]locker.Rule{
		"no wait":       {Key: "a", Wait: locker.NoWait},
		"other terms":   {Key: "a", TTL: time.Minute},
		"with EndAfter": {Key: "a", EndAfter: time.Hour},
		"with Metadata": {Key: "a", Metadata: "me"},
		"with OnceFor":  {Key: "a", OnceFor: time.Second},
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
				s.Delay(locker.OpRelease, slowRelease)
				runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
				began := time.Now()
				lease := acquire(t, l, rule)
				if took := time.Since(began); took != slowRelease {
					t.Errorf("the acquire took %v, so it has not waited for the release", took)
				}
				s.Delay(locker.OpRelease, 0)
				release(t, lease)
				if how := s.sentSteps(); !slices.Equal(how, []steps.Step{steps.ReleaseLater, steps.Release}) {
					t.Errorf("the release was sent %v", how)
				}
			})
		})
	}
	t.Run("several keys", func(t *testing.T) {
		backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
			s.Delay(locker.OpRelease, slowRelease)
			runFor(t, l, locker.Rule{Key: "b"}, 0, nothing)
			if err := locker.RunAll(t.Context(), l, []locker.Rule{{Key: "a", Wait: locker.NoWait}, {Key: "b", Wait: locker.NoWait}}, nothing); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a release that was sent", func(t *testing.T) {
		backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
			s.Delay(locker.OpRelease, slowRelease)
			runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // in a bubble
			asked := s.acquires()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			if _, err := l.Acquire(ctx, locker.Rule{Key: "a"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("an acquire that cannot wait for the release: %v", err)
			}
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 2 * time.Millisecond})
			wantErr(t, err, "a", locker.ErrUnavailable)
			if s.acquires() != asked {
				t.Error("a question overtook the release")
			}
			runFor(t, l, locker.Rule{Key: "a"}, slowRelease+time.Millisecond-9*time.Millisecond, nothing)
		})
	})
}

// While a background release waits to be sent, the answer to a renewal shows that the hold is lost.
// The next caller does not get this hold.
func TestBackgroundReleaseHandsNoLostHoldOver(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		s.change(func(s *lane) { s.neverSends = true })
		rule := locker.Rule{Key: "a", TTL: 24 * time.Millisecond} // so short that a renewal is sent at once
		s.Delay(locker.OpRenew, 3*time.Millisecond)
		runFor(t, l, rule, 2*time.Millisecond, func(context.Context) error {
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // in a bubble
			s.Free("a")
			return nil
		})
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // in a bubble
		if s.Calls(locker.OpRenew) != 1 || s.Calls(locker.OpRelease) != 0 {
			t.Error("positive control: the renewal is unanswered, or the release was sent")
		}
		runFor(t, l, rule, 0, nothing)
		if n := s.acquires(); n != 2 {
			t.Errorf("%d acquires, so the lost hold was handed over", n)
		}
	})
}

// While a background release waits to be sent, or just before it, the machine is suspended. The
// next caller does not get this hold, because the lease may have expired on the server meanwhile.
func TestBackgroundReleaseHandsNoHoldOverThatASuspendedMachineKept(t *testing.T) {
	for name, during := range map[string]bool{"during the release": true, "before the release": false, "before the release of a short lease": false} {
		t.Run(name, func(t *testing.T) {
			backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
				s.change(func(s *lane) { s.neverSends = true })
				s.Delay(locker.OpRenew, 5*time.Millisecond) // so that no renewal proves the hold before the next caller
				rule := locker.Rule{Key: "a", TTL: time.Minute}
				if strings.Contains(name, "short lease") { // half of its TTL is less than the wait for an answer
					rule.TTL = time.Second
				}
				runFor(t, l, rule, 0, func(context.Context) error {
					if !during {
						locker.Suspend(l, time.Hour)
					}
					return nil
				})
				if during {
					<-time.After(time.Microsecond)
					locker.Suspend(l, time.Hour)
				}
				runFor(t, l, rule, 0, nothing)
				if n := s.acquires(); n != 2 {
					t.Errorf("%d acquires, so the old hold was handed over", n)
				}
				<-time.After(5 * time.Millisecond) // a renewal may be under way
			})
		})
	}
}

// Two callers want the key at the same time. One caller takes the hold over, and the other caller
// waits for it.
func TestBackgroundReleaseServesAllCallersOfTheProcess(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		var mu sync.Mutex
		inside := 0
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for i := range 50 {
					err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						inside++
						if inside != 1 {
							t.Errorf("%d are inside", inside)
						}
						inside--
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(i%3) * time.Millisecond) //nolint:forbidigo // in a bubble
				}
			})
		}
		all.Wait()
	})
}

func TestCloseWaitsForBackgroundReleases(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		s.Delay(locker.OpRelease, slowRelease)
		for i := range 10 {
			if err := locker.Run(t.Context(), l, locker.Rule{Key: fmt.Sprint("a", i)}, nothing); err != nil {
				t.Error(err)
			}
		}
		if s.Len() == 0 {
			t.Error("positive control: nothing is left to be released")
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := s.Len(); n != 0 {
			t.Errorf("%d keys are held after Close", n)
		}
	})
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) { // in this run, the server does not answer the release at first
		s.LoseReplies(locker.OpRelease, 3)
		runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
		if err := l.Close(t.Context()); err != nil || s.Len() != 0 {
			t.Errorf("Close: %v, %d keys are held", err, s.Len())
		}
	})
}

// Without Close, the release may be lost, and then only the TTL frees the key.
func TestBackgroundReleaseIsLostWithoutClose(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		s.change(func(s *lane) { s.neverSends = true }) // as if the program had ended
		runFor(t, l, locker.Rule{Key: "a", TTL: time.Second}, 0, nothing)
		time.Sleep(900 * time.Millisecond) //nolint:forbidigo // in a bubble
		if s.Len() != 1 {
			t.Error("positive control: the key is free")
		}
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		if s.Len() != 0 {
			t.Error("the key outlives its TTL")
		}
	})
}

func TestBackgroundReleaseIsAwaitedWhereItsAnswerCounts(t *testing.T) {
	rule := locker.Rule{Key: "a"}
	awaited := func(name string, rule locker.Rule, prepare func(*lane), fn func(context.Context) error) {
		t.Run(name, func(t *testing.T) {
			backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
				s.Delay(locker.OpRelease, slowRelease)
				if prepare != nil {
					prepare(s)
				}
				runFor(t, l, rule, slowRelease, fn)
				if how := s.sentSteps(); len(how) > 0 {
					t.Errorf("the release was sent %v", how)
				}
			})
		})
	}
	awaited("OnceFor", locker.Rule{Key: "a", OnceFor: time.Second}, nil, nothing)
	awaited("KeepFor", locker.Rule{Key: "a", KeepFor: time.Millisecond}, nil, nothing)
	awaited("AwaitRelease", rule, nil, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		lease.AwaitRelease()
		return nil
	})
	awaited("a server that is not prompt", rule, func(s *lane) { s.isSlow = true }, nothing)
	t.Run("by hand", func(t *testing.T) {
		backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
			s.Delay(locker.OpRelease, slowRelease)
			began := time.Now()
			release(t, acquire(t, l, rule))
			checkElapsed(t, began, slowRelease, 0)
		})
	})
	t.Run("a panic", func(t *testing.T) {
		backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
			s.Delay(locker.OpRelease, slowRelease)
			began := time.Now()
			func() {
				defer func() { _ = recover() }()
				_ = locker.Run(t.Context(), l, rule, func(context.Context) error { panic("mine") })
			}()
			checkElapsed(t, began, slowRelease, 0)
		})
	})
	t.Run("too many are open", func(t *testing.T) {
		backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
			s.change(func(s *lane) { s.neverSends = true })
			const most = 1024
			var all sync.WaitGroup
			inside := make(chan struct{})
			for i := range most {
				all.Go(func() {
					runFor(t, l, locker.Rule{Key: fmt.Sprint("a", i)}, time.Second, func(context.Context) error { <-inside; return nil })
				})
			}
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble
			lease := acquire(t, l, locker.Rule{Key: "before"})
			close(inside)
			all.Wait()
			release(t, lease)
			s.Delay(locker.OpRelease, slowRelease)
			began := time.Now()
			if err := locker.Run(t.Context(), locked{l, s}, rule, nothing); err != nil {
				t.Error(err)
			}
			checkElapsed(t, began, slowRelease, 0)
		})
	})
}

// locked is a Locker whose acquires carry no delayed releases.
type locked struct {
	*locker.Engine
	lane *lane
}

func (l locked) Acquire(ctx context.Context, rule locker.Rule) (*locker.Lease, error) {
	var kept []*delayed
	l.lane.change(func(s *lane) { kept, s.listed = s.listed, nil })
	defer l.lane.change(func(s *lane) { s.listed = kept })
	return l.Engine.Acquire(ctx, rule)
}

// Only the server's answer shows how the release ended. The Observer gets this result after Run has
// returned.
func TestBackgroundReleaseTellsTheObserver(t *testing.T) {
	var seen lockertest.Recorder
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		released := func(want locker.Result) {
			t.Helper()
			if n := len(seen.Records(locker.OpRelease)); n != 0 {
				t.Error("positive control: the Observer was notified before the answer")
			}
			time.Sleep(2 * slowRelease) //nolint:forbidigo // in a bubble
			synctest.Wait()
			all := seen.Records(locker.OpRelease)
			if len(all) != 1 || all[0].Outcome.Result != want || all[0].Outcome.Calls != 1 {
				t.Errorf("the Observer received %v, not %s", all, want)
			}
			seen = lockertest.Recorder{}
		}
		s.Delay(locker.OpRelease, slowRelease)
		runFor(t, l, locker.Rule{Key: "a"}, 0, nothing)
		released(locker.ResultReleased)
		runFor(t, l, locker.Rule{Key: "b"}, 0, func(context.Context) error { s.Steal("b"); return nil })
		released(locker.ResultLost)
		runFor(t, l, locker.Rule{Key: "c"}, 0, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			return l.Revoke(ctx, "c", lease.Fence(), "why")
		})
		released(locker.ResultRevoked)
		s.LoseReplies(locker.OpRelease, 1)
		runFor(t, l, locker.Rule{Key: "d"}, 0, nothing)
		released(locker.ResultUnavailable)
		s.Delay(locker.OpRelease, 0)
	}, locker.WithObserver(&seen))
}

// If other callers are known to wait for a lease, its release is sent at once, and not a
// millisecond later.
func TestBackgroundReleaseOfAContendedKeyGoesAtOnce(t *testing.T) {
	backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
		other := lockertest.NewLocker(t, s.NewProcess())
		held := acquire(t, other, locker.Rule{Key: "a"})
		time.AfterFunc(5*time.Millisecond, func() { _ = held.Release(context.Background()) })
		runFor(t, l, locker.Rule{Key: "a"}, 5*time.Millisecond, nothing)
		synctest.Wait()
		if how := s.sentSteps(); !slices.Equal(how, []steps.Step{steps.ReleaseSoon}) || s.Len() != 0 {
			t.Errorf("the release was sent %v", how)
		}
	})
}

// The release that ends a streak carries the next caller's acquire, in the same way as without
// WithBackgroundRelease.
func TestBackgroundReleaseAsksForTheNextOfItsProcess(t *testing.T) {
	for name, opts := range map[string][]locker.Option{"queue": {locker.WithHandoffs(2)}, "no messages": {locker.WithHandoffs(2), locker.WithoutQueue()}} {
		t.Run(name, func(t *testing.T) {
			backgroundTest(t, func(t *testing.T, s *lane, l *locker.Engine) {
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() {
						if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error {
							time.Sleep(time.Millisecond) //nolint:forbidigo // in a bubble
							return nil
						}); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
			}, opts...)
		})
	}
}
