package quorum

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// standing is what this process knows about a node's right to vote. The node itself decides with
// each vote whether it votes: see vote.lua.
type standing struct {
	node *node

	mu        sync.Mutex
	checkedAt time.Time // when the node was last asked whether it evicts keys, and voted
	reason    error     // why the node does not vote; nil: it votes, or was not asked yet
	outSince  time.Time // when it stopped to vote, if it does not vote
	warned    bool      // this process has warned that the node does not vote
	expelled  bool      // the clock seemed wrong, and expelLocked has not decided yet
	expelling bool      // the clocks are read anew, and the marker is perhaps changed
}

// mayAsk returns nil if the node may be asked for its vote. The result checks is true if the request
// must let the node begin its wait, and look at its policy: when the node did not vote lately, and
// once in each quarantine.
func (s *standing) mayAsk() (checks bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expelled {
		s.expelLocked()
		return false, s.node.quorum.errStepped()
	}
	return s.reason != nil || time.Since(s.checkedAt) > s.node.quorum.quarantine(), nil
}

// record records the end of a request for a vote, or of a look. The parameter checked is true if a
// request has looked at the node's policy. A state that does not end by itself is reported at once,
// and any other state when it should have ended.
func (s *standing) record(checked bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil {
		s.outSince = time.Now()
	}
	s.reason = err
	if checked && err == nil {
		s.checkedAt = time.Now()
	}
	no, ok := errors.AsType[*notVoting](err)
	lasts := ok && no.state != store.NodeJoins || time.Since(s.outSince) > s.node.quorum.quarantine()
	switch {
	case err == nil && s.warned:
		s.warned = false
		s.node.warn("node-returned", "the node votes again")
	case err != nil && lasts && !s.warned:
		s.warned = true
		s.node.warn("node-out", fmt.Sprintf("the node does not vote, so fewer other nodes may fail: %v", err))
	}
}

// recordClock records that the clock of node n showed the time clock after sentAt. A node whose
// clock is wrong, while a majority agrees, may have dropped leases too early. So it is expelled: its
// marker must say that its wait has not begun.
func (q *quorum) recordClock(n *node, clock, sentAt time.Time) {
	q.clocks.note(n.index, clock, sentAt)
	_, near, far := q.clocks.compare(q.skew)
	if near.count() < q.need {
		return
	}
	for o := range q.eachNode(far) {
		o.standing.mu.Lock()
		o.standing.expelled = true
		o.standing.expelLocked()
		o.standing.mu.Unlock()
	}
}

// expelLocked begins to change the node's marker, so that no process gets the node's vote before
// its clock is right and its wait is over. It is tried again at the next request for a vote. Before
// that, all clocks are read anew, and a majority of them must agree: the clock of this machine may have
// drifted since it read them, or have stood still while it was suspended or moved to another host, and
// one client would expel healthy nodes. The caller holds s.mu.
func (s *standing) expelLocked() {
	if s.expelling {
		return
	}
	s.expelling = true
	s.node.links.Pool.Do(func() {
		q, i := s.node.quorum, s.node.index
		ctx, cancel := context.WithTimeout(backgroundContext, 2*q.patience)
		defer cancel()
		views := askEach(q, q.patience, func(n *node) (view, error) { return n.look(ctx) }, nil)
		v, err := views.values[i], views.errs[i]
		_, near, far := q.clocks.compare(q.skew)
		wrong := (near&views.received()).count() >= q.need && far.has(i)
		if m, ok := parseMarker(v.text); wrong && err == nil && ok && m.id == v.id && m.since != neverSince {
			m.since = neverSince
			err = v.mark(ctx, s.node, m)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.expelling, s.expelled = false, err != nil; wrong {
			s.reason = q.errStepped()
		}
	})
}

// marker is the value of a node's key N: see votes.lua.
type marker struct {
	id       string // the identity of the server's data
	since    string // since when the node may vote, in µs
	settings string // the number of nodes and the longest TTL
}

// These times in a marker mean that the node votes at once, and that its wait has not begun.
const (
	alwaysSince = "0000000000000000"
	neverSince  = "9999999999999999"
)

func (m marker) String() string { return m.id + "/" + m.since + "/" + m.settings }

// parseMarker reads the text of a marker. The result ok is false if text is no valid marker.
func parseMarker(text string) (m marker, ok bool) {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) != 3 || len(parts[0]) != 40 || len(parts[1]) != 16 || strings.Count(parts[2], "/") != 1 {
		return m, false
	}
	return marker{parts[0], parts[1], parts[2]}, true
}

