package quorum

import (
	"flag"
	"fmt"
	"slices"
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

// acquire lets the client ask the nodes in reach, and once more if that fails, because a node may
// only begin its wait at first. It reports whether the client holds the key.
func (w *world) acquire(c *client, reach ...int) bool {
	for range 2 {
		c.begin()
		w.deliverTo(reach)
		if c.holds() {
			return true
		}
		w.giveUp(c, reach)
	}
	return false
}

func (w *world) giveUp(c *client, reach []int) {
	c.giveUp()
	w.deliverTo(reach)
}

// deliverTo delivers all messages to and from the nodes in reach, and drops the others.
func (w *world) deliverTo(reach []int) {
	for len(w.mail) > 0 {
		m := w.mail[0]
		w.mail = w.mail[1:]
		if slices.Contains(reach, m.node) {
			w.deliver(m)
		}
	}
}

// The schedules that a reader of the rules asks about. In each, client 0 gets a lease with the votes
// of nodes 0 and 1; then something happens to node 1, and client 1 asks nodes 1 and 2. The schedules
// that end in an overlap are the exceptions that docs/quorum.md states. Each other one ends in an
// overlap without a rule that it needs.
func TestTheSchedulesOfTheDocuments(t *testing.T) {
	const overlaps = None
	for _, c := range []struct {
		name    string
		happens func(w *world)
		needs   Rule
	}{
		{"nothing happens", func(*world) {}, Majority},
		{"a node is emptied", func(w *world) { w.restart(1) }, Quarantine},
		{"a node comes back with an older copy of its data", func(w *world) {
			old := w.nodes[1].marker
			w.restart(1)
			w.nodes[1].marker = old
		}, Identity},
		{"a node is emptied, and declared new", func(w *world) {
			w.restart(1)
			w.nodes[1].enroll(w, w.TTL)
		}, overlaps},
		{"a boot clock that is behind is set right by NTP", func(w *world) { w.bootsWith(-w.Wait) }, Window},
		{"a boot clock that is ahead is set back by NTP", func(w *world) { w.bootsWith(w.Wait) }, Majority},
		{"a node whose clock steps forward and back, and a client sees it", func(w *world) {
			w.nodes[1].token = 0
			w.nodes[1].expel()
		}, Quarantine},
		{"a node whose clock steps forward and back, and nobody sees it", func(w *world) { w.nodes[1].token = 0 }, overlaps},
		{"WithMaxTTL is lowered", func(w *world) { w.lowerTTL() }, Majority},
		{"WithMaxTTL is lowered while a node restarts", func(w *world) {
			w.lowerTTL()
			w.restart(1)
			w.acquire(&w.clients[1], 1, 2)
			w.now += w.wait(w.clients[1].ttl)
		}, overlaps},
		{"a replacement that was enrolled", func(w *world) {
			w.restart(1) // another server at the place of node 1
			w.nodes[1].enroll(w, w.TTL)
		}, overlaps},
		{"a replacement", func(w *world) { w.restart(1) }, Quarantine},
		{"one server under two names", func(w *world) { w.nodes[1] = w.nodes[2] }, Majority},
	} {
		for _, without := range []Rule{None, c.needs} {
			s := scenario(3)
			s.Ahead, s.Without = 0, without
			w := newWorld(s, 1)
			holder, next := &w.clients[0], &w.clients[1]
			if !w.acquire(holder, 0, 1) {
				t.Fatal("two of three nodes are no quorum")
			}
			c.happens(w)
			if got := w.acquire(next, 1, 2) && holder.holds(); got != (c.needs == without) {
				t.Errorf("%s, without the rule %v: two hold the key: %v", c.name, without, got)
			}
			if c.needs == without {
				continue
			}
			for range 3 { // the nodes vote again after their waits; the holder's lease is over then
				w.now += 2 * s.Wait
				next.ttl = w.nodes[0].marker.ttl
				if w.acquire(next, 0, 1, 2) {
					break
				}
			}
			if !next.holds() || next.fence <= holder.fence {
				t.Errorf("%s: at the end it holds the key: %v, with fence %d after %d", c.name, next.holds(), next.fence, holder.fence)
			}
		}
	}
}

// A counter that is ahead on one node: the next holder has a larger fence, whichever nodes vote,
// because votes are raised to the largest fence.
func TestACounterThatIsAheadOnOneNode(t *testing.T) {
	for _, without := range []Rule{None, Raise} {
		s := scenario(3)
		s.Without = without
		w := newWorld(s, 1)
		w.nodes[0].counter = w.now + 1_000_000
		last, back := int64(0), 0
		for _, reach := range [][]int{{0, 1}, {1, 2}, {0, 2}, {1, 2}, {0, 1, 2}, {0, 1}} {
			c := &w.clients[0]
			if !w.acquire(c, reach...) || c.fence <= last {
				back++
			}
			last = c.fence
			w.giveUp(c, []int{0, 1, 2})
		}
		if (back > 0) != (without == Raise) {
			t.Errorf("without the rule %v, %d grants have no larger fence", without, back)
		}
	}
}

// restart empties a node.
func (w *world) restart(i int) {
	w.ids++
	w.nodes[i].forget(w.ids)
}

// bootsWith empties node 1, whose clock is wrong by offset until a client has asked it.
func (w *world) bootsWith(offset int64) {
	w.restart(1)
	w.nodes[1].offset = offset
	w.acquire(&w.clients[1], 1, 2)
	w.giveUp(&w.clients[1], []int{1, 2})
	w.nodes[1].offset = 0
}

// lowerTTL changes the longest TTL at all nodes, as latchctl does, and in client 1.
func (w *world) lowerTTL() {
	for _, n := range w.nodes {
		n.marker.ttl = w.TTL / 10
	}
	w.Wait /= 10
	w.clients[1].ttl = w.TTL / 10
}
