package link

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// makePrompt sends one flight that is answered at once, so the link becomes prompt.
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
	bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
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

func TestACallGoesByFlight(t *testing.T) {
	for name, change := range map[string]func(ls *Links, c *Call){
		"when the client does not bound it":  func(ls *Links, _ *Call) { ls.single.bounded = false },
		"when it is an undo":                 func(_ *Links, c *Call) { c.Class = Undo },
		"when many direct calls run":         func(ls *Links, _ *Call) { ls.single.direct = mostDirect },
		"when the last flight was large":     func(ls *Links, _ *Call) { ls.single.crowd = mostDirect + 1 },
		"when the last answer came late":     func(ls *Links, _ *Call) { ls.single.prompt = false },
		"when a flight is under way already": func(ls *Links, _ *Call) { ls.single.plain.flying = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
				makePrompt(t, ls)
				c := namedCall("x", Ask)
				change(ls, c)
				if c.markListed(t.Context(), time.Now()); ls.single.tryDirect(c) {
					t.Error("it was made directly")
				}
				ls.single.direct, ls.single.plain.flying = 0, 0
			})
		})
	}
}

func TestADirectCallThatTakesLongClosesTheWay(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.setDelay(promptWithin)
		slow := namedCall("slow", Ask)
		ls.Send(t.Context(), slow)
		checkAnswered(t, slow, time.Microsecond)
		f.setDelay(time.Millisecond) // the delay ensures that a flight is not answered before Send returns
		byFlight := namedCall("by flight", Ask)
		if ls.Send(t.Context(), byFlight); isAnswered(byFlight) {
			t.Error("the next call was made directly too")
		}
		checkAnswered(t, byFlight, time.Second)
		synctest.Wait()
		again := namedCall("again", Ask)
		if ls.Send(t.Context(), again); !isAnswered(again) {
			t.Error("a flight that was answered soon does not open the way")
		}
	})
}

// The caller of a direct call waits for at most 250 ms, even if the call's window began just before
// the call.
func TestADirectCallThatHangsIsBackWithin250Milliseconds(t *testing.T) {
	for _, into := range []time.Duration{0, time.Millisecond, windowLength / 2, windowLength - 1, windowLength, 3 * windowLength} {
		for _, patience := range []time.Duration{time.Nanosecond, 100 * time.Millisecond, time.Second} {
			bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
				f.obeys = true
				makePrompt(t, ls)
				ls.Send(t.Context(), namedCall("begins a window", Ask))
				time.Sleep(into) //nolint:forbidigo // in a bubble
				f.stop()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				c := namedCall("hangs", Ask)
				if ls.Send(ctx, c); !isAnswered(c) {
					t.Error("positive control: the call was not made directly")
				}
				if took := time.Since(began); took > 250*time.Millisecond {
					t.Errorf("%v into the window, with %v left, the caller is back after %v", into, patience, took)
				}
				f.resume()
			})
		}
	}
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
		if readLink(ls, func(l *link) bool { return l.direct > 0 }) {
			t.Error("a direct call counts as under way for ever")
		}
	})
}
