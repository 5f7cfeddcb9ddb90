package link

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// makePrompt sends one batch that is answered at once, so the link becomes prompt.
func makePrompt(t *testing.T, ls *Links) {
	t.Helper()
	c := namedCall("prompt", Ask)
	ls.Send(t.Context(), c)
	checkAnswered(t, c, time.Second)
	synctest.Wait()
}

// isAnswered reports whether the call c has its answer.
func isAnswered(c *Call) bool { return len(c.Receiver.(signal)) == 1 }

func TestALoneCallIsMadeOnItsCallersGoroutine(t *testing.T) {
	for _, ends := range []ending{endsByTimeout, endsWithContext} {
		bubble(t, true, false, func(t *testing.T, _ *fake, ls *Links) {
			ls.single.ends = ends
			makePrompt(t, ls)
			for i := range 3 {
				c := namedCall(fmt.Sprint(i), Ask)
				if ls.Send(t.Context(), c); !isAnswered(c) {
					t.Error("the answer is not there when Send returns")
				}
				checkAnswered(t, c, time.Microsecond)
			}
		})
	}
}

func TestACallHasAGoroutine(t *testing.T) {
	for name, change := range map[string]func(l *link, c *Call){
		"when the client may never end it":  func(l *link, _ *Call) { l.ends = endsUnknown },
		"when it is an undo":                func(_ *link, c *Call) { c.Class = Undo },
		"when replicas must acknowledge it": func(_ *link, c *Call) { c.Acked = true },
		"when many calls are on their callers' goroutines": func(l *link, _ *Call) {
			for i := range l.alone {
				l.alone[i] = time.Now()
			}
		},
		"when the last batches were large":  func(l *link, _ *Call) { l.sizes = [2]int{1, mostAlone} },
		"when the last answer came late":    func(l *link, _ *Call) { l.prompt = false },
		"when a batch is under way already": func(l *link, _ *Call) { l.plain.running = []*batch{{}} },
		"when the last answer is long ago": func(l *link, _ *Call) {
			l.ends, l.answered = endsByTimeout, time.Now().Add(-staleAfter)
		},
		"when another call is stuck at a place": func(l *link, _ *Call) {
			l.ends, l.alone[1] = endsByTimeout, time.Now().Add(-stuckAfter)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
				makePrompt(t, ls)
				l, c := ls.single, namedCall("x", Ask)
				c.markListed(t.Context(), time.Now())
				if change(l, c); l.runAlone(c) {
					t.Error("it was made on its caller's goroutine")
				}
				l.alone, l.plain.running = [mostAlone]time.Time{}, nil
			})
		})
	}
}

// When more callers meet than may be alone, their calls travel together, until few callers meet.
func TestManyCallersLeaveTheirGoroutinesAndFewComeBack(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.setDelay(time.Millisecond)
		crowd := func(callers int) (together int) {
			before := len(f.sentTogether())
			var work sync.WaitGroup
			for range callers {
				work.Go(func() {
					for range 20 {
						c := namedCall("x", Ask)
						ls.Send(context.Background(), c)
						<-done(c)
					}
				})
			}
			work.Wait()
			for _, words := range f.sentTogether()[before:] {
				together = max(together, len(words))
			}
			return together
		}
		if n := crowd(mostAlone); n != 1 {
			t.Errorf("%d calls of %d callers travelled together", n, mostAlone)
		}
		if n := crowd(3 * mostAlone); n <= mostAlone {
			t.Errorf("of %d callers, at most %d calls travelled together", 3*mostAlone, n)
		}
		crowd(1)
		c := namedCall("alone again", Ask)
		if ls.Send(t.Context(), c); !isAnswered(c) {
			t.Error("a lone caller is not back on its goroutine")
		}
	})
}

func TestACallThatTakesLongClosesTheWay(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.setDelay(promptWithin)
		slow := namedCall("slow", Ask)
		ls.Send(t.Context(), slow)
		checkAnswered(t, slow, time.Microsecond)
		f.setDelay(time.Millisecond) // the delay ensures that a batch is not answered before Send returns
		byBatch := namedCall("by batch", Ask)
		if ls.Send(t.Context(), byBatch); isAnswered(byBatch) {
			t.Error("the next call was on its caller's goroutine too")
		}
		checkAnswered(t, byBatch, time.Second)
		synctest.Wait()
		again := namedCall("again", Ask)
		if ls.Send(t.Context(), again); !isAnswered(again) {
			t.Error("a batch that was answered soon does not open the way")
		}
	})
}

