package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// node is one independent server of a quorum: what single is where there is one server. It gives votes.
type node struct {
	single
	cluster *clustered // a Redis Cluster; nil: one server, or the one that Sentinel picks
	index   int
	addr    string
	quorum  *quorum
	ear     ear // nil: the client cannot subscribe

	underWay atomic.Int32 // calls
	late     atomic.Int32 // those that have taken too long
	failed   atomic.Int32 // the last ones, in a row
	opening  atomic.Bool  // of the inbox

	cleaner cleaner  // releases that the node has not confirmed
	member  member   // of one server
	slots   sync.Map // of a cluster: a *member for each slot in use
}

// poll is a node's answer to an acquire.
type poll struct {
	Grant
	holder string // Busy: what tells holders apart
	minted uint64 // Granted: the fence that this node has minted, whatever the quorum's is
	vote   uint64 // Granted: grows with each vote that the node gives to a token
}

func newNode(c Client, i int, q *quorum) *node {
	n := &node{single: single{client: c, steps: c, renewals: c}, index: i, addr: addressOf(c), quorum: q}
	if cluster, ok := c.(clusterClient); ok {
		n.cluster = &clustered{n.single, cluster}
	}
	n.member.marker, n.member.out = nodeKey, outKey
	n.cleaner = cleaner{
		calls: &q.calls, background: q.background, closing: q.closing, one: true,
		release: func(ctx context.Context, c Claim) (Grant, error) { return n.release(ctx, c) },
	}
	n.cleaner.init()
	return n
}

// error says which node an error is of. That this node refused says nothing of the others, so it is no Refusal any more: whoever
// looks for one inside would take a step for not done that another node may have done.
func (n *node) error(err error) error {
	for no, ok := errors.AsType[*Refusal](err); ok; no, ok = errors.AsType[*Refusal](err) {
		err = no.Err
	}
	return &NodeError{Node: n.index, Addr: n.addr, Err: err}
}

// acquire asks for the node's vote, if it may vote.
func (n *node) acquire(ctx context.Context, a *appeal) (poll, error) {
	m := n.memberAt(a.slot)
	for range 2 {
		if err := n.admitted(ctx, m, a.slot); err != nil {
			return poll{}, err
		}
		p, err := n.vote(ctx, a, m)
		if !errors.Is(err, errForgot) {
			return p, err
		}
		n.forgot(a.slot)
	}
	return poll{}, &Refusal{Temporary: true, Err: errForgot}
}

// errForgot: the node has no marker, or not its own.
var errForgot = errors.New("it may have forgotten leases")

func (n *node) vote(ctx context.Context, a *appeal, m *member) (poll, error) {
	c := &a.claim
	if n.inboxOf(c) != "" {
		n.ear.Inbox(c.Key) // which is so in use
	}
	sent := time.Now()
	call := a.to(n, m)
	v, err := call.run(ctx, n.steps)
	if err != nil {
		return poll{}, err
	}
	p, at, err := n.pollOf(v, sent)
	if p.vote = p.minted; c.Mode == Shared { // many have the same; then it is when the reader's part runs out, in ms
		p.vote = uint64(at.UnixMilli() + millis(c.TTL)) //nolint:gosec // after 1970
	}
	return p, err
}

// pollOf reads the answer to an acquire that was sent at that time. at is the node's clock.
func (n *node) pollOf(text string, sent time.Time) (p poll, at time.Time, err error) {
	r := reply{text}
	state := r.word()
	at = r.time()
	n.quorum.clocks.note(n.index, at, sent)
	switch state {
	case "forgot":
		return poll{}, at, errForgot
	case "granted", "entered":
		_ = r.word()
		if state == "entered" {
			p.Writer = r.word() == "1"
		}
		h, minted, ok := parseVote(r.rest)
		if !ok {
			return poll{}, at, odd("acquire")
		}
		p.State, p.Fence, p.Block, p.minted = Granted, h.fence, h.block, minted
	case "busy":
		left := r.duration()
		p.State, p.Place, p.Deaf = Busy, int(r.integer()), r.word() == "0"
		h, _, ours := parseVote(r.rest)
		p.Holder = Holder{Fence: h.fence, Left: left, Metadata: h.metadata, Foreign: !ours}
		if p.holder = r.rest; ours && h.token != kept {
			p.holder = h.token
		}
	case "undone":
		p.State = Undone
	case "revoked":
		p.State, p.Reason = Revoked, r.rest
	case "done":
		p.State = Done
	default:
		return poll{}, at, odd("acquire")
	}
	return p, at, nil
}

