package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// node is one independent server of a quorum: what single is where there is one server. It gives votes.
type node struct {
	single
	index  int
	addr   string
	quorum *quorum
	inbox  *inbox // nil: the client cannot subscribe

	underWay atomic.Int32 // calls
	late     atomic.Int32 // those that have taken too long
	opening  atomic.Bool  // of the inbox

	cleaner cleaner // releases that the node has not confirmed
	member  member
}

// poll is a node's answer to an acquire.
type poll struct {
	Grant
	holder string // Busy: what tells holders apart
	minted uint64 // Granted: the fence that this node has minted, whatever the quorum's is
}

func newNode(c Client, i int, q *quorum) *node {
	n := &node{single: single{client: c, steps: c, renewals: c}, index: i, addr: addressOf(c), quorum: q}
	n.cleaner = cleaner{
		calls: &q.calls, background: q.background, closing: q.closing,
		release: func(ctx context.Context, c Claim) (Grant, error) { return n.release(ctx, c, true) },
	}
	n.cleaner.init()
	return n
}

// error says which node an error is of.
func (n *node) error(err error) error { return &NodeError{Node: n.index, Addr: n.addr, Err: err} }

// acquire asks for the node's vote, if it may vote.
func (n *node) acquire(ctx context.Context, c Claim, hint, ticket uint64) (poll, error) {
	for range 2 {
		if err := n.admitted(ctx); err != nil {
			return poll{}, err
		}
		p, err := n.vote(ctx, c, hint, ticket)
		if !errors.Is(err, errForgot) {
			return p, err
		}
		n.member.expel()
	}
	return poll{}, &Refusal{Temporary: true, Err: errForgot}
}

// errForgot: the node has no marker, or not its own.
var errForgot = errors.New("it may have forgotten leases")

func (n *node) vote(ctx context.Context, c Claim, hint, ticket uint64) (poll, error) {
	inbox := ""
	if c.Queue {
		inbox = c.Inbox
	}
	sent := time.Now()
	v, err := quorumAcquireScript.run(ctx, n.steps,
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), counterOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key), nodeKey},
		c.Owner, millis(c.TTL), int64(max(c.Block, 1)), asksOnce(c), c.Metadata, inbox,
		strconv.FormatUint(hint, 10), n.quorum.skew.Microseconds(), strconv.FormatUint(ticket, 10))
	if err != nil {
		return poll{}, err
	}
	r := reply{v}
	state := r.word()
	at := r.time()
	n.quorum.clocks.note(n.index, at, sent)
	p := poll{}
	switch state {
	case "forgot":
		return poll{}, errForgot
	case "granted":
		_ = r.word()
		h, minted, ok := parseVote(r.rest)
		if !ok {
			return poll{}, odd("acquire")
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
		return poll{}, odd("acquire")
	}
	return p, nil
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
	v, err := quorumConfirmScript.run(ctx, n.steps, []string{c.Key, counterOf(c.Key)},
		c.Owner, strconv.FormatUint(minted, 10), strconv.FormatUint(fence, 10), strconv.FormatUint(fence+uint64(block)-1, 10)) //nolint:gosec // ≥ 1
	return v == "1", err
}

// release takes the vote back, and wakes who waits for it.
func (n *node) release(ctx context.Context, c Claim, wakes bool) (Grant, error) {
	return n.take(ctx, c, "undone", wakes)
}

// take is a release whose tombstone says why.
func (n *node) take(ctx context.Context, c Claim, tombstone string, wakes bool) (Grant, error) {
	done, inbox, wake := time.Duration(0), "", "0"
	if c.Complete {
		done = c.Once
	}
	if c.Queue {
		inbox = c.Inbox
	}
	if wakes {
		wake = "1"
	}
	v, err := quorumReleaseScript.run(ctx, n.steps,
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key)},
		c.Owner, millis(c.Keep), millis(c.Undo), tombstone, millis(done), inbox, asksOnce(c), wake)
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
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
