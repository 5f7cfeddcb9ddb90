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

// view is the result of one look at a node.
type view struct {
	err    error // the node did not answer; then the other fields are empty
	at     time.Time
	id     string // identity of the server's data
	evicts bool   // the server may evict keys when its memory is full
	text   string // value of N, "" when N does not exist
	marker marker
	marked bool // N has a valid marker
	begun  map[string]time.Time
	off    time.Duration // distance of its clock from the other clocks, 0 within the allowed skew
}

// intact reports whether the server still has the data for which N was written.
func (v *view) intact() bool { return v.err == nil && v.marked && v.marker.id == v.id }

// wish has the requirements of the client that looks at the nodes.
type wish struct {
	labels  []string      // names of the nodes in this client's list
	longest time.Duration // longest TTL that the client may ask for
	gate    func(longest time.Duration) time.Duration
	fresh   func(after string) string // makes a generation, larger than after
	enroll  bool                      // the operator declares that new servers hold no leases
	replace bool                      // the operator wants a server without a seat to take the free seat
	expel   nodes                     // nodes whose clocks have stepped, so they may have dropped leases
}

// step is one change of a node's marker, as a compare-and-set. Any client may make it at any time,
// also more than once.
type step struct {
	node  int
	id    string // identity of the server at the look
	old   string // value of N at the look
	text  string // new value of N, "" for no change
	begin string // name of a wait that begins now, "" for none
}

// plan is the result of one look at all nodes.
type plan struct {
	steps []step
	nodes []standing
	tick  time.Duration // time until the next look is due; 0: none is due
}

// standing is the state of a node in its set.
type standing struct {
	text  string // marker under which the node may be asked; "" when it does not vote
	state store.NodeState
	why   error
	left  time.Duration // time until it votes, if nothing else happens
}

// council has the working state of decide.
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

// decide returns the changes that follow from one look at all nodes. It is a pure function of the
// views, so every client with the same views makes the same plan.
//
// A server may have forgotten its leases when its N is missing or was written for other data. Such
// a server takes its seat anew:
//
//	joins     N gets a new generation for the seat. A node votes only with the newest
//	          generation of its seat.
//	raise     the other nodes get that generation. When need of them have it, the server
//	          that had the seat is in no quorum.
//	begin     then each of them records its own time.
//	votes     when by the clocks of need nodes the longest known lease is over since
//	          that time.
//
// need other nodes must vote all the time. When fewer nodes vote, the nodes form a set anew, and
// all of them must answer:
//
//	forms     N names the new set. One look must show all servers in that set.
//	begin     then each of them records its own time.
//	votes     when the longest lease is over; at once if the operator declares that there is none.
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

// out records that a node does not vote, and the reason. The first reason stays.
func (c *council) out(i int, state store.NodeState, left time.Duration, why error) {
	if off := c.views[i].off; off > 0 && (state == store.NodeJoins || state == store.NodeForms) {
		state, why = store.NodeClock, errOff(off) // the clock must be set right first
	}
	if c.plan.nodes[i].state == store.NodeUnknown {
		c.plan.nodes[i] = standing{state: state, left: left, why: &store.Refusal{Temporary: state != store.NodeTwice && state != store.NodeUnsupported, Err: why}}
	}
	if state == store.NodeUnreachable { // a missing answer proves nothing, so it is no Refusal
		c.plan.nodes[i].why = why
	}
	if left > 0 && (c.plan.tick == 0 || left < c.plan.tick) {
		c.plan.tick = left
	}
}

// silent reports whether the state of a node is decided already.
func (c *council) silent(i int) bool { return c.plan.nodes[i].state != store.NodeUnknown }

// twice refuses a server that the list names by two addresses, and a server without an identity.
func (c *council) twice() {
	for i := range c.views {
		v := &c.views[i]
		switch first := slices.IndexFunc(c.views, func(o view) bool { return o.err == nil && o.id == v.id }); {
		case v.err != nil:
		case v.id == "-":
			c.out(i, store.NodeUnsupported, 0, fmt.Errorf("%w: the server does not show its replication ID (INFO replication), which is needed to notice that a server has forgotten its leases", store.ErrUnsupported))
		case first < i:
			c.out(i, store.NodeTwice, 0, fmt.Errorf("%w: it is the same server as node %d, or a server of the same replica set, and cannot vote twice; give clients of independent servers", store.ErrUnsupported, first))
		case v.evicts:
			c.out(i, store.NodeEvicts, 0, errEvicts)
		}
	}
}

// meet finds the set to which most of the servers belong, and merges their knowledge of it.
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

