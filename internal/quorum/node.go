package quorum

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// node is one independent server of a quorum, or a Sentinel set.
type node struct {
	*redisstore.Store // for calls that need no vote
	links             *link.Links
	index             int
	addr              string
	quorum            *quorum
	standing          standing

	calls  calls.Tasks  // the calls that are under way at the node
	behind atomic.Int32 // number of these calls whose step has ended
	failed atomic.Int32 // number of failed calls in a row
}

// newNode returns node i of the quorum q, with the client c.
func newNode(c redisstore.Client, i int, q *quorum) *node {
	n := &node{links: link.New(c, link.Options{OfQuorum: true}), index: i, addr: addressOf(c), quorum: q}
	n.Store = redisstore.Attach(c, n.links)
	n.standing.node = n
	return n
}

// error returns err with the node's name. The result is never a Refusal, because the refusal of one
// node does not prove that the whole step had no effect.
func (n *node) error(err error) error {
	for no, ok := errors.AsType[*store.Refusal](err); ok; no, ok = errors.AsType[*store.Refusal](err) {
		err = no.Err
	}
	return &store.NodeError{Node: n.index, Addr: n.addr, Err: err}
}

// request is a request for votes. The words of the call are made once for all nodes.
type request struct {
	fence uint64 // the proposed fence, which is the present time
	block int    // the number of fences to reserve
	wait  string // how long a node waits that may have forgotten leases
	call  *redisstore.Call
}

// newRequest returns the request for the claim c. If the clocks of a majority are known, a node can
// compare its own clock with the proposed fence, and can begin its wait.
func (q *quorum) newRequest(c store.Claim) *request {
	now, near, _ := q.clocks.compare(q.skew)
	r := &request{fence: uint64(now.UnixMicro()), block: max(c.FenceCount, 1), wait: "0"}
	if near.count() >= q.need {
		r.wait = strconv.FormatInt(q.quarantine().Microseconds(), 10)
	}
	keys := []string{c.Key, redisstore.CounterKey(c.Key), redisstore.TombstoneKey(c.Key, c.Owner), redisstore.NodeKey}
	if c.OnceFor > 0 {
		keys = append(keys, redisstore.DoneKey(c.Key))
	}
	skew, last := uint64(q.skew.Microseconds()), r.fence+uint64(r.block)-1
	fence := strconv.FormatUint(r.fence, 10)
	lease := c.Owner + ":" + fence + ":" + strconv.Itoa(r.block) + ":" + fence + ":" + c.Metadata
	earliest := strconv.FormatUint(max(r.fence-skew, last-mostAhead), 10)
	r.call = voteScript.Call(keys, q.settings, lease, q.life(c.TTL), fence, strconv.FormatUint(last, 10), earliest, strconv.FormatUint(r.fence+skew, 10))
	return r
}

// mostAhead is how far the last fence of a block may be ahead of a node's clock, in µs.
const mostAhead = 100_000

// poll is a node's answer to a request for its vote.
type poll struct {
	store.Grant
	server string // the identity of the server
	holder string // Busy: identifies the holder
	minted uint64 // Granted: the fence that this node has made, which may differ from the quorum's fence; it identifies the vote
}

// vote sends the request to the node, and passes the answer to onAnswer.
func (n *node) vote(ctx context.Context, r *request, onAnswer func(poll, error)) {
	checks, err := n.standing.mayAsk()
	if n.lags() {
		err = errLags
	}
	if err != nil {
		onAnswer(poll{}, err)
		return
	}
	sentAt := time.Now()
	call := *r.call
	if checks { // a node that voted lately gets no further argument
		call.Words = append(slices.Clip(call.Words), r.wait)
	}
	call.Begin(ctx, n.links, link.Ask, func(v string, err error) {
		var p poll
		if err == nil {
			var clock time.Time
			if p, clock, err = n.quorum.pollOf(r, v); !clock.IsZero() {
				n.quorum.recordClock(n, clock, sentAt)
			}
		}
		n.standing.record(checks, err)
		onAnswer(p, err)
	})
}

// pollOf reads text, the answer of a node to the request r. The result clock is the time by the
// node's clock.
func (q *quorum) pollOf(r *request, text string) (p poll, clock time.Time, err error) {
	reply := redisstore.Reply{Rest: text}
	state := reply.Word()
	clock = reply.Time()
	p.server = reply.Word()
	switch state {
	case "1":
		p.State, p.Fence, p.FenceCount, p.minted = store.Granted, r.fence, r.block, r.fence
	case "granted":
		_ = reply.Word()
		h, minted, ok := parseVote(reply.Rest)
		if !ok {
			return poll{}, time.Time{}, redisstore.Unreadable("acquire")
		}
		p.State, p.Fence, p.FenceCount, p.minted = store.Granted, h.Fence, h.Block, minted
	case "busy":
		left := reply.Duration()
		h, _, ours := parseVote(reply.Rest)
		p.State, p.holder = store.Busy, reply.Rest
		p.Holder = store.Holder{Fence: h.Fence, Left: left, Metadata: h.Metadata, Foreign: !ours, Kept: h.Token == redisstore.KeptToken}
		if ours && h.Token != redisstore.KeptToken {
			p.holder, p.Holder.Left = h.Token, q.holderLife(left)
		}
	case "undone":
		p.State = store.Undone
	case "revoked":
		p.State, p.Reason = store.Revoked, reply.Rest
	case "done":
		p.State = store.Done
	case "waits":
		return p, clock, q.errWaits(time.Duration(reply.Integer()) * time.Microsecond)
	case "forgot":
		return p, clock, q.errWaits(0)
	case "stepped":
		return p, clock, q.errStepped()
	case "other":
		return p, clock, q.errOther(reply.Rest)
	case "evicts":
		return p, clock, errEvicts
	default:
		return poll{}, time.Time{}, redisstore.Unreadable("acquire")
	}
	return p, clock, nil
}

