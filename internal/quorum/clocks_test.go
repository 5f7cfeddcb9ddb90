package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
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
		<-time.After(time.Minute)
		if d := time.Until(now()); d != 10*time.Millisecond {
			t.Errorf("a minute later now is %v off", d)
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
		if _, near, far := c.compare(time.Second); near.count() != 2 || far != 0 {
			t.Errorf("%b are right, %b are far", near, far)
		}
		c.note(2, time.Now(), time.Now())
		if _, near, far := c.compare(time.Second); near.count() != 2 || far != nodes(0).plus(2) {
			t.Errorf("%b are right, %b are far, not the last one", near, far)
		}
	})
}

// A virtual machine that moves to another host stands still for a second, with all its clocks. Another
// one is idle for a day, and its clock drifts.
func TestAProcessWhoseClockStoodStillOrDriftsExpelsNoHealthyNode(t *testing.T) {
	t.Parallel()
	var cs []redisstore.Client
	for range 3 {
		cs = append(cs, redistest.Start(t).Client(t))
	}
	cfg := Settings{MaxSkew: 500 * time.Millisecond, MaxTTL: 10 * time.Second, MaxTTLGiven: true, NodeTimeout: 2 * time.Second}
	if err := Enroll(t.Context(), cs, cfg); err != nil {
		t.Fatal(err)
	}
	q := newQuorum(cs, cfg)
	for i := range 12 {
		if i%4 == 3 {
			q.clocks.mu.Lock()
			for i := range q.clocks.nodes {
				q.clocks.nodes[i].offset -= time.Second
			}
			q.clocks.mu.Unlock()
		}
		c := store.Claim{Key: "k", Owner: string(rune('A'+i)) + "AAAAAAAAAAAAAAAAAAAAAAAAA", TTL: 5 * time.Second, FenceCount: 1}
		_, _ = q.Acquire(t.Context(), c) // right after the pause, it may find a node out
		_, _ = q.Release(t.Context(), c)
		<-time.After(20 * time.Millisecond)
	}
	all, err := q.Nodes(t.Context())
	for _, n := range all {
		if n.State != store.NodeVotes {
			t.Errorf("%v: %v, %v", n, n.Reason, err)
		}
	}
}
