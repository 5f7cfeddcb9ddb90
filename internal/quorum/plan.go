package quorum

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// view is what one look at a node has shown.
type view struct {
	err    error // the node did not answer; then the rest says nothing
	at     time.Time
	id     string // identity of the server's data
	evicts bool   // it may drop keys when its memory is full
	text   string // N, "" when it is not there
	marker marker
	marked bool // N can be read
	begun  map[string]time.Time
	off    time.Duration // how far its clock is from the others', 0 while that is allowed
}

// intact says whether the server still has the data that N was written for.
func (v *view) intact() bool { return v.err == nil && v.marked && v.marker.id == v.id }

// wish is what a client wants of the nodes that it looks at.
type wish struct {
	labels  []string      // by which it calls them
	longest time.Duration // TTL that it may ask for
	gate    func(longest time.Duration) time.Duration
	fresh   func(after string) string // makes a generation, larger than after
	enroll  bool                      // the operator says that new servers hold no leases
	replace bool                      // the operator says that a server without a seat takes the one that nobody has
	expel   nodes                     // their clocks were seen to have stepped, so they may have dropped leases
}

// step is one change of a node's marker, a compare-and-set. Any client may make it, at any time,
// and again.
type step struct {
	node  int
	id    string // of the server as it was seen
	old   string
	text  string // that N gets, "" to leave it
	begin string // the wait that has begun, "" for none
}

// plan is what follows from one look at all nodes.
type plan struct {
	steps []step
	nodes []standing
	tick  time.Duration // when something is due although nobody asks; 0: nothing is
}

// standing is how a node stands to the set.
type standing struct {
	text  string // under which it may be asked; "" when it does not vote
	state store.NodeState
	why   error
	left  time.Duration // until it votes, if nothing else happens
}

// council decides: it is the work of plan on one look.
type council struct {
	wish
	views []view
	need  int
	plan  plan

	set     string
	seats   []seat
	longest time.Duration
	at      []int // the seat of each node, -1 when it has none
	current nodes
}

// decide says what one look at all nodes calls for. It is a function of what was seen, and every
// client comes to the same.
//
// A server that may have forgotten what it granted (its N is not there, or was written for other
// data) takes its seat anew:
//
//	joins     N gets a new generation for the seat. A node votes only with the newest
//	          generation of its seat.
//	raise     the other nodes get that generation. When need of them have it, the server
//	          that had the seat is in no quorum.
//	begin     from then on, all write down their own time.
//	votes     when need of the nodes say that the longest lease that they know of is over
//	          since then.
//
// need others must vote all the time. When fewer do, the nodes form a set anew, for which all of
// them must answer:
//
//	forms     N names the new set, which all of the servers must be seen in at once.
//	begin     from then on, all write down their own time.
//	votes     when the longest lease is over; at once if the operator says that there is none.
func decide(views []view, w wish) plan {
	c := council{wish: w, views: views, need: len(views)/2 + 1, at: make([]int, len(views))}
	c.plan.nodes = make([]standing, len(views))
	for i := range views {
		c.at[i] = -1
		c.plan.nodes[i] = standing{state: store.NodeUnknown}
		if err := views[i].err; err != nil {
			c.out(i, store.NodeUnreachable, 0, err)
		}
	}
	c.twice()
	c.meet()
	if c.set != "" && len(c.seats) != len(views) {
		for i := range views {
			c.out(i, store.NodeStranger, 0, c.differ())
		}
		return c.plan
	}
	c.seated()
	if c.current.count() >= c.need {
		c.keep()
	} else {
		c.form()
	}
	return c.plan
}

// out records that a node does not vote, and why. The first reason stays.
func (c *council) out(i int, state store.NodeState, left time.Duration, why error) {
	if off := c.views[i].off; off > 0 && (state == store.NodeJoins || state == store.NodeForms) {
		state, why = store.NodeClock, errOff(off) // that must be seen to first
	}
	if c.plan.nodes[i].state == store.NodeUnknown {
		c.plan.nodes[i] = standing{state: state, left: left, why: &store.Refusal{Temporary: state != store.NodeTwice && state != store.NodeUnsupported, Err: why}}
	}
	if state == store.NodeUnreachable { // that it did not answer proves nothing
		c.plan.nodes[i].why = why
	}
	if left > 0 && (c.plan.tick == 0 || left < c.plan.tick) {
		c.plan.tick = left
	}
}

