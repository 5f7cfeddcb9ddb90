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
	if c.asks {
		c.longest = c.wish.longest
	}
	for i := range c.views {
		v := &c.views[i]
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
	if c.longest == 0 {
		c.longest = c.wish.longest // no node knows a TTL: the servers are new, or all of them were emptied
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
//
// A server proves its seat by its marker. Names are no proof, because several names can lead to one
// server, and one name can lead to several. If a server cannot prove a seat, because it has no
// marker of the set, or another node of this list is the newer server of that seat, it gets one of
// the seats that no node of this list has proven. So a server whose name is new returns after a
// restart. When another server has taken a seat, the seat's former server does not vote any more.
// So a wrong guess can end the vote of one node, but it never breaks a lock.
func (c *council) findSeats() {
	if c.set == "" {
		return
	}
	for i := range c.views {
		v := &c.views[i]
		if v.err != nil || !v.marked || v.marker.set != c.set {
			continue
		}
		at := v.marker.seat
		if v.intact() && v.marker.state == stateVotes && v.generation() == c.seats[at].generation && !c.hasStanding(i) {
			c.current = c.current.plus(i)
		}
		if j := slices.Index(c.seatOf, at); j >= 0 {
			if o := &c.views[j]; c.current.has(j) || !c.current.has(i) && o.generation() >= v.generation() {
				continue
			}
			c.seatOf[j] = -1
		}
		c.seatOf[i] = at
	}
	c.recordNames()
	c.assignFreeSeats()
}

// recordNames finds out whether this client's list has other names for the nodes than the set.
func (c *council) recordNames() {
	for i, at := range c.seatOf {
		if at >= 0 && c.labels[i] != c.seats[at].label {
			c.reordered = c.reordered || isIndex(c.labels[i])
			if !isIndex(c.labels[i]) && !isIndex(c.seats[at].label) {
				c.plan.renamed = c.plan.renamed.plus(i)
			}
		} else if at >= 0 && !isIndex(c.labels[i]) && c.current.has(i) {
			c.sameNames = true
		}
	}
}

// assignFreeSeats gives the seats that no node has proven to the nodes that have proven no seat.
// The names decide first. When there is only one free seat, or when all nodes answer, the names do
// not matter: any of these seats suits any of these nodes. Such a choice is a guess, because the
// seat may belong to a server that is not in this list.
func (c *council) assignFreeSeats() {
	proven, free, all := slices.Clone(c.seatOf), 0, true
	for i := range c.views {
		if proven[i] < 0 {
			free++
			all = all && c.views[i].err == nil
			if at := c.seatNamed(c.labels[i]); at >= 0 && !slices.Contains(c.seatOf, at) {
				c.seatOf[i] = at
			}
		}
	}
	for i := range c.views {
		if c.seatOf[i] >= 0 || free > 1 && !all {
			continue
		}
		for at := range c.seats {
			if !slices.Contains(c.seatOf, at) {
				c.seatOf[i], c.guessed = at, c.guessed.plus(i)
				break
			}
		}
	}
}

// seatNamed returns the seat that has the given name, or -1. The index of a node without an address
// is a name only if all known nodes have the same indices in this client's list and in the set.
func (c *council) seatNamed(label string) int {
	if isIndex(label) && c.reordered {
		return -1
	}
	return slices.IndexFunc(c.seats, func(s seat) bool { return s.label == label })
}

// generation returns the generation of the server that wrote the marker of v.
func (v *view) generation() string { return v.marker.seats[v.marker.seat].generation }

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

// errListDiffers returns the error for a client whose list of nodes differs from the set.
func (c *council) errListDiffers() error {
	labels := make([]string, len(c.seats))
	for i, s := range c.seats {
		labels[i] = s.label
	}
	return fmt.Errorf("two lists of nodes are in use: this process lists the nodes %s, but the nodes form a set of %s; give all processes the same list, or replace a node with ReplaceNode",
		strings.Join(c.labels, " "), strings.Join(labels, " "))
}
