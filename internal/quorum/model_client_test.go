package quorum

import (
	"maps"
	"slices"
	"time"
)

type simClient struct {
	w          *model
	i          int
	labels     []string
	longest    time.Duration
	asks       bool
	texts      []string
	tending    bool
	replace    bool
	cut        int // the node that the client does not reach; -1: it reaches all nodes
	reachesAlt bool
	order      []int           // the node of the model behind each node of this client's list
	mistaken   map[int]*server // a wrong server in this client's list, by node of the model
}

// reach returns the server that the client's call to node i reaches, or nil.
func (c *simClient) reach(i int) *server {
	i = c.order[i]
	switch {
	case c.mistaken[i] != nil:
		return c.mistaken[i]
	case c.cut == i:
		return nil
	case c.w.swap == i && c.reachesAlt:
		return c.w.alt
	}
	return c.w.nodes[i]
}

// call runs the function do at node i: perhaps late, and perhaps never, but never twice. It calls
// the function answer once, with ok true if do has surely run.
func (c *simClient) call(i int, do func(*server), answer func(ok bool)) {
	w := c.w
	there, back := w.upTo(4*time.Millisecond), w.upTo(4*time.Millisecond)
	if w.rng.IntN(20) == 0 {
		there = w.upTo(400 * time.Millisecond)
	}
	lost, silent := w.rng.IntN(50) == 0, w.rng.IntN(50) == 0
	answered := false
	done := func(ok bool) {
		if !answered {
			answered = true
			answer(ok)
		}
	}
	w.schedule(modelTimeout, func() { done(false) })
	if lost {
		return
	}
	w.schedule(there, func() {
		s := c.reach(i)
		if s == nil {
			return
		}
		do(s)
		if !silent {
			w.schedule(back, func() { done(true) })
		}
	})
}

// callAll runs the function do at the nodes in targets. When all these nodes have answered, or the
// time is over, it calls onAnswers with the nodes that have answered.
func (c *simClient) callAll(targets nodes, do func(i int, s *server), onAnswers func(ok nodes)) {
	open, good := targets.count(), nodes(0)
	if open == 0 {
		c.w.schedule(time.Millisecond, func() { onAnswers(0) })
	}
	for i := range c.w.n {
		if targets.has(i) {
			c.call(i, func(s *server) { do(i, s) }, func(ok bool) {
				if ok {
					good = good.plus(i)
				}
				if open--; open == 0 {
					onAnswers(good)
				}
			})
		}
	}
}

// watch calls the method tend from time to time.
func (c *simClient) watch() {
	c.tend(0)
	c.w.schedule(100*time.Millisecond+c.w.upTo(150*time.Millisecond), c.watch)
}

func (c *simClient) tend(round int) {
	if round == 0 && c.tending || round == 6 {
		c.tending = false
		return
	}
	c.tending = true
	w := c.w
	views := make([]view, w.n)
	c.callAll(1<<w.n-1, func(i int, s *server) {
		v := view{clock: w.clock(s), id: s.id, text: s.text, waits: maps.Clone(s.waits)}
		v.marker, v.marked = parseMarker(s.text)
		views[i] = v
	}, func(ok nodes) {
		for i := range views {
			if !ok.has(i) {
				views[i] = view{err: errSilent}
			}
		}
		p := decide(c.applyRules(views), wish{labels: c.labels, longest: c.longest, asks: c.asks, quarantine: c.quarantine, newGeneration: w.newGeneration, replace: c.replace})
		for i, s := range p.nodes {
			if ok.has(i) {
				c.texts[i] = ""
				if m, _ := parseMarker(s.text); m.longest >= c.longest {
					c.texts[i] = s.text
				}
			}
		}
		p.steps = slices.DeleteFunc(p.steps, func(st step) bool { return c.forbids(&views[st.node], st) })
		if len(p.steps) == 0 {
			c.tending = false
			return
		}
		open := len(p.steps)
		for _, st := range p.steps {
			c.call(st.node, func(s *server) { w.mark(s, st) }, func(bool) {
				if open--; open == 0 {
					c.tend(round + 1)
				}
			})
		}
	})
}

// forbids reports whether a client does not make the step st at the server of v because a rule is
// switched off.
func (c *simClient) forbids(v *view, st step) bool {
	m, _ := parseMarker(st.text)
	switch {
	case st.text == "" || m.state != stateJoins:
		return false
	case !v.marked && !c.w.freeSeat: // without this rule, only the name gives a seat
		return !slices.ContainsFunc(c.w.nodes, func(o *server) bool {
			known, ok := parseMarker(o.text)
			return ok && m.seat < len(known.seats) && known.seats[m.seat].label == c.labels[st.node]
		})
	}
	return v.intact() && v.generation() != m.seats[m.seat].generation && !c.w.takeBack
}

// applyRules changes the views of a look: for each rule that is switched off, they become what a
// client without this rule would see.
func (c *simClient) applyRules(views []view) []view {
	w := c.w
	var sorted []time.Duration
	for i := range views {
		if v := &views[i]; v.err == nil {
			sorted = append(sorted, v.clock.Sub(time.UnixMicro(1e15).Add(w.now)))
		}
	}
	slices.Sort(sorted)
	for i := range views {
		v := &views[i]
		if v.err != nil {
			continue
		}
		if off := (v.clock.Sub(time.UnixMicro(1e15).Add(w.now)) - sorted[len(sorted)/2]).Abs(); off > 2*modelSkew && w.manyClocks {
			v.clockOff = off
		}
		if !w.longest {
			v.marker.longest = 0
		}
	}
	if !w.manyClocks { // without this rule, the longest wait that one node reports counts for all nodes
		first := map[string]time.Duration{}
		for i := range views {
			for name, begun := range views[i].waits {
				first[name] = max(first[name], views[i].clock.Sub(begun))
			}
		}
		for i := range views {
			if views[i].err == nil {
				for name, since := range first {
					views[i].waits[name] = views[i].clock.Add(-since)
				}
			}
		}
	}
	return views
}

func (c *simClient) quarantine(longest time.Duration) time.Duration {
	if !c.w.wait {
		return 0
	}
	return max(longest+modelDrift(longest), 4*modelSkew) + 20*time.Millisecond
}
