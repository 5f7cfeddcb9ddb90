package quorum

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOfClocksTheMedianIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3)
		now := func() time.Time { now, _, _ := c.compare(0); return now }
		deviation := func(i int) time.Duration { _, least := c.offset(i); return least }
		start := time.Now()
		shows := func(i int, by time.Duration) { c.note(i, time.Now().Add(by), time.Now()) }
		if d := now().Sub(start); d != 0 {
			t.Errorf("%v off while none is known", d)
		}
		shows(0, time.Hour)
		if d := deviation(0); d != 0 {
			t.Errorf("the only one is %v off", d)
		}
		shows(1, 0)
		if a, b := deviation(0), deviation(1); a != 30*time.Minute || b != 30*time.Minute {
			t.Errorf("of two that disagree one is believed: %v, %v", a, b)
		}
		shows(2, 10*time.Millisecond)
		if a, b := deviation(0), deviation(1); a != time.Hour-10*time.Millisecond || b != 10*time.Millisecond {
			t.Errorf("%v, %v off the median", a, b)
		}
		if d := now().Sub(start); d != 10*time.Millisecond {
			t.Errorf("now is %v off, want the median", d)
		}
		<-time.After(knownFor)
		if d := time.Until(now()); d != 10*time.Millisecond {
			t.Errorf("a while later now is %v off", d)
		}
		sent := time.Now()
		<-time.After(time.Second) // the answer took a second, so the clock may be off by half a second
		c.note(1, time.Now(), sent)
		if d := deviation(1); d != 0 {
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
		if d := deviation(2); d != 0 {
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
		if _, near, far := c.compare(time.Second); near != 2 || far != 0 {
			t.Errorf("%d are right, %b are far", near, far)
		}
		c.note(2, time.Now(), time.Now())
		if _, near, far := c.compare(time.Second); near != 2 || far != nodes(0).plus(2) {
			t.Errorf("%d are right, %b are far, not the last one", near, far)
		}
	})
}

// After a suspension, or an idle hour with a slow clock, all nodes are ahead, one after the other.
func TestNoHealthyClockIsWrongAfterASuspensionOrAnIdleHour(t *testing.T) {
	for name, pass := range map[string]func(c *clocks) (ahead time.Duration){
		"suspended": func(c *clocks) time.Duration { c.lead -= 10 * time.Second; return 10 * time.Second },
		"idle":      func(*clocks) time.Duration { <-time.After(time.Hour); return time.Hour / 1000 },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newClocks(3)
			for i := range 3 {
				c.note(i, time.Now(), time.Now())
			}
			ahead := pass(c)
			for i := range 3 {
				c.note(i, time.Now().Add(ahead), time.Now())
				if _, near, far := c.compare(time.Second); near != i+1 || far != 0 {
					t.Errorf("%s: %d are right, %b are far", name, near, far)
				}
			}
		})
	}
}