// parseVote reads the text of a lease L that a quorum has written:
// token:fence:block:minted:metadata. After a confirmation, fence is the fence of the whole quorum.
// The result ok is false if latchkit has not written the text.
func parseVote(text string) (h redisstore.LeaseText, minted uint64, ok bool) {
	h, ok = redisstore.ParseLease(text)
	number, metadata, _ := strings.Cut(h.Metadata, ":")
	h.Metadata = metadata
	if !ok || h.Token == redisstore.KeptToken {
		return h, 0, ok
	}
	if minted, err := strconv.ParseUint(number, 10, 64); err == nil {
		return h, minted, true
	}
	return h, 0, number == "" // either the key is kept, or a Locker that uses only this server has written the lease
}

// confirm raises the vote of c, for which the node has made the fence minted, to fence, the fence of
// the quorum, with the given number of fences in its block. It calls onAnswer with false when the
// owner does not have the vote any more.
func (n *node) confirm(ctx context.Context, c store.Claim, minted, fence uint64, block int, onAnswer func(bool, error)) {
	confirmScript.Call(
		[]string{c.Key, redisstore.CounterKey(c.Key), redisstore.NodeKey},
		n.quorum.settings, c.Owner, strconv.FormatUint(minted, 10), strconv.FormatUint(fence, 10), strconv.FormatUint(fence+uint64(block)-1, 10),
	).Begin(ctx, n.links, link.Renewal, func(v string, err error) { onAnswer(v == "1", err) })
}

// releaseArgs has the arguments of a release besides the claim. An ordinary release needs none.
type releaseArgs struct {
	vote      uint64 // the fence that the node has made for the vote to withdraw; 0: any vote
	tombstone string // text of the tombstone; "" means "undone"
}

// release releases the token of c at this node, and passes the answer to onAnswer.
func (n *node) release(ctx context.Context, c store.Claim, args releaseArgs, class link.Class, onAnswer func(store.Grant, error)) {
	keys := []string{c.Key, redisstore.TombstoneKey(c.Key, c.Owner)}
	done := time.Duration(0)
	if c.Complete && c.OnceFor > 0 {
		done = c.OnceFor
		keys = append(keys, redisstore.DoneKey(c.Key))
	}
	call := releaseScript.Call(keys, c.Owner)
	if c.KeepFor > 0 || c.TombstoneTTL > 0 || done > 0 || args != (releaseArgs{}) {
		call = releaseScript.Call(keys, c.Owner, redisstore.Millis(c.KeepFor), redisstore.Millis(c.TombstoneTTL), redisstore.Millis(done),
			strconv.FormatUint(args.vote, 10), cmp.Or(args.tombstone, "undone"))
	}
	call.Begin(ctx, n.links, class, func(text string, err error) {
		r := redisstore.Reply{Rest: text}
		g := store.Grant{}
		switch word := r.Word(); {
		case err != nil:
		case word == "released":
			g.State = store.Released
		case word == "not-ours":
			g.State = store.NotOurs
		case word == "done":
			g.State = store.Done
		case word == "revoked":
			g.State, g.Reason = store.Revoked, r.Rest
		default:
			err = redisstore.Unreadable("release")
		}
		onAnswer(g, err)
	})
}

// repeatRelease sends the release of c to this node again and again until the node confirms it.
func (n *node) repeatRelease(c store.Claim) {
	ch := calls.Chore{Claim: c, Useless: time.Now().Add(max(c.TTL, c.TombstoneTTL, calls.QueueLife))}
	if c.KeepFor > 0 {
		ch.Keep = time.Now().Add(c.KeepFor)
	}
	ch.Try = func(c store.Claim, onAnswer func(store.Grant, error)) {
		n.release(backgroundContext, c, releaseArgs{}, link.Undo, onAnswer)
	}
	n.links.Repeat(ch)
}

// renew renews the votes of the leases cs, and passes the answers and the identity of the server to
// onAnswer.
func (n *node) renew(ctx context.Context, cs []store.Claim, onAnswer func(renewed, error)) {
	keys := make([]string, 0, len(cs)+1)
	args := make([]any, 0, 2*len(cs)+1)
	for _, c := range cs {
		keys = append(keys, c.Key)
		args = append(args, c.Owner, n.quorum.life(c.TTL))
	}
	sentAt := time.Now()
	call := renewScript.Call(append(keys, redisstore.NodeKey), append(args, n.quorum.settings)...)
	call.Begin(ctx, n.links, link.Renewal, func(v string, err error) {
		if err != nil {
			onAnswer(renewed{}, err)
			return
		}
		reply := redisstore.Reply{Rest: v}
		clock := reply.Time()
		r := renewed{server: reply.Word(), yes: reply.Rest}
		n.quorum.recordClock(n, clock, sentAt)
		switch _, off := n.quorum.clocks.offset(n.index); {
		case r.server == "-":
			err = errGone
		case len(r.yes) != len(cs):
			err = redisstore.Unreadable("renew")
		case off > n.quorum.skew: // the node may end the lease too early
			r.clockOff = n.quorum.errClockOff(n.index)
		}
		onAnswer(r, err)
	})
}

// renewed is a node's answer to a renewal.
type renewed struct {
	server   string // the identity of the server
	yes      string // "1" for each lease that was renewed, "0" for each that its owner does not have
	clockOff error  // why the renewals do not count; nil: they count
}