// The caller of a call on its own goroutine waits for at most 250 ms, even if the call shares a
// context that is nearly 50 ms old.
func TestACallerWhoseClientObeysContextsIsBackWithin250Milliseconds(t *testing.T) {
	for _, into := range []time.Duration{0, time.Millisecond, sharedFor / 2, sharedFor - 1, sharedFor, 3 * sharedFor} {
		for _, patience := range []time.Duration{time.Nanosecond, 100 * time.Millisecond, time.Second} {
			bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
				f.obeys = true
				makePrompt(t, ls)
				ls.Send(t.Context(), namedCall("begins a context", Ask))
				time.Sleep(into) //nolint:forbidigo // in a bubble
				f.stop()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				c := namedCall("hangs", Ask)
				if ls.Send(ctx, c); !isAnswered(c) {
					t.Error("positive control: the call was not on its caller's goroutine")
				}
				if took := time.Since(began); took > 250*time.Millisecond {
					t.Errorf("%v after the context began, with %v left, the caller is back after %v", into, patience, took)
				}
				f.resume()
			})
		}
	}
}

// While a call hangs on its caller's goroutine, a context that it shares does not end because
// another one begins: the call may be dialling.
func TestAContextEndsAfterItsLastCall(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		first := ls.single.brief.join(time.Now())
		time.Sleep(sharedFor) //nolint:forbidigo // in a bubble
		ls.Send(t.Context(), namedCall("begins another context", Ask))
		if first.Err() != nil {
			t.Error("a context ended while a call used it")
		}
		if first.leave(); first.Err() == nil {
			t.Error("a context that no call uses goes on")
		}
	})
}

// With a client that ends calls by time-outs only, a call that hangs holds up no other caller for
// longer than 250 ms, and no renewal at all.
func TestACallThatHangsOnItsCallersGoroutineHoldsUpNobody(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		ls.single.ends = endsByTimeout
		makePrompt(t, ls)
		f.stop()
		hung, returned := namedCall("hangs", Ask), make(chan struct{})
		go func() {
			defer close(returned)
			ls.Send(context.Background(), hung)
		}()
		synctest.Wait()
		f.mu.Lock()
		held := f.stopped
		f.stopped = nil // all other connections work
		f.mu.Unlock()
		renewal := namedCall("renewal", Renewal)
		ls.Put(t.Context(), renewal)
		checkAnswered(t, renewal, time.Microsecond)
		for range 3 {
			c := namedCall("another caller", Ask)
			ls.Send(t.Context(), c)
			checkAnswered(t, c, time.Microsecond)
			time.Sleep(stuckAfter) //nolint:forbidigo // in a bubble
		}
		f.setDelay(time.Millisecond)
		c := namedCall("by batch, because a call is stuck", Ask)
		if ls.Send(t.Context(), c); isAnswered(c) {
			t.Error("a call was made on its caller's goroutine though another call is stuck")
		}
		checkAnswered(t, c, time.Second)
		if isAnswered(hung) {
			t.Error("positive control: the first call does not hang")
		}
		close(held)
		<-returned
	})
}

func TestACallThatFailsClosesTheWay(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.breakWith(errNo)
		c := namedCall("x", Ask)
		ls.Send(t.Context(), c)
		checkFails(t, c, errNo, time.Microsecond)
		if readLink(ls, func(l *link) bool { return l.prompt }) {
			t.Error("the link counts as prompt")
		}
	})
}

func TestAHookThatPanicsLeavesTheWayFree(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		func() {
			defer func() { _ = recover() }()
			ls.Send(t.Context(), &Call{Words: []any{"echo", 1}, Class: Ask}) // the fake panics, because it takes only strings
		}()
		f.mu.Unlock() // the panic has left the mutex locked
		if readLink(ls, func(l *link) bool { return l.alone != [mostAlone]time.Time{} }) {
			t.Error("a call counts as under way for ever")
		}
	})
}
