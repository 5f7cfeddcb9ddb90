package quorum

import (
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// view is the result of one look at a node.
type view struct {
	err      error // why the node did not answer (then the other fields are empty); nil: it answered
	clock    time.Time
	id       string // identity of the server's data
	evicts   bool   // the server may evict keys when its memory is full
	text     string // value of N; "" when N does not exist
	marker   marker
	marked   bool // N has a valid marker
	waits    map[string]time.Time
	clockOff time.Duration // distance of the node's clock from the other clocks; 0 if it is within the allowed skew
}

// intact reports whether the server still has the data with which N was written.
func (v *view) intact() bool { return v.err == nil && v.marked && v.marker.id == v.id }

// wish has the requirements of the client that looks at the nodes.
type wish struct {
	labels        []string      // names of the nodes in this client's list
	longest       time.Duration // longest TTL that the client may ask for
	asks          bool          // the client has asked for votes; otherwise longest counts only if the nodes know no TTL
	quarantine    func(longest time.Duration) time.Duration
	newGeneration func(after string) string // makes a generation, larger than after
	enroll        bool                      // the operator declares that new servers hold no leases
	replace       bool                      // the operator wants a server without a seat to take the free seat
	expel         nodes                     // nodes whose clocks have stepped, so they may have dropped leases
}

// step is one change of a node's marker, as a compare-and-set. Any client may make it at any time,
// even more than once.
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

	renamed nodes // nodes that have another address in this client's list than in the set
}

// standing shows whether a node votes in its set, and if not, why.
type standing struct {
	text      string // marker under which the node may be asked; "" when it does not vote
	state     store.NodeState
	reason    error
	remaining time.Duration // time until the node votes, if nothing else happens
}

// council has the working state of the function decide.
type council struct {
	wish
	views []view
	need  int
	plan  plan

	set     string
	seats   []seat
	longest time.Duration
	seatOf  []int // the seat of each node; -1 when the node has none
	guessed nodes // nodes whose seats are guesses
	current nodes

	sameNames bool // a current node has the same address in this client's list and in the set
	reordered bool // a node without an address has another index in this client's list than in the set
}

// decide returns the changes that follow from one look at all nodes. It is a pure function of the
// views, so every client with the same views makes the same plan.
//
// A server may have forgotten its leases when its N is missing or was written for other data. Such
// a server takes its seat anew:
//
//	joins     N gets a new generation for the seat. A node votes only with the newest
//	          generation of its seat.
//	raise     the other nodes get that generation. When a quorum of nodes has it, no quorum
//	          can include the former server of the seat any more.
//	begin     then each of these nodes records its own time.
//	votes     when, by the clocks of a quorum of nodes, the longest known lease has ended
//	          since that time.
//
// During these steps, a quorum of other nodes must vote all the time. When fewer nodes vote, the
// nodes form a new set, for which all nodes must answer:
//
//	forms     N names the new set. One look must show all servers in that set.
//	begin     then each of these nodes records its own time.
//	votes     when the longest lease is over; at once if the operator declares that there are
//	          no leases.
func decide(views []view, w wish) plan {
	c := council{wish: w, views: views, need: len(views)/2 + 1, seatOf: make([]int, len(views))}
	c.plan.nodes = make([]standing, len(views))
	for i := range views {
		c.seatOf[i] = -1
		c.plan.nodes[i] = standing{state: store.NodeUnknown}
		if err := views[i].err; err != nil {
			c.exclude(i, store.NodeUnreachable, 0, err)
		}
	}
	c.refuseUnfit()
	c.findSet()
	if c.set != "" && len(c.seats) != len(views) {
		for i := range views {
			c.exclude(i, store.NodeStranger, 0, c.errListDiffers())
		}
		return c.plan
	}
	c.findSeats()
	if c.current.count() >= c.need {
		c.keepSet()
	} else {
		c.formSet()
	}
	return c.plan
}

// exclude records that node i does not vote: its state, the time remaining until it votes, and the
// reason. A state that was recorded earlier stays.
func (c *council) exclude(i int, state store.NodeState, remaining time.Duration, reason error) {
	if off := c.views[i].clockOff; off > 0 && (state == store.NodeJoins || state == store.NodeForms) {
		state, reason = store.NodeClock, errClockOff(off) // the node can vote only after its clock was set right
	}
	if c.plan.nodes[i].state == store.NodeUnknown {
		c.plan.nodes[i] = standing{state: state, remaining: remaining, reason: &store.Refusal{Temporary: state != store.NodeTwice && state != store.NodeUnsupported, Err: reason}}
	}
	if state == store.NodeUnreachable { // a missing answer does not prove that the step had no effect, so the error is no Refusal
		c.plan.nodes[i].reason = reason
	}
	if remaining > 0 && (c.plan.tick == 0 || remaining < c.plan.tick) {
		c.plan.tick = remaining
	}
}

// hasStanding reports whether the state of node i is decided already.
func (c *council) hasStanding(i int) bool { return c.plan.nodes[i].state != store.NodeUnknown }

// refuseUnfit excludes a server that the list names by two addresses, a server without an identity,
// and a server that may evict keys.
func (c *council) refuseUnfit() {
	for i := range c.views {
		v := &c.views[i]
		switch first := slices.IndexFunc(c.views, func(o view) bool { return o.err == nil && o.id == v.id }); {
		case v.err != nil:
		case v.id == "-":
			c.exclude(i, store.NodeUnsupported, 0, fmt.Errorf("%w: the server does not show its replication ID (INFO replication), which is needed to notice that a server has forgotten its leases", store.ErrUnsupported))
		case first < i:
			c.exclude(i, store.NodeTwice, 0, fmt.Errorf("%w: it is the same server as node %d, or a server of the same replica set, and cannot vote twice; give clients of independent servers", store.ErrUnsupported, first))
		case v.evicts:
			c.exclude(i, store.NodeEvicts, 0, errEvicts)
		}
	}
}

// markerText returns the text of the marker that node i should have: with the given set, state,
// seat and seats.
func (c *council) markerText(i int, set, state string, seat int, seats []seat) string {
	return marker{c.views[i].id, set, state, seat, c.longest, seats}.String()
}

// step adds a change of node i to the plan, unless its marker already has the given text. The
// parameter begin is the name of a wait that begins now, or "".
func (c *council) step(i int, text, begin string) {
	v := &c.views[i]
	if text == v.text {
		text = ""
	}
	if text != "" || begin != "" {
		c.plan.steps = append(c.plan.steps, step{i, v.id, v.text, text, begin})
	}
}
