package link

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// prompted makes one flight that is answered at once, so the link becomes prompt.
func prompted(t *testing.T, ls *Links) {
	t.Helper()
	c := named("prompt", Step)
	ls.Send(t.Context(), c)
	takes(t, c, time.Second)
	synctest.Wait()
}

// isThere reports whether a call has its answer.
func isThere(c *Call) bool { return c.done == there || len(c.done) == 1 }

func TestALoneCallIsMadeOnItsCallersGoroutine(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
		prompted(t, ls)
		for i := range 3 {
			c := named(fmt.Sprint(i), Step)
			if ls.Send(t.Context(), c); !isThere(c) {
				t.Error("the answer is not there when Send returns")
			}
			takes(t, c, time.Microsecond)
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
				prompted(t, ls)
				c := named("x", Step)
				change(ls, c)
				if c.hand(t.Context(), time.Now()); ls.single.tryDirect(c) {
					t.Error("it was made directly")
				}
				ls.single.direct, ls.single.plain.flying = 0, 0
			})
		})
	}
}

func TestADirectCallThatTakesLongClosesTheWay(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		f.slow(promptWithin)
		slow := named("slow", Step)
		ls.Send(t.Context(), slow)
		takes(t, slow, time.Microsecond)
		f.slow(time.Millisecond) // the delay ensures that a flight is not answered before Send returns
		byFlight := named("by flight", Step)
		if ls.Send(t.Context(), byFlight); isThere(byFlight) {
			t.Error("the next call was made directly too")
		}
		takes(t, byFlight, time.Second)
		synctest.Wait()
		again := named("again", Step)
		if ls.Send(t.Context(), again); !isThere(again) {
			t.Error("a flight that was answered soon does not open the way")
		}
	})
}

// The caller of a direct call waits for at most 250 ms, even if the call's slot began just before
// the call.
func TestADirectCallThatHangsIsBackWithin250Milliseconds(t *testing.T) {
	for _, into := range []time.Duration{0, time.Millisecond, every / 2, every - 1, every, 3 * every} {
		for _, patience := range []time.Duration{time.Nanosecond, 100 * time.Millisecond, time.Second} {
			bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
				f.obeys = true
				prompted(t, ls)
				ls.Send(t.Context(), named("begins a slot", Step))
				time.Sleep(into) //nolint:forbidigo // in a bubble
				f.stop()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				c := named("hangs", Step)
				if ls.Send(ctx, c); !isThere(c) {
					t.Error("positive control: the call was not made directly")
				}
				if took := time.Since(began); took > 250*time.Millisecond {
					t.Errorf("%v into the slot, with %v left, the caller is back after %v", into, patience, took)
				}
				f.resume()
			})
		}
	}
}

func TestACallThatFailsClosesTheWay(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		f.fail(errNo)
		c := named("x", Step)
		ls.Send(t.Context(), c)
		fails(t, c, errNo, time.Microsecond)
		if look(ls, func(l *link) bool { return l.prompt }) {
			t.Error("the link counts as prompt")
		}
	})
}

func TestAHookThatPanicsLeavesTheWayFree(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		func() {
			defer func() { _ = recover() }()
			ls.Send(t.Context(), &Call{Words: []any{"echo", 1}, Class: Step}) // the fake panics, because it takes only strings
		}()
		f.mu.Unlock() // the panic has left the mutex locked
		if look(ls, func(l *link) bool { return l.direct > 0 }) {
			t.Error("a direct call counts as under way for ever")
		}
	})
}
