package quorum

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOfClocksTheMedianIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3)
		start := time.Now()
		shows := func(i int, by time.Duration) { c.note(i, time.Now().Add(by), time.Now()) }
		if d := c.now().Sub(start); d != 0 {
			t.Errorf("%v off while none is known", d)
		}
		shows(0, time.Hour)
		if d := c.deviation(0); d != 0 {
			t.Errorf("the only one is %v off", d)
		}
		shows(1, 0)
		if a, b := c.deviation(0), c.deviation(1); a != 30*time.Minute || b != 30*time.Minute {
			t.Errorf("of two that disagree one is believed: %v, %v", a, b)
		}
		shows(2, 10*time.Millisecond)
		if a, b := c.deviation(0), c.deviation(1); a != time.Hour-10*time.Millisecond || b != 10*time.Millisecond {
			t.Errorf("%v, %v off the median", a, b)
		}
		if d := c.now().Sub(start); d != 10*time.Millisecond {
			t.Errorf("now is %v off, want the median", d)
		}
		<-time.After(time.Minute)
		if d := time.Until(c.now()); d != 10*time.Millisecond {
			t.Errorf("a minute later now is %v off", d)
		}
		sent := time.Now()
		<-time.After(time.Second) // the answer took a second, so the clock may be off by half a second
		c.note(1, time.Now(), sent)
		if d := c.deviation(1); d != 0 {
			t.Errorf("%v off, although its time is not known better", d)
		}

		for i := range 3 {
			shows(i, 0)
		}
		sent = time.Now()
		<-time.After(4 * time.Second)
		for i := range 2 {
			c.note(i, sent, sent) // the answer has an old time, so the clock seems to be 2 s behind
		}
		if d := c.deviation(2); d != 0 {
			t.Errorf("%v off, because the answers of the others came late", d)
		}
	})
}

// A clock that was not measured does not count as wrong, even if the client's own clock is off by
// an hour.
func TestAClockThatWasNotMeasuredIsNotWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3)
		ahead := time.Now().Add(time.Hour)
		c.note(0, ahead, time.Now())
		c.note(1, ahead, time.Now())
		if far := c.outliers(time.Second, 0); far != 0 {
			t.Errorf("%b are far", far)
		}
		if off := c.outliers(time.Second, 2); off != 0 {
			t.Errorf("%b are wrong", off)
		}
		c.note(2, time.Now(), time.Now())
		if off := c.outliers(time.Second, 2); off != nodes(0).plus(2) {
			t.Errorf("%b are wrong, not the last one", off)
		}
	})
}

// The answer takes 4 ms, so it is less precise than the earlier answers. But a minute cannot be an
// error of 2 ms.
func TestALateReadingThatProvesAStepCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3)
		for i := range 3 {
			c.note(i, time.Now(), time.Now())
		}
		<-time.After(10 * time.Millisecond)
		sent := time.Now()
		<-time.After(4 * time.Millisecond)
		c.note(1, time.Now().Add(time.Minute), sent)
		if d := c.deviation(1); d < 59*time.Second {
			t.Errorf("%v off, want a minute", d)
		}
	})
}