// view is the result of one look at a node.
type view struct {
	clock  time.Time
	id     string
	evicts bool
	text   string // of the marker; "": there is none
}

// look reads the marker of node n, and changes nothing.
func (n *node) look(ctx context.Context) (v view, err error) {
	sentAt := time.Now()
	call := lookScript.Call([]string{redisstore.NodeKey})
	call.Patience = n.quorum.patience
	text, err := call.Run(ctx, n.links)
	if err != nil {
		return v, err
	}
	r := redisstore.Reply{Rest: text}
	v = view{clock: r.Time(), id: r.Word(), evicts: r.Word() == "1", text: r.Rest}
	if v.id == "" {
		return v, redisstore.Unreadable("look")
	}
	n.quorum.clocks.note(n.index, v.clock, sentAt)
	return v, nil
}

// mark changes the marker of node n to m, if it is still what v shows.
func (v *view) mark(ctx context.Context, n *node, m marker) error {
	call := markScript.Call([]string{redisstore.NodeKey}, v.id, v.text, m.String())
	call.Patience = n.quorum.patience
	answer, err := call.Run(ctx, n.links)
	if err == nil && answer != "1" {
		err = errors.New("the node's marker has changed meanwhile")
	}
	return err
}

// reason returns why the node with this view does not vote in a quorum with the given settings, or
// nil if it votes.
func (q *quorum) reason(v *view, settings string) error {
	m, ok := parseMarker(v.text)
	since, _ := strconv.ParseInt(m.since, 10, 64)
	switch left := time.UnixMicro(since).Sub(v.clock); {
	case v.id == "-":
		return votesNot(store.NodeUnsupported, "the server does not show its replication ID, so it cannot be a node; check for a proxy between server and client")
	case v.evicts:
		return errEvicts
	case ok && m.settings != settings:
		return q.errOther(m.settings)
	case !ok || m.id != v.id:
		return q.errWaits(0)
	case m.since == neverSince:
		return q.errStepped()
	case left > 0:
		return q.errWaits(left)
	}
	return nil
}

// settingsLike returns the settings of the marker with the given text if only its longest TTL is
// another. Otherwise it returns the settings of the quorum.
func (q *quorum) settingsLike(text string) string {
	m, ok := parseMarker(text)
	of, _, _ := strings.Cut(m.settings, "/")
	if own, _, _ := strings.Cut(q.settings, "/"); ok && of == own {
		return m.settings
	}
	return q.settings
}

// Nodes looks at all nodes, and returns the state of each. It changes nothing. To a process that
// only looks, and was not told the longest TTL, that of the markers is right.
func (q *quorum) Nodes(ctx context.Context) ([]store.Node, error) {
	views := askEach(q, q.patience, func(n *node) (view, error) { return n.look(ctx) }, nil)
	all := make([]store.Node, len(q.nodes))
	servers := make(map[string]int)
	for i, n := range q.nodes {
		err := views.errs[i]
		if err == nil {
			err = q.outOfPlace(&views.values[i], i, servers)
		}
		all[i] = store.Node{Index: i, Addr: n.addr, State: store.NodeVotes}
		all[i].Offset, _ = q.clocks.offset(i)
		if err != nil {
			all[i].State, all[i].Reason = store.NodeUnreachable, err.Error()
		}
		if no, ok := errors.AsType[*notVoting](err); ok {
			all[i].State, all[i].Left = no.state, no.left
		}
		n.standing.record(false, err)
	}
	return all, ctx.Err()
}

// outOfPlace returns why node i, with the view v, does not vote for this process, or nil if it votes.
// The parameter servers has the nodes before it, by their identities.
func (q *quorum) outOfPlace(v *view, i int, servers map[string]int) error {
	if other, twice := servers[v.id]; twice {
		return errTwice(other)
	}
	servers[v.id] = i
	if _, off := q.clocks.offset(i); off > q.skew {
		return q.errClockOff(i)
	}
	if q.asks.Load() {
		return q.reason(v, q.settings)
	}
	return q.reason(v, q.settingsLike(v.text))
}

// warn reports a change of the node's standing, with the given code and text.
func (n *node) warn(code, text string) {
	if report := n.quorum.report; report != nil {
		n.links.Pool.Do(func() { report(store.Warning{Code: code, Text: n.error(errors.New(text)).Error()}) })
	}
}

// Watch makes the quorum report when a node stops to vote, and when it votes again.
func (q *quorum) Watch(report func(store.Warning)) { q.report = report }
