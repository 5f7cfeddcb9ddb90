package quorum

import (
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// keep handles a set with a quorum of current nodes. The nodes get the newest generations, and
// servers that do not vote take their seats anew.
func (c *council) keep() {
	for i := range c.views {
		switch {
		case !c.expel.has(i) || !c.current.has(i):
		case c.current.count() > c.need:
			c.current = c.current.without(i)
			c.joinAnew(i, store.NodeClock, errClockStepped)
		default: // the other nodes are too few to remove this node's vote for all clients
			c.out(i, store.NodeClock, 0, errClockStepped)
		}
	}
	c.raise()
	for i := range c.views {
		v := &c.views[i]
		if c.silent(i) {
			continue
		}
		switch {
		case v.marked && v.intact() && v.marker.set != c.set && v.marker.state != forms, c.at[i] < 0:
			c.out(i, store.NodeStranger, 0, c.differ())
		case v.intact() && v.marker.set == c.set && v.marker.state == votes && !c.replace:
			c.out(i, store.NodeReplaced, 0, errReplaced)
		case v.intact() && v.marker.set == c.set && v.marker.seats[c.at[i]].generation == c.seats[c.at[i]].generation &&
			(v.marker.state == joins || strings.HasPrefix(c.seats[c.at[i]].generation, first)):
			c.joining(i)
		default:
			c.joinAnew(i, store.NodeJoins, nil)
		}
	}
}

// raise gives the current nodes the newest generations. It never changes the generation of a node's
// own seat. After another server has taken a seat, the seat's former server must not vote, so its
// marker keeps the old generation.
func (c *council) raise() {
	for i := range c.each(c.current) {
		want := c.text(i, c.set, votes, c.at[i], c.seats)
		c.step(i, want, "")
		if c.views[i].text == want && !c.silent(i) {
			c.plan.nodes[i] = standing{state: store.NodeVotes, text: want}
			continue
		}
		c.out(i, store.NodeBehind, 0, errBehindSet)
	}
}

// joinAnew makes a server take its seat with a new generation.
func (c *council) joinAnew(i int, state store.NodeState, why error) {
	at := c.at[i]
	seats := slices.Clone(c.seats)
	seats[at] = seat{c.fresh(seats[at].generation), c.labels[i]}
	c.step(i, c.text(i, c.set, joins, at, seats), "")
	left := c.gate(c.longest)
	if why == nil {
		why = errJoins(left)
	}
	c.out(i, state, left, why)
}

// joining plans the next step for a server that is taking its seat.
func (c *council) joining(i int) {
	at, v := c.at[i], &c.views[i]
	// The client that formed the set ended before it reached this server, which has never voted.
	if v.marker.state == forms {
		c.step(i, c.text(i, c.set, votes, at, c.seats), "")
		c.out(i, store.NodeBehind, 0, errBehindSet)
		return
	}
	generation := c.seats[at].generation
	raised := 0
	for j := range c.each(c.current) {
		if c.views[j].marker.seats[at].generation == generation {
			raised++
		}
	}
	left := c.gate(c.longest)
	if raised >= c.need {
		left = c.waits(generation, c.current.with(i))
	}
	switch {
	case left > 0:
		c.out(i, store.NodeJoins, left, errJoins(left))
	case v.off > 0:
		c.out(i, store.NodeClock, askAgain, errOff(v.off))
	default:
		c.step(i, c.text(i, c.set, votes, at, c.seats), "")
		c.out(i, store.NodeBehind, 0, errBehindSet)
	}
}

// waits returns how long a wait still lasts. A wait is over when, by the clocks of a quorum of
// nodes, the longest lease has ended since the wait began. So one wrong clock cannot end a wait,
// and no process has to run during the whole wait.
func (c *council) waits(name string, where nodes) time.Duration {
	gate := c.gate(c.longest)
	lefts := make([]time.Duration, len(c.views))
	for i := range c.views {
		lefts[i] = gate
		if !where.has(i) {
			continue
		}
		if begun, ok := c.views[i].begun[name]; ok {
			lefts[i] = gate - c.views[i].at.Sub(begun)
		} else {
			c.step(i, "", name)
		}
	}
	slices.Sort(lefts)
	return max(lefts[c.need-1], 0)
}