// silent says whether nothing more is to be decided about a node.
func (c *council) silent(i int) bool { return c.plan.nodes[i].state != store.NodeUnknown }

// twice leaves out a server that is called by two addresses, and one that cannot be told from
// another.
func (c *council) twice() {
	for i := range c.views {
		v := &c.views[i]
		switch first := slices.IndexFunc(c.views, func(o view) bool { return o.err == nil && o.id == v.id }); {
		case v.err != nil:
		case v.id == "-":
			c.out(i, store.NodeUnsupported, 0, fmt.Errorf("%w: the server does not give its replication ID (INFO replication), without which nobody could notice that it has forgotten leases", store.ErrUnsupported))
		case first < i:
			c.out(i, store.NodeTwice, 0, fmt.Errorf("%w: it is the same server as node %d, or of the same replica set, and does not vote twice; give clients of independent servers", store.ErrUnsupported, first))
		case v.evicts:
			c.out(i, store.NodeEvicts, 0, errEvicts)
		}
	}
}

// meet finds the set that most of the servers are of, and joins what they know of it.
func (c *council) meet() {
	type support struct{ votes, all int }
	sets := make(map[string]support)
	for i := range c.views {
		v := &c.views[i]
		c.longest = max(c.longest, c.wish.longest)
		if v.err != nil || !v.marked {
			continue
		}
		c.longest = max(c.longest, v.marker.longest)
		if v.marker.state == forms {
			continue
		}
		s := sets[v.marker.set]
		s.all++
		if v.intact() && v.marker.state == votes {
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
				c.seats = join(c.seats, v.marker.seats)
			}
		}
	}
}

// seated finds the seat of each node, and the nodes that are current: intact, of the set, and the
// newest server of its seat.
func (c *council) seated() {
	if c.set == "" {
		return
	}
	known := 0 // nodes of the set that this client calls by the set's own labels
	for i := range c.views {
		v := &c.views[i]
		if v.err != nil || !v.marked || v.marker.set != c.set {
			continue
		}
		c.at[i] = v.marker.seat
		own := c.seats[v.marker.seat]
		if own.label == c.labels[i] {
			known++
		}
		if v.intact() && v.marker.state == votes && v.marker.seats[v.marker.seat].generation == own.generation && !c.silent(i) {
			c.current = c.current.with(i)
		}
	}
	for i := range c.views {
		if c.at[i] < 0 && c.views[i].err == nil {
			c.at[i] = c.seatFor(i, known)
		}
		for j := range c.each(c.current.without(i)) {
			if c.at[i] == c.at[j] && !c.current.has(i) {
				c.at[i] = -1 // another server has it
			}
		}
	}
}

func (c *council) each(s nodes) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range c.views {
			if s.has(i) && !yield(i) {
				return
			}
		}
	}
}

// seatFor is the seat of a server whose N does not say one: the seat that the set calls by this
// server's address. A client that calls none of the nodes as the set does learns nothing from
// addresses; then it is the only seat that no other node has. Whoever takes a seat, its former
// server does not vote any more, so a wrong guess costs a node, and never a lock.
func (c *council) seatFor(i, known int) int {
	free := -1
	for s := range c.seats {
		if c.seats[s].label == c.labels[i] {
			return s
		}
		if !slices.Contains(c.at, s) {
			if free >= 0 {
				free = len(c.seats)
			} else {
				free = s
			}
		}
	}
	if free == len(c.seats) || known > 0 && !c.replace {
		return -1
	}
	return free
}

// differ is what two lists of nodes come to.
func (c *council) differ() error {
	labels := make([]string, len(c.seats))
	for i, s := range c.seats {
		labels[i] = s.label
	}
	return fmt.Errorf("two lists of nodes are in use: this process has %s, and the nodes are a set of %s; give all processes the same list, or replace a node by ReplaceNode",
		strings.Join(c.labels, " "), strings.Join(labels, " "))
}

// text is a node's marker as it ought to be.
func (c *council) text(i int, set, state string, at int, seats []seat) string {
	return marker{c.views[i].id, set, state, at, c.longest, seats}.String()
}

