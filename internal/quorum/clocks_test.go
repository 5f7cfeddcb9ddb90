package quorum

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

func TestOfClocksTheMedianIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3, time.Second)
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
		c := newClocks(3, time.Second)
		ahead := time.Now().Add(time.Hour)
		c.note(0, ahead, time.Now())
		c.note(1, ahead, time.Now())
		if far := c.outliers(); far != 0 {
			t.Errorf("%b are far", far)
		}
		if off := c.stepped(); off != 0 {
			t.Errorf("%b are wrong", off)
		}
		c.note(2, time.Now(), time.Now())
		if off := c.stepped(); off != nodes(0).plus(2) {
			t.Errorf("%b are wrong, not the last one", off)
		}
	})
}

// The answer takes 4 ms, so it is less precise than the earlier answers. But a minute cannot be an
// error of 2 ms.
func TestALateReadingThatProvesAStepCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(3, time.Second)
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

// recordedClocks returns a roster of n nodes that vote, and a function that records that the clock
// of node i was read and is ahead by the given time.
func recordedClocks(n int) (r *roster, read func(i int, ahead time.Duration)) {
	q := &quorum{need: n/2 + 1, skew: time.Second, clocks: newClocks(n, time.Second)}
	for i := range n {
		q.nodes = append(q.nodes, &node{index: i})
	}
	r = newRoster(q, "")
	r.ended = true // the roster looks at no node
	read = func(i int, ahead time.Duration) {
		<-time.After(10 * time.Millisecond)
		r.recordClock(q.nodes[i], time.Now().Add(ahead), time.Now())
	}
	for i := range n {
		r.setStanding(i, standing{text: "marker", state: store.NodeVotes})
		read(i, 0)
	}
	return r, read
}

// In a suspension, the clock of the process stands still. After that, all nodes' clocks seem to
// have stepped ahead, one after the other.
func TestASuspendedProcessExcludesNoNode(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			r, read := recordedClocks(n)
			for i := range 2 * n {
				read(i%n, 2*time.Second)
				if votes := r.voting(); votes != n {
					t.Fatalf("after the reading of node %d, %d of %d nodes vote", i%n, votes, n)
				}
			}
			for i, at := range r.stepped {
				if !at.IsZero() {
					t.Errorf("node %d has stepped", i)
				}
			}
			read(1, time.Minute) // a suspension hides no later step
			for i := range n {
				if i != 1 {
					read(i, 2*time.Second)
				}
			}
			if votes := r.voting(); votes != n-1 || r.stepped[1].IsZero() {
				t.Errorf("%d of %d nodes vote after the step of node 1", votes, n)
			}
		})
	}
}

// A clock has stepped if the other clocks have not. One node is down, so only its earlier reading
// is known. A clock that is right again before another clock is read has stepped all the same.
func TestASteppedClockIsFoundByTheNextReadingOfAnotherOne(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, read := recordedClocks(3)
			read(0, 2*time.Second)
			if back {
				read(0, 0)
			}
			read(1, 0)
			if r.stepped[0].IsZero() || r.members[0].text.Load() != nil {
				t.Errorf("right again: %v: the step is not noticed", back)
			}
			if !r.stepped[1].IsZero() || !r.stepped[2].IsZero() {
				t.Errorf("right again: %v: another node is out", back)
			}
		})
	}
}

// A node whose clock has stepped may have dropped leases of another process, which are longer than
// the leases of this process.
func TestANodeWhoseClockSteppedIsExpelledForTheLongestLeaseOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, read := recordedClocks(3)
		r.quorum.longest = time.Second
		read(0, time.Minute)
		read(1, 0)
		views := make([]view, 3)
		for i := range views {
			views[i] = view{marked: true, marker: marker{state: stateVotes, longest: time.Hour}}
		}
		<-time.After(time.Minute)
		if out := r.expelled(views); out != nodes(0).plus(0) {
			t.Errorf("%b are out after a minute", out)
		}
		silent := slices.Clone(views)
		silent[0] = view{err: errSilent}
		<-time.After(2 * time.Hour)
		if out := r.expelled(silent); out != nodes(0).plus(0) {
			t.Errorf("%b are out while the node does not answer", out)
		}
		if out := r.expelled(views); out != 0 {
			t.Errorf("%b are out after two hours", out)
		}
	})
}