// parseVote reads L as a quorum writes it: token:fence:block:minted:metadata. fence is the quorum's once it was confirmed.
func parseVote(text string) (h leaseText, minted uint64, ok bool) {
	h, ok = parseLease(text)
	number, metadata, _ := strings.Cut(h.metadata, ":")
	h.metadata = metadata
	if !ok || h.token == kept {
		return h, 0, ok
	}
	if minted, err := strconv.ParseUint(number, 10, 64); err == nil {
		return h, minted, true
	}
	return h, 0, number == "" // kept for somebody, or of a Locker on this server alone
}

// confirm raises the node's vote to the fence that the quorum agreed on. It is false when it is not the owner's any more.
func (n *node) confirm(ctx context.Context, c Claim, minted, fence uint64, block int) (bool, error) {
	if n.quorum.readers {
		return n.confirmReading(ctx, c, minted, fence, block)
	}
	v, err := quorumConfirmScript.run(ctx, n.steps, []string{c.Key, counterOf(c.Key)},
		c.Owner, strconv.FormatUint(minted, 10), strconv.FormatUint(fence, 10), strconv.FormatUint(fence+uint64(block)-1, 10)) //nolint:gosec // ≥ 1
	return v == "1", err
}

// release takes the vote back, and wakes who waits for it.
func (n *node) release(ctx context.Context, c Claim) (Grant, error) {
	return n.take(ctx, c, "undone", 0)
}

// take is a release whose tombstone says why. With a vote it takes that one back and no other, and wakes nobody.
func (n *node) take(ctx context.Context, c Claim, tombstone string, vote uint64) (Grant, error) {
	return takenOf(n.taking(&c, tombstone, vote).run(ctx, n.steps))
}

// taking is what take runs: quorum_release.lua.
func (n *node) taking(c *Claim, tombstone string, vote uint64) *call {
	done := time.Duration(0)
	if c.Complete {
		done = c.Once
	}
	if n.quorum.readers {
		return n.takingReader(c, tombstone, done, vote)
	}
	entry, more := "", ""
	if inbox := n.inboxOf(c); inbox != "" {
		entry = c.Owner + "|" + inbox + "|" + asksOnce(*c)
	}
	if c.Keep > 0 || c.Undo > 0 || done > 0 || vote != 0 {
		more = fmt.Sprintf("%d %d %d %d %s", millis(c.Keep), millis(c.Undo), millis(done), vote, tombstone)
	}
	return quorumReleaseScript.call(
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key)}, c.Owner, entry, more)
}

// takenOf reads the answer to a release.
func takenOf(text string, err error) (Grant, error) {
	if err != nil {
		return Grant{}, err
	}
	r := reply{text}
	switch r.word() {
	case "released":
		return Grant{State: Released}, nil
	case "not-ours":
		return Grant{State: NotOurs}, nil
	case "done":
		return Grant{State: Done}, nil
	case "revoked":
		return Grant{State: Revoked, Reason: r.rest}, nil
	}
	return Grant{}, odd("release")
}

// renew renews votes where they lie.
func (n *node) renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	if n.quorum.readers {
		return n.renewReading(ctx, cs)
	}
	if n.cluster != nil {
		return n.cluster.Renew(ctx, cs)
	}
	return n.Renew(ctx, cs)
}

// examine finds out what is unsafe about the node.
func (n *node) examine(ctx context.Context) []Warning {
	if n.cluster != nil {
		return n.cluster.Examine(ctx)
	}
	return n.Examine(ctx)
}

// clean makes the node's cleaner repeat a release until it is confirmed.
func (n *node) clean(c Claim) {
	ch := chore{claim: c, useless: time.Now().Add(max(c.TTL, c.Undo, queueLife))}
	if c.Keep > 0 {
		ch.keep = time.Now().Add(c.Keep)
	}
	n.cleaner.add(ch)
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*Refusal](err)
	return ok
}

func errOff(by time.Duration) error {
	return &Refusal{Temporary: true, Err: fmt.Errorf("its clock is %v away from the others', so its vote does not count; set it right, or allow it with WithMaxSkew", by.Round(time.Millisecond))}
}
