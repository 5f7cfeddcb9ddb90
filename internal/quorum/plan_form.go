package quorum

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// formedPrefix is the prefix of the generations with which a set was formed.
const formedPrefix = "0-"

// formSet plans how the servers form a set when less than a quorum of them belongs to one set.
func (c *council) formSet() {
	if !c.canForm() {
		return
	}
	stays := c.enroll // true: no lease was ever granted
	order := make([]string, 0, len(c.views))
	for i := range c.views {
		v := &c.views[i]
		order = append(order, v.id)
		stays = stays && (!v.marked || v.marker.state == stateForms)
	}
	slices.Sort(order)
	name := c.newSet(order)
	seats, all := c.newSeats(name, order)
	if all < len(c.views) {
		for i := range c.views {
			if v := &c.views[i]; !v.intact() || v.marker.set != name {
				c.step(i, c.markerText(i, name, stateForms, slices.Index(order, v.id), seats), "")
			}
		}
		c.recordForming(c.quarantine(c.longest))
		return
	}
	remaining, begun := c.remainingWait(name, 1<<len(c.views)-1), true
	for i := range c.views {
		v := &c.views[i]
		if stays || v.marker.state == stateVotes { // state votes: another client has begun the last step
			remaining = 0
		}
		_, ok := v.waits[name]
		begun = begun && ok
	}
	if remaining > 0 || !begun {
		c.recordForming(remaining)
		return
	}
	for i := range c.views {
		c.step(i, c.markerText(i, name, stateVotes, slices.Index(order, c.views[i].id), seats), "")
	}
	c.recordForming(0)
}

// canForm reports whether all servers have answered and no server belongs to another set.
// Otherwise it records why the nodes do not vote.
func (c *council) canForm() bool {
	for i := range c.views {
		if c.hasStanding(i) {
			c.raiseGenerations()
			c.recordForming(0)
			return false
		}
		v := &c.views[i]
		alien := v.intact() && v.marker.state != stateForms && v.marker.set != c.set
		// This list has the names of the set, except for servers that are nowhere in the set.
		other := c.guessed.has(i) && c.sameNames && !isIndex(c.labels[i])
		if alien || c.current != 0 && (other || c.seatOf[i] < 0) {
			c.raiseGenerations()
			for j := range c.views {
				c.exclude(j, store.NodeStranger, 0, c.errListDiffers())
			}
			return false
		}
	}
	return true
}

// newSet returns the name of the set that the servers form. If servers already name such a set, and
// the name is not spent, the result is the smallest of their names. Otherwise it is a new name. The
// parameter order has the servers' identities, sorted.
func (c *council) newSet(order []string) string {
	sum := sha256.Sum256([]byte(strings.Join(order, "")))
	prefix := hex.EncodeToString(sum[:4]) + "-"
	name, names := prefix+c.newGeneration(""), []string(nil)
	for i := range c.views {
		if v := &c.views[i]; v.intact() && v.marker.state == stateForms && strings.HasPrefix(v.marker.set, prefix) && len(v.marker.seats) == len(c.views) && !c.isSpent(v.marker.set) {
			names = append(names, v.marker.set)
		}
	}
	if len(names) > 0 {
		name = slices.Min(names)
	}
	return name
}

// isSpent reports whether a server may have voted in the named set and forgotten its votes. A wait
// of a set begins only when all servers have a marker of the set. So after a wait has begun, a
// server without that marker has forgotten. The begun waits of the other servers do not cover the
// leases that this server forgot, so the servers must form a set with another name.
func (c *council) isSpent(name string) bool {
	begun, all := false, true
	for i := range c.views {
		v := &c.views[i]
		_, ok := v.waits[name]
		begun = begun || ok
		all = all && v.intact() && v.marker.set == name
	}
	return begun && !all
}

// newSeats returns the seats of the set with the given name, which the servers form. The parameter
// order has the servers' identities, sorted. The result all is the number of servers that have a
// marker of that set.
func (c *council) newSeats(name string, order []string) (seats []seat, all int) {
	seats = make([]seat, len(order))
	for i := range c.views {
		id := c.views[i].id
		seats[slices.Index(order, id)] = seat{formedPrefix + id[:8], c.labels[i]}
	}
	var known []seat
	for i := range c.views {
		v := &c.views[i]
		if !v.intact() || v.marker.set != name {
			continue
		}
		if all++; known == nil {
			known = v.marker.seats
		}
		known = mergeSeats(known, v.marker.seats)
	}
	if known != nil {
		seats = known
	}
	return seats, all
}

// recordForming records that all nodes are forming a set and vote after the time remaining; 0 means
// that this time is not known.
func (c *council) recordForming(remaining time.Duration) {
	for i := range c.views {
		if remaining == 0 {
			c.exclude(i, store.NodeForms, 0, errForms)
		} else {
			c.exclude(i, store.NodeForms, remaining, errJoins(remaining))
		}
	}
}
