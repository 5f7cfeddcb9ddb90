package quorum

import (
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// keepSet plans the changes of a set in which a quorum of the nodes is current. The nodes get
// the newest generations, and servers that do not vote take their seats anew.
func (c *council) keepSet() {
	for i := range c.views {
		switch {
		case !c.current.has(i):
		case c.confirms(i):
			if c.current.count() > c.need {
				c.current = c.current.minus(i)
				c.joinAnew(i, store.NodeJoins, nil)
			}
		case !c.expel.has(i):
		case c.current.count() > c.need:
			c.current = c.current.minus(i)
			c.joinAnew(i, store.NodeClock, errClockStepped)
		default: // the other nodes are too few to remove this node's vote for all clients
			c.exclude(i, store.NodeClock, 0, errClockStepped)
		}
	}
	c.raiseGenerations()
	for i := range c.views {
		v := &c.views[i]
		if c.hasStanding(i) {
			continue
		}
		at := c.seatOf[i]
		member := v.intact() && v.marker.set == c.set && v.marker.seat == at
		switch {
		case v.marked && v.intact() && v.marker.set != c.set && v.marker.state != stateForms:
			c.exclude(i, store.NodeStranger, 0, c.errListDiffers())
		case at < 0:
			c.exclude(i, store.NodeStranger, 0, errSeatOpen)
		case member && v.generation() == c.seats[at].generation && !c.confirms(i) && (v.marker.state == stateJoins || strings.HasPrefix(v.generation(), formedPrefix)):
			c.continueJoin(i)
		case member && !c.replace && (!isGuess(c.seats[at].generation) || isGuess(v.generation())):
			c.exclude(i, store.NodeReplaced, 0, errReplaced)
		default: // a server that has proven its seat also takes it back from a server that has only guessed it
			c.joinAnew(i, store.NodeJoins, nil)
		}
	}
}

// confirms reports whether the operator wants node i to keep the seat that it has only guessed.
func (c *council) confirms(i int) bool {
	return c.replace && isGuess(c.seats[c.seatOf[i]].generation)
}

// raiseGenerations gives the current nodes the newest generations. It never changes the generation
// of a node's own seat. After another server has taken a seat, the seat's former server must not
// vote, so its marker keeps the old generation.
func (c *council) raiseGenerations() {
	for i := range c.indicesOf(c.current) {
		want := c.markerText(i, c.set, stateVotes, c.seatOf[i], c.seats)
		c.step(i, want, "")
		if c.views[i].text == want && !c.hasStanding(i) {
			c.plan.nodes[i] = standing{state: store.NodeVotes, text: want}
			continue
		}
		c.exclude(i, store.NodeBehind, 0, errBehindSet)
	}
}

// joinAnew plans that the server of node i takes its seat with a new generation. Until the node
// votes, it has the given state and reason.
func (c *council) joinAnew(i int, state store.NodeState, reason error) {
	at := c.seatOf[i]
	seats := slices.Clone(c.seats)
	seats[at] = seat{c.newGeneration(seats[at].generation), c.labels[i]}
	if c.guessed.has(i) && !c.replace {
		seats[at].generation += guessSuffix
	}
	c.step(i, c.markerText(i, c.set, stateJoins, at, seats), "")
	remaining := c.quarantine(c.longest)
	if reason == nil {
		reason = errJoins(remaining)
	}
	c.exclude(i, state, remaining, reason)
}

// continueJoin plans the next step for the server of node i, which is taking its seat.
func (c *council) continueJoin(i int) {
	at, v := c.seatOf[i], &c.views[i]
	// The client that formed the set ended before it reached this server, which has never voted.
	if v.marker.state == stateForms {
		c.step(i, c.markerText(i, c.set, stateVotes, at, c.seats), "")
		c.exclude(i, store.NodeBehind, 0, errBehindSet)
		return
	}
	generation := c.seats[at].generation
	raised := 0
	for j := range c.indicesOf(c.current) {
		if c.views[j].marker.seats[at].generation == generation {
			raised++
		}
	}
	remaining := c.quarantine(c.longest)
	if raised >= c.need {
		remaining = c.remainingWait(generation, c.current.plus(i))
	}
	switch {
	case remaining > 0:
		c.exclude(i, store.NodeJoins, remaining, errJoins(remaining))
	case v.clockOff > 0:
		c.exclude(i, store.NodeClock, lookInterval, errClockOff(v.clockOff))
	default:
		c.step(i, c.markerText(i, c.set, stateVotes, at, c.seats), "")
		c.exclude(i, store.NodeBehind, 0, errBehindSet)
	}
}

// remainingWait returns how long the wait with the given name still lasts, by the clocks of the
// nodes in timekeepers. A wait is over when, by the clocks of a quorum of nodes, the longest lease
// has ended since the wait began. So one wrong clock cannot end a wait, and no process has to run
// during the whole wait.
func (c *council) remainingWait(name string, timekeepers nodes) time.Duration {
	gate := c.quarantine(c.longest)
	lefts := make([]time.Duration, len(c.views))
	for i := range c.views {
		lefts[i] = gate
		if !timekeepers.has(i) {
			continue
		}
		if begun, ok := c.views[i].waits[name]; ok {
			lefts[i] = gate - c.views[i].clock.Sub(begun)
		} else {
			c.step(i, "", name)
		}
	}
	slices.Sort(lefts)
	return max(lefts[c.need-1], 0)
}
