package quorum

import (
	"flag"
	"fmt"
	"testing"
)

var steps = flag.Float64("steps", 8e6, "steps of TestTheRules")

// scenario returns the scenario with n nodes in which no invariant may break.
func scenario(n int) Scenario {
	return Scenario{Nodes: n, Clients: 4, TTL: 600, Skew: 20, Ahead: 20_000, Wait: 700, Forget: 5000, Step: 3, Lose: 4, Repeat: 4}
}

func TestTheRulesKeepLeasesApart(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			t.Parallel()
			r := Run(scenario(n), uint64(n), int(*steps)/2)
			t.Logf("%+v", r)
			if r.Together+r.Backward+r.Left > 0 {
				t.Errorf("an invariant has broken: %+v", r)
			}
			if r.Grants < int(*steps)/2/5000 || r.Forgot < 10 || r.Waits < 10 || r.Wrong < 10 {
				t.Errorf("too little happened: %+v", r)
			}
		})
	}
}

// Without any one rule an invariant breaks, because otherwise the simulation proves nothing about the
// rule.
func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	for rule := Quarantine; rule <= Raise; rule++ {
		t.Run("no "+rule.String(), func(t *testing.T) {
			t.Parallel()
			s := scenario(3)
			s.Without = rule
			var r Result
			for seed := uint64(1); seed <= 20 && r.Together+r.Backward+r.Left == 0; seed++ {
				r = Run(s, seed, 1_000_000)
			}
			t.Logf("%+v", r)
			if r.Together+r.Backward+r.Left == 0 {
				t.Error("nothing broke")
			}
		})
	}
}

// acquire lets the client ask the nodes in reach, and delivers all messages. It reports whether the
// client holds the key.
func (w *world) acquire(c *client, reach ...int) bool {
	c.begin()
	for len(w.mail) > 0 {
		m := w.mail[0]
		w.mail = w.mail[1:]
		for _, i := range reach {
			if m.node == i {
				w.deliver(m)
			}
		}
	}
	return c.holds()
}

// The schedules that a reader of the rules asks about. In each, client 0 gets a lease with the votes
// of nodes 0 and 1; then something happens to node 1, and client 1 asks nodes 1 and 2. The schedules
// that end in an overlap are the exceptions that docs/quorum.md states.
func TestTheSchedulesOfTheDocuments(t *testing.T) {
	for _, c := range []struct {
		name     string
		happens  func(w *world)
		overlaps bool
	}{
		{"nothing happens", func(*world) {}, false},
		{"a node is emptied", func(w *world) { w.restart(1) }, false},
		{"a node is emptied, and declared new", func(w *world) {
			w.restart(1)
			w.nodes[1].enroll(w, w.TTL)
		}, true},
		{"a boot clock that is behind is set right by NTP", func(w *world) { w.bootsWith(1, -w.Wait) }, false},
		{"a boot clock that is ahead is set back by NTP", func(w *world) { w.bootsWith(1, w.Wait) }, false},
		{"a node whose clock steps forward and back, and a client sees it", func(w *world) {
			w.stepsForwardAndBack(1, true)
		}, false},
		{"a node whose clock steps forward and back, and nobody sees it", func(w *world) {
			w.stepsForwardAndBack(1, false)
		}, true},
		{"WithMaxTTL is lowered", func(w *world) { w.lowerTTL() }, false},
		{"WithMaxTTL is lowered while a node restarts", func(w *world) {
			w.lowerTTL()
			w.restart(1)
			w.acquire(&w.clients[1], 1, 2)
			w.now += w.wait(w.clients[1].ttl)
		}, true},
		{"a replacement that was enrolled", func(w *world) {
			w.restart(1) // another server at the place of node 1
			w.nodes[1].enroll(w, w.TTL)
		}, true},
		{"a replacement", func(w *world) { w.restart(1); w.acquire(&w.clients[1], 1, 2) }, false},
		{"one server under two names", func(w *world) { w.nodes[1] = w.nodes[2] }, false},
	} {
		s := scenario(3)
		s.Ahead = 0
		w := newWorld(s, 1)
		holder, next := &w.clients[0], &w.clients[1]
		if !w.acquire(holder, 0, 1) {
			t.Fatal("two of three nodes are no quorum")
		}
		c.happens(w)
		if got := w.acquire(next, 1, 2) && holder.holds(); got != c.overlaps {
			t.Errorf("%s: two hold the key: %v, want %v", c.name, got, c.overlaps)
		}
		if c.overlaps {
			continue
		}
		for range 3 { // the nodes vote again after their waits; the holder's lease is over then
			w.now += 2 * scenario(3).Wait
			next.giveUp()
			w.mail, next.ttl = nil, w.nodes[0].marker.ttl
			if w.acquire(next, 0, 1, 2) {
				break
			}
		}
		if !next.holds() || next.fence <= holder.fence {
			t.Errorf("%s: at the end it holds the key: %v, with fence %d after %d", c.name, next.holds(), next.fence, holder.fence)
		}
	}
}

// A counter that is ahead on one node: the next holder has a larger fence, whichever nodes vote.
func TestACounterThatIsAheadOnOneNode(t *testing.T) {
	w := newWorld(scenario(3), 1)
	w.nodes[0].counter = w.now + 1_000_000
	last := int64(0)
	for _, reach := range [][]int{{0, 1}, {1, 2}, {0, 2}, {1, 2}, {0, 1, 2}, {0, 1}} {
		c := &w.clients[0]
		if !w.acquire(c, reach...) || c.fence <= last {
			t.Errorf("nodes %v: holds %v, fence %d after %d", reach, c.holds(), c.fence, last)
		}
		last = c.fence
		c.giveUp()
		for _, m := range w.mail {
			w.deliver(m)
		}
		w.mail = nil
	}
}

// restart empties a node.
func (w *world) restart(i int) {
	w.ids++
	w.nodes[i].forget(w.ids)
}

// bootsWith empties a node whose clock is wrong by offset, until a client has asked it.
func (w *world) bootsWith(i int, offset int64) {
	w.restart(i)
	w.nodes[i].offset = offset
	w.acquire(&w.clients[1], 1, 2)
	w.clients[1].phase = idle
	w.nodes[i].offset = 0
}

// stepsForwardAndBack lets the clock of a node be wrong for a moment, so that it drops its lease.
func (w *world) stepsForwardAndBack(i int, seen bool) {
	n := w.nodes[i]
	n.token = 0
	if seen {
		n.expel()
	}
}

// lowerTTL changes the longest TTL at all nodes, as latchctl does, and in client 1.
func (w *world) lowerTTL() {
	for _, n := range w.nodes {
		n.marker.ttl = w.TTL / 10
	}
	w.Wait /= 10
	w.clients[1].ttl = w.TTL / 10
}