// seated finds the seat of each node. It also finds the current nodes: a current node is intact,
// belongs to the set, and is the newest server of its seat.
func (c *council) seated() {
	if c.set == "" {
		return
	}
	known := 0 // number of nodes whose label in this client's list is the label in the set
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
				c.at[i] = -1 // another server has the seat
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

// seatFor is the seat of a server whose N names none: the seat that has this server's address in
// the set. When this client's addresses all differ from the set's, addresses do not help; then it
// is the only free seat. The former server of a seat that is taken does not vote any more. So a
// wrong guess costs the vote of one node, and never a lock.
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

// differ is the error for two lists of nodes.
func (c *council) differ() error {
	labels := make([]string, len(c.seats))
	for i, s := range c.seats {
		labels[i] = s.label
	}
	return fmt.Errorf("two lists of nodes are in use: this process uses %s, and the nodes form a set of %s; give all processes the same list, or replace a node with ReplaceNode",
		strings.Join(c.labels, " "), strings.Join(labels, " "))
}

// text is the marker that a node should have.
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

// keep is for a set with a quorum of current nodes. The nodes get the newest generations, and
// servers that do not vote take their seats anew.
func (c *council) keep() {
	for i := range c.views {
		switch {
		case !c.expel.has(i) || !c.current.has(i):
		case c.current.count() > c.need:
			c.current = c.current.without(i)
			c.joinAnew(i, store.NodeClock, errClockStepped)
		default: // the other nodes are too few to remove its vote for all clients
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
// own seat: a server whose seat another server has taken does not vote any more.
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

// joining makes the next step for a server that takes its seat.
func (c *council) joining(i int) {
	at, v := c.at[i], &c.views[i]
	if v.marker.state == forms { // the client that formed the set ended before it reached this server, which has never voted
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

// waits is how long a wait still lasts. It is over when, by the clocks of need nodes, the longest
// lease is over since the wait has begun. So one wrong clock cannot end a wait, and no process has
// to run all the time.
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

// first is the prefix of the generations with which a set was formed.
const first = "0-"

// form is for servers of which fewer than need belong to a set. All of them form one.
func (c *council) form() {
	if !c.canForm() {
		return
	}
	stays := c.enroll // no lease was ever granted
	order := make([]string, 0, len(c.views))
	for i := range c.views {
		v := &c.views[i]
		order = append(order, v.id)
		stays = stays && (!v.marked || v.marker.state == forms)
	}
	slices.Sort(order)
	name := c.newSet(order)
	seats, all := c.newSeats(name, order)
	if all < len(c.views) {
		for i := range c.views {
			if v := &c.views[i]; !v.intact() || v.marker.set != name {
				c.step(i, c.text(i, name, forms, slices.Index(order, v.id), seats), "")
			}
		}
		c.wait(c.gate(c.longest))
		return
	}
	left, begun := c.waits(name, 1<<len(c.views)-1), true
	for i := range c.views {
		v := &c.views[i]
		if stays || v.marker.state == votes { // another client has begun the last step
			left = 0
		}
		_, ok := v.begun[name]
		begun = begun && ok
	}
	if left > 0 || !begun {
		c.wait(left)
		return
	}
	for i := range c.views {
		c.step(i, c.text(i, name, votes, slices.Index(order, c.views[i].id), seats), "")
	}
	c.wait(0)
}

// canForm reports whether all servers have answered and none belongs to another set. Otherwise it
// records why the nodes do not vote.
func (c *council) canForm() bool {
	for i := range c.views {
		if c.silent(i) {
			c.raise()
			c.wait(0)
			return false
		}
		v := &c.views[i]
		alien := v.intact() && v.marker.state != forms && v.marker.set != c.set
		if alien || c.at[i] < 0 && c.current != 0 {
			c.raise()
			for j := range c.views {
				c.out(j, store.NodeStranger, 0, c.differ())
			}
			return false
		}
	}
	return true
}

// newSet is the name of the set that the servers form: the smallest name that one of them has
// already, or a new name. order has their identities, sorted.
func (c *council) newSet(order []string) string {
	sum := sha256.Sum256([]byte(strings.Join(order, "")))
	prefix := hex.EncodeToString(sum[:4]) + "-"
	name, names := prefix+c.fresh(""), []string(nil)
	for i := range c.views {
		if v := &c.views[i]; v.intact() && v.marker.state == forms && strings.HasPrefix(v.marker.set, prefix) && len(v.marker.seats) == len(c.views) {
			names = append(names, v.marker.set)
		}
	}
	if len(names) > 0 {
		name = slices.Min(names)
	}
	return name
}

// newSeats are the seats of the set that the servers form. all is the number of servers that have a
// marker of that set.
func (c *council) newSeats(name string, order []string) (seats []seat, all int) {
	seats = make([]seat, len(order))
	for i := range c.views {
		id := c.views[i].id
		seats[slices.Index(order, id)] = seat{first + id[:8], c.labels[i]}
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
		known = join(known, v.marker.seats)
	}
	if known != nil {
		seats = known
	}
	return seats, all
}

// wait records that all nodes are forming a set.
func (c *council) wait(left time.Duration) {
	for i := range c.views {
		if left == 0 {
			c.out(i, store.NodeForms, 0, errForms)
		} else {
			c.out(i, store.NodeForms, left, errJoins(left))
		}
	}
}
