package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// node is one independent server of a quorum.
type node struct {
	*redisstore.Store // for calls that need no vote
	links             *link.Links
	cluster           bool // the node is a Redis Cluster, and not one server
	index             int
	addr              string
	label             string // name of the node in the markers that this process writes
	quorum            *quorum
	subscription      subscription // nil: the client cannot subscribe

	underWay atomic.Int32          // number of calls under way at the node
	landed   chan struct{}         // receives a signal when the last call has ended; has room for one signal
	failed   atomic.Int32          // number of failed calls in a row
	last     atomic.Pointer[error] // error of the last call, nil when it succeeded
	opening  atomic.Bool           // a subscription to the inbox is under way
}

// poll is a node's answer to an acquire.
type poll struct {
	store.Grant
	holder string // with Busy: identifies the holder
	minted uint64 // Granted: the fence that this node has made, which may differ from the quorum's fence; it identifies the vote
	text   string // the marker's text that the request carried
	era    era    // the era of this text
}

// newNode returns node i of the quorum q, with the client c.
func newNode(c redisstore.Client, i int, q *quorum) *node {
	n := &node{
		links: link.New(c, link.Options{OfQuorum: true}), index: i, addr: addressOf(c), quorum: q, landed: make(chan struct{}, 1),
	}
	n.Store = redisstore.Attach(c, n.links)
	_, n.cluster = c.(redisstore.ClusterClient)
	if n.label = labelOf(n.addr); n.label == "" || n.addr == failover {
		n.label = "#" + strconv.Itoa(i)
	}
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

// acquire asks for the node's vote, if the node may vote, and passes the answer to onAnswer.
func (n *node) acquire(ctx context.Context, a *appeal, onAnswer func(poll, error)) {
	text := a.roster.members[n.index].text.Load()
	if text == nil {
		n.links.Pool.Do(func() { n.acquireAnew(ctx, a, onAnswer) })
		return
	}
	n.vote(ctx, a, text, func(p poll, err error) {
		if err != errChanged {
			onAnswer(p, err)
			return
		}
		n.links.Pool.Do(func() {
			a.roster.forgetText(n, *text)
			n.acquireAnew(ctx, a, onAnswer)
		})
	})
}

// acquireAnew looks at the node again, and then does the work of acquire.
func (n *node) acquireAnew(ctx context.Context, a *appeal, onAnswer func(poll, error)) {
	text, err := a.roster.textFor(ctx, n)
	if err != nil {
		if !isRefusal(err) { // the look has failed, so the node was not asked for its vote
			err = &store.Refusal{Temporary: true, Err: err}
		}
		onAnswer(poll{}, err)
		return
	}
	n.vote(ctx, a, text, onAnswer)
}

// vote sends vote.lua to the node, with the given text of its marker, and passes the answer to
// onAnswer.
func (n *node) vote(ctx context.Context, a *appeal, text *string, onAnswer func(poll, error)) {
	c := &a.claim
	if n.inboxOf(c) != "" {
		n.subscription.Inbox(c.Key) // marks the inbox as in use
	}
	sentAt := time.Now()
	call := a.callTo(n, text)
	call.Begin(ctx, n.links, link.Ask, func(v string, err error) {
		if err != nil {
			onAnswer(poll{}, err)
			return
		}
		p, clock, err := n.quorum.pollOf(a, v)
		if !clock.IsZero() {
			a.roster.recordClock(n, clock, sentAt)
		}
		p.text, p.era = *text, eraOf(*text)
		onAnswer(p, err)
	})
}

// pollOf reads text, the answer of a node to the appeal a. The result clock is the time by the
// node's clock.
func (q *quorum) pollOf(a *appeal, text string) (p poll, clock time.Time, err error) {
	r := redisstore.Reply{Rest: text}
	state := r.Word()
	clock = r.Time()
	switch state {
	case "changed":
		return poll{}, clock, errChanged
	case "1":
		p.State, p.Fence, p.FenceCount, p.minted = store.Granted, a.hint, a.block, a.hint
	case "granted":
		_ = r.Word()
		h, minted, ok := parseVote(r.Rest)
		if !ok {
			return poll{}, time.Time{}, redisstore.Unreadable("acquire")
		}
		p.State, p.Fence, p.FenceCount, p.minted = store.Granted, h.Fence, h.Block, minted
	case "busy":
		left := r.Duration()
		p.State, p.Place, p.NotListening = store.Busy, int(r.Integer()), r.Word() == "0"
		h, _, ours := parseVote(r.Rest)
		p.Holder = store.Holder{
			Fence: h.Fence, Left: left, Metadata: h.Metadata, Foreign: !ours, Kept: h.Token == redisstore.KeptToken,
		}
		if p.holder = r.Rest; ours && h.Token != redisstore.KeptToken {
			p.holder, p.Holder.Left = h.Token, q.holderLife(left)
		}
	case "undone":
		p.State = store.Undone
	case "revoked":
		p.State, p.Reason = store.Revoked, r.Rest
	case "done":
		p.State = store.Done
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

// confirm raises the node's vote p to fence, the fence of the quorum, with the given number of
// fences in its block. It calls onAnswer with false when the owner does not have the vote any more.
func (n *node) confirm(ctx context.Context, c store.Claim, p poll, fence uint64, block int, onAnswer func(bool, error)) {
	confirmScript.Call(
		[]string{c.Key, redisstore.CounterKey(c.Key), n.quorum.roster(c.Key).markerKey},
		p.text, c.Owner, strconv.FormatUint(p.minted, 10), strconv.FormatUint(fence, 10),
		strconv.FormatUint(fence+uint64(block)-1, 10),
	).Begin(ctx, n.links, link.Renewal, func(v string, err error) { onAnswer(v == "1", err) })
}

// releaseArgs has the arguments of a release besides the claim. An ordinary release needs none.
type releaseArgs struct {
	vote      uint64 // the fence that the node has made for the vote to withdraw; 0: any vote
	hush      bool   // notify no waiter
	tombstone string // text of the tombstone; "" means "undone"
	text      string // text of the node's marker; only with Complete
}

// release releases the token of c at this node: the node takes its vote back, and notifies a
// waiter. It passes the answer to onAnswer.
func (n *node) release(ctx context.Context, c store.Claim, args releaseArgs, onAnswer func(store.Grant, error)) {
	n.startRelease(ctx, n.releaseCall(&c, args), link.Release, func(g store.Grant, err error) {
		if err != errChanged {
			onAnswer(g, err)
			return
		}
		c.Complete = false // the done mark would not count, but the node must still end the lease
		n.release(ctx, c, args, func(_ store.Grant, err error) {
			if err == nil {
				err = errChanged
			}
			onAnswer(g, err)
		})
	})
}

// startRelease sends release, a call of release.lua, and passes the answer to onAnswer.
func (n *node) startRelease(ctx context.Context, release *redisstore.Call, class link.Class, onAnswer func(store.Grant, error)) {
	release.Begin(ctx, n.links, class, func(text string, err error) { onAnswer(releaseAnswer(text, err)) })
}

// repeatRelease sends the release of c to this node again and again until the node confirms it. It
// sets no done mark: other nodes have made the release a success, and they have the mark.
func (n *node) repeatRelease(c store.Claim) {
	c.Complete = false
	ch := calls.Chore{Claim: c, Useless: time.Now().Add(max(c.TTL, c.TombstoneTTL, calls.QueueLife))}
	if c.KeepFor > 0 {
		ch.Keep = time.Now().Add(c.KeepFor)
	}
	ch.Try = func(c store.Claim, onAnswer func(store.Grant, error)) {
		n.startRelease(context.Background(), n.releaseCall(&c, releaseArgs{}), link.Undo, onAnswer)
	}
	n.links.Repeat(ch)
}

// releaseCall returns the call of release.lua for the claim c and the further arguments args.
func (n *node) releaseCall(c *store.Claim, args releaseArgs) *redisstore.Call {
	done, text, hush := time.Duration(0), "-", "0"
	if c.Complete {
		done = c.OnceFor
		if args.text != "" {
			text = args.text
		}
	}
	if args.hush {
		hush = "1"
	}
	entry, more := "", ""
	if inbox := n.inboxOf(c); inbox != "" {
		entry = c.Owner + "|" + inbox + "|" + redisstore.AsksOnce(*c)
	}
	if c.KeepFor > 0 || c.TombstoneTTL > 0 || done > 0 || args != (releaseArgs{text: args.text}) {
		more = fmt.Sprintf("%d %d %d %d %s %s %s", redisstore.Millis(c.KeepFor), redisstore.Millis(c.TombstoneTTL), redisstore.Millis(done),
			args.vote, hush, text, cmp.Or(args.tombstone, "undone"))
	}
	return releaseScript.Call(
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.TombstoneKey(c.Key, c.Owner),
			redisstore.DoneKey(c.Key), n.quorum.roster(c.Key).markerKey},
		c.Owner, entry, more)
}

// releaseAnswer converts the reply of release.lua, or the error err of its call, to a Grant.
func releaseAnswer(text string, err error) (store.Grant, error) {
	if err != nil {
		return store.Grant{}, err
	}
	r := redisstore.Reply{Rest: text}
	switch r.Word() {
	case "released":
		return store.Grant{State: store.Released}, nil
	case "not-ours":
		return store.Grant{State: store.NotOurs}, nil
	case "done":
		return store.Grant{State: store.Done}, nil
	case "revoked":
		return store.Grant{State: store.Revoked, Reason: r.Rest}, nil
	case "changed":
		return store.Grant{}, errChanged
	}
	return store.Grant{}, redisstore.Unreadable("release")
}

// renew renews the votes of the leases cs, whose keys have the same roster r, and passes the
// answers to onAnswer. The node refuses if its marker does not have the given text.
func (n *node) renew(ctx context.Context, r *roster, cs []store.Claim, text string, onAnswer func([]store.Grant, error)) {
	if text == "" {
		onAnswer(nil, r.reason(n.index))
		return
	}
	keys := make([]string, 0, len(cs)+1)
	args := make([]any, 0, 2*len(cs)+1)
	for _, c := range cs {
		keys = append(keys, c.Key)
		args = append(args, c.Owner, n.quorum.life(c.TTL))
	}
	sentAt := time.Now()
	call := renewScript.Call(append(keys, r.markerKey), append(args, text)...)
	call.Begin(ctx, n.links, link.Renewal, func(v string, err error) {
		reply := redisstore.Reply{Rest: v}
		switch {
		case err != nil:
			onAnswer(nil, err)
			return
		case strings.HasPrefix(v, "changed "):
			r.forgetAndTend(n, text)
			onAnswer(nil, errChanged)
			return
		}
		clock := reply.Time()
		if len(reply.Rest) != len(cs) {
			onAnswer(nil, redisstore.Unreadable("renew"))
			return
		}
		r.recordClock(n, clock, sentAt)
		off := n.quorum.clocks.deviation(n.index)
		grants := make([]store.Grant, len(cs))
		for i := range grants {
			switch {
			case reply.Rest[i] == '0':
				grants[i] = store.Grant{State: store.NotOurs, At: clock}
			case off > n.quorum.skew: // the node may end the lease too early
				grants[i] = store.Grant{Err: errClockOff(off)}
			default:
				grants[i] = store.Grant{State: store.Released, At: clock}
			}
		}
		onAnswer(grants, nil)
	})
}
