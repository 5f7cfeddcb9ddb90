package quorum

import (
	"fmt"
	"slices"
	"strings"
)

// findSet finds the set to which most of the servers belong, and merges what these servers know of
// the set.
func (c *council) findSet() {
	type support struct{ votes, all int }
	sets := make(map[string]support)
	for i := range c.views {
		v := &c.views[i]
		c.longest = max(c.longest, c.wish.longest)
		if v.err != nil || !v.marked {
			continue
		}
		c.longest = max(c.longest, v.marker.longest)
		if v.marker.state == stateForms {
			continue
		}
		s := sets[v.marker.set]
		s.all++
		if v.intact() && v.marker.state == stateVotes {
			s.votes++
		}
		sets[v.marker.set] = s
		if best := sets[c.set]; c.set == "" || s.votes > best.votes || s.votes == best.votes && (s.all > best.all || s.all == best.all && v.marker.set < c.set) {
			c.set = v.marker.set
		}
	}
	for i := range c.views {
		if v := &c.views[i]; v.err == nil && v.marked && v.marker.set == c.set && c.set != "" {
			if c.seats == nil {
				c.seats = v.marker.seats
			}
			if v.marked = len(v.marker.seats) == len(c.seats); v.marked {
				c.seats = mergeSeats(c.seats, v.marker.seats)
			}
		}
	}
}

// findSeats finds the seat of each node. It also finds the current nodes. A current node is intact,
// belongs to the set, and is the newest server of its seat.
func (c *council) findSeats() {
	if c.set == "" {
		return
	}
	sameLabels := 0 // number of nodes with the same label in this client's list and in the set
	for i := range c.views {
		v := &c.views[i]
		if v.err != nil || !v.marked || v.marker.set != c.set {
			continue
		}
		c.seatOf[i] = v.marker.seat
		own := c.seats[v.marker.seat]
		if own.label == c.labels[i] {
			sameLabels++
		}
		if v.intact() && v.marker.state == stateVotes && v.marker.seats[v.marker.seat].generation == own.generation && !c.hasStanding(i) {
			c.current = c.current.plus(i)
		}
	}
	for i := range c.views {
		if c.seatOf[i] < 0 && c.views[i].err == nil {
			c.seatOf[i] = c.seatFor(i, sameLabels)
		}
		for j := range c.indicesOf(c.current.minus(i)) {
			if c.seatOf[i] == c.seatOf[j] && !c.current.has(i) {
				c.seatOf[i] = -1 // another server has the seat
			}
		}
	}
}

// indicesOf yields the indices of the nodes in s.
func (c *council) indicesOf(s nodes) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range c.views {
			if s.has(i) && !yield(i) {
				return
			}
		}
	}
}

// seatFor returns a seat for node i, whose marker N names no seat, or -1. It returns the seat that
// has this server's address in the set. If sameLabels is 0, none of the addresses in this client's
// list is in the set, and seatFor returns the only free seat. When another server has taken a seat,
// the seat's former server does not vote any more. So a wrong guess can end the vote of one node,
// but it never breaks a lock.
func (c *council) seatFor(i, sameLabels int) int {
	free := -1
	for s := range c.seats {
		if c.seats[s].label == c.labels[i] {
			return s
		}
		if !slices.Contains(c.seatOf, s) {
			if free >= 0 {
				free = len(c.seats)
			} else {
				free = s
			}
		}
	}
	if free == len(c.seats) || sameLabels > 0 && !c.replace {
		return -1
	}
	return free
}

// errListDiffers returns the error for a client whose list of nodes differs from the set.
func (c *council) errListDiffers() error {
	labels := make([]string, len(c.seats))
	for i, s := range c.seats {
		labels[i] = s.label
	}
	return fmt.Errorf("two lists of nodes are in use: this process lists the nodes %s, but the nodes form a set of %s; give all processes the same list, or replace a node with ReplaceNode",
		strings.Join(c.labels, " "), strings.Join(labels, " "))
}
