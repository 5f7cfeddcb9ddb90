package link

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// putOffCall returns a call for which no caller waits, and a channel that receives the call's
// answer.
func putOffCall(name string) (*Call, chan error) {
	c, answer := namedCall(name, Release), make(chan error, 1)
	c.Receiver = OnAnswer(func(c *Call) {
		_, err := c.Answer()
		answer <- err
	})
	return c, answer
}

func TestAPutOffCallTravelsWithTheNext(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("direct=", direct), func(t *testing.T) {
			bubble(t, true, direct, func(t *testing.T, f *fake, ls *Links) {
				makePrompt(t, ls)
				one, answerOne := putOffCall("one")
				two, answerTwo := putOffCall("two")
				ls.PutOff(t.Context(), one)
				ls.PutOff(t.Context(), two)
				synctest.Wait()
				if n := len(f.sentFlights()); n != 1 {
					t.Errorf("%d flights before anything else was sent", n)
				}
				c := namedCall("next", Ask)
				ls.Send(t.Context(), c)
				checkAnswered(t, c, time.Second)
				if err := errors.Join(<-answerOne, <-answerTwo); err != nil {
					t.Error(err)
				}
				if last := f.sentFlights()[1]; !slices.Equal(last, []string{"one", "two", "next"}) {
					t.Errorf("sent together: %v", last)
				}
				time.Sleep(time.Second) //nolint:forbidigo // in a bubble
				if n := len(f.sentFlights()); n != 2 {
					t.Errorf("%d flights", n)
				}
			})
		})
	}
}

func TestAPutOffCallGoesByItselfAfterAMillisecond(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		for range 3 {
			began := time.Now()
			c, answer := putOffCall("alone")
			ls.PutOff(t.Context(), c)
			if err := <-answer; err != nil || time.Since(began) != laterFor {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		// A call may be put off while the timer of an earlier call runs. Nevertheless, the later
		// call waits for the whole of laterFor.
		first, _ := putOffCall("first")
		ls.PutOff(t.Context(), first)
		time.Sleep(laterFor / 2) //nolint:forbidigo // in a bubble
		c := namedCall("next", Ask)
		ls.Send(t.Context(), c)
		checkAnswered(t, c, time.Second)
		began := time.Now()
		second, answer := putOffCall("second")
		ls.PutOff(t.Context(), second)
		if err := <-answer; err != nil || time.Since(began) != laterFor {
			t.Errorf("the second ended with %v after %v", err, time.Since(began))
		}
	})
}

func TestARecalledCallIsNotSent(t *testing.T) {
	bubble(t, true, true, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		c, answer := putOffCall("recalled")
		ls.PutOff(t.Context(), c)
		if !c.Recall() || c.Recall() {
			t.Error("a call that waits is recalled, once")
		}
		next := namedCall("next", Ask)
		ls.Send(t.Context(), next)
		checkAnswered(t, next, time.Second)
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		if all := f.sentFlights(); len(all) != 2 || len(answer) != 0 {
			t.Errorf("sent: %v", all)
		}
		f.setDelay(10 * time.Millisecond)
		c, answer = putOffCall("under way")
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
		makePrompt(t, ls)
		if !ls.Prompt("a") {
			t.Error("a node that has answered at once is not prompt")
		}
		f.setDelay(promptWithin)
		c := namedCall("slow", Ask)
		ls.Send(t.Context(), c)
		checkAnswered(t, c, time.Second)
		if ls.Prompt("a") {
			t.Error("a node that takes 20 ms is prompt")
		}
		began := time.Now()
		c, answer := putOffCall("at once")
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
		makePrompt(t, ls)
		c, answer := putOffCall("along")
		ls.PutOff(t.Context(), c)
		func() {
			defer func() { _ = recover() }()
			ls.Send(t.Context(), &Call{Words: []any{"echo", 7}, Class: Ask, Key: "a"}) // the fake panics
		}()
		if err := <-answer; !errors.Is(err, ErrNoAnswer) {
			t.Errorf("err = %v", err)
		}
	})
}