func (c *council) step(i int, text, begin string) {
	v := &c.views[i]
	if text == v.text {
		text = ""
	}
	if text != "" || begin != "" {
		c.plan.steps = append(c.plan.steps, step{i, v.id, v.text, text, begin})
	}
}

// keep is for a set that has its quorum: its nodes learn of each other, and servers that are out
// take their seats anew.
func (c *council) keep() {
	for i := range c.views {
		switch {
		case !c.expel.has(i) || !c.current.has(i):
		case c.current.count() > c.need:
			c.current = c.current.without(i)
			c.joinAnew(i, store.NodeClock, errClockStepped)
		default: // the others are too few to put it out for everybody
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

// raise makes the current nodes learn what the set knows. It never changes the generation of a
// node's own seat: a server whose seat another one has taken stays out.
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

// joining goes on with a server that takes its seat.
func (c *council) joining(i int) {
	at, v := c.at[i], &c.views[i]
	if v.marker.state == forms { // the client that formed the set has gone before it came to this server, which has never voted
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

// waits is how long a wait still lasts: until need of the nodes say, each by its own clock, that
// the longest lease is over since the wait has begun. One wrong clock ends nothing, and no process
// has to have been there all the time.
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

// first begins the generations that a set was formed with.
const first = "0-"

// form is for servers of which fewer than need are a set: all of them become one.
func (c *council) form() {
	ids := make([]string, 0, len(c.views))
	prefix, names := "", []string(nil)
	stays := c.enroll // nothing was ever granted
	for i := range c.views {
		v := &c.views[i]
		if c.silent(i) { // each of them must be there
			c.raise()
			c.wait(0)
			return
		}
		ids = append(ids, v.id)
		stays = stays && (!v.marked || v.marker.state == forms)
		alien := v.intact() && v.marker.state != forms && v.marker.set != c.set
		if alien || c.at[i] < 0 && c.current != 0 {
			c.raise()
			for j := range c.views {
				c.out(j, store.NodeStranger, 0, c.differ())
			}
			return
		}
	}
	order := slices.Sorted(slices.Values(ids))
	sum := sha256.Sum256([]byte(strings.Join(order, "")))
	prefix = hex.EncodeToString(sum[:4])
	half := false // another client has begun to write it
	var labels []seat
	for i := range c.views {
		if v := &c.views[i]; v.intact() && v.marker.state == forms && strings.HasPrefix(v.marker.set, prefix+"-") && len(v.marker.seats) == len(c.views) {
			names = append(names, v.marker.set)
		}
	}
	name := prefix + "-" + c.fresh("")
	if len(names) > 0 {
		name = slices.Min(names)
	}
	seats := make([]seat, len(order))
	for i, id := range ids {
		seats[slices.Index(order, id)] = seat{first + id[:8], c.labels[i]}
	}
	all := 0
	for i := range c.views {
		if v := &c.views[i]; v.intact() && v.marker.set == name {
			all++
			half = half || v.marker.state == votes
			if labels == nil {
				labels = v.marker.seats
			}
			labels = join(labels, v.marker.seats)
		}
	}
	if labels != nil {
		seats = labels
	}
	if all < len(c.views) {
		for i, id := range ids {
			if v := &c.views[i]; !v.intact() || v.marker.set != name {
				c.step(i, c.text(i, name, forms, slices.Index(order, id), seats), "")
			}
		}
		c.wait(c.gate(c.longest))
		return
	}
	left := c.waits(name, 1<<len(c.views)-1)
	if stays || half {
		left = 0
	}
	begun := true
	for i := range c.views {
		_, ok := c.views[i].begun[name]
		begun = begun && ok
	}
	if left > 0 || !begun {
		c.wait(left)
		return
	}
	for i, id := range ids {
		c.step(i, c.text(i, name, votes, slices.Index(order, id), seats), "")
	}
	c.wait(0)
}

// wait is what all nodes say while they become a set.
func (c *council) wait(left time.Duration) {
	for i := range c.views {
		if left == 0 {
			c.out(i, store.NodeForms, 0, errForms)
		} else {
			c.out(i, store.NodeForms, left, errJoins(left))
		}
	}
}
