package link

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// later returns a call for which no caller waits, and a channel that receives the call's answer.
func later(name string) (*Call, chan error) {
	c, answer := named(name, Release), make(chan error, 1)
	c.OnAnswer = func(c *Call) {
		_, err := c.Answer()
		answer <- err
	}
	return c, answer
}

func TestAPutOffCallTravelsWithTheNext(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("direct=", direct), func(t *testing.T) {
			bubble(t, true, direct, func(t *testing.T, f *fake, ls *Links) {
				prompted(t, ls)
				one, answerOne := later("one")
				two, answerTwo := later("two")
				ls.PutOff(t.Context(), one)
				ls.PutOff(t.Context(), two)
				synctest.Wait()
				if n := len(f.sent()); n != 1 {
					t.Errorf("%d flights before anything else was sent", n)
				}
				c := named("next", Step)
				ls.Send(t.Context(), c)
				takes(t, c, time.Second)
				if err := errors.Join(<-answerOne, <-answerTwo); err != nil {
					t.Error(err)
				}
				if last := f.sent()[1]; !slices.Equal(last, []string{"one", "two", "next"}) {
					t.Errorf("sent together: %v", last)
				}
				time.Sleep(time.Second) //nolint:forbidigo // in a bubble
				if n := len(f.sent()); n != 2 {
					t.Errorf("%d flights", n)
				}
			})
		})
	}
}

func TestAPutOffCallGoesByItselfAfterAMillisecond(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		for range 3 {
			began := time.Now()
			c, answer := later("alone")
			ls.PutOff(t.Context(), c)
			if err := <-answer; err != nil || time.Since(began) != laterFor {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		// A call may be put off while the timer of an earlier call runs. Nevertheless, the later
		// call waits for the whole of laterFor.
		first, _ := later("first")
		ls.PutOff(t.Context(), first)
		time.Sleep(laterFor / 2) //nolint:forbidigo // in a bubble
		c := named("next", Step)
		ls.Send(t.Context(), c)
		takes(t, c, time.Second)
		began := time.Now()
		second, answer := later("second")
		ls.PutOff(t.Context(), second)
		if err := <-answer; err != nil || time.Since(began) != laterFor {
			t.Errorf("the second ended with %v after %v", err, time.Since(began))
		}
	})
}

func TestARecalledCallIsNotSent(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		c, answer := later("recalled")
		ls.PutOff(t.Context(), c)
		if !c.Recall() || c.Recall() {
			t.Error("a call that waits is recalled, once")
		}
		next := named("next", Step)
		ls.Send(t.Context(), next)
		takes(t, next, time.Second)
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		if all := f.sent(); len(all) != 2 || len(answer) != 0 {
			t.Errorf("sent: %v", all)
		}
		f.slow(10 * time.Millisecond)
		c, answer = later("under way")
		ls.PutOff(t.Context(), c)
		time.Sleep(2 * laterFor) //nolint:forbidigo // in a bubble
		if c.Recall() {
			t.Error("a call that was sent was recalled")
		}
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// A call to a node that is not prompt is sent at once, and Prompt returns false.
func TestNothingIsPutOffAtASlowNode(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		if ls.Prompt("a") {
			t.Error("a node that was never asked is prompt")
		}
		prompted(t, ls)
		if !ls.Prompt("a") {
			t.Error("a node that has answered at once is not prompt")
		}
		f.slow(promptWithin)
		c := named("slow", Step)
		ls.Send(t.Context(), c)
		takes(t, c, time.Second)
		if ls.Prompt("a") {
			t.Error("a node that takes 20 ms is prompt")
		}
		began := time.Now()
		c, answer := later("at once")
		ls.PutOff(t.Context(), c)
		if err := <-answer; err != nil || time.Since(began) != promptWithin {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A call that travels with a direct call ends when the direct call ends, even by the panic of a
// hook.
func TestAPutOffCallEndsWithAPanic(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		prompted(t, ls)
		c, answer := later("along")
		ls.PutOff(t.Context(), c)
		func() {
			defer func() { _ = recover() }()
			ls.Send(t.Context(), &Call{Words: []any{"echo", 7}, Class: Step, Key: "a"}) // the fake panics
		}()
		if err := <-answer; !errors.Is(err, ErrNoAnswer) {
			t.Errorf("err = %v", err)
		}
	})
}
