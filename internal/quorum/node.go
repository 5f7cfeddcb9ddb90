package quorum

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// node is one independent server of a quorum.
type node struct {
	redisstore.Single // for calls that need no vote
	links             *link.Links
	cluster           bool // the node is a Redis Cluster, and not one server
	client            redisstore.Client
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
	holder string // Busy: identifies the holder
	minted uint64 // Granted: the fence that this node has made, which may differ from the quorum's fence
	vote   uint64 // Granted: identifies the vote; grows with each vote that the node gives to a token
	text   string // the marker's text that the request carried
	era    era    // the era of this text
}

func newNode(c redisstore.Client, i int, q *quorum) *node {
	n := &node{
		links: link.New(c, link.Options{One: true}), client: c, index: i, addr: addressOf(c), quorum: q, landed: make(chan struct{}, 1),
	}
	n.Single = redisstore.NewSingle(c, n.links)
	_, n.cluster = c.(redisstore.ClusterClient)
	if n.label = labelled(n.addr); n.label == "" || n.addr == failover {
		n.label = "#" + strconv.Itoa(i)
	}
	return n
}

// error adds the node's name to an error. The result is never a Refusal, because the refusal of
// one node does not prove that the whole step had no effect.
func (n *node) error(err error) error {
	for no, ok := errtype.As[*store.Refusal](err); ok; no, ok = errtype.As[*store.Refusal](err) {
		err = no.Err
	}
	return &store.NodeError{Node: n.index, Addr: n.addr, Err: err}
}

// acquire asks for the node's vote, if the node may vote.
func (n *node) acquire(ctx context.Context, a *appeal, answered func(poll, error)) {
	text := a.roster.members[n.index].text.Load()
	if text == nil {
		n.links.Go(func() { n.acquireAnew(ctx, a, answered) })
		return
	}
	n.vote(ctx, a, text, func(p poll, err error) {
		if err != errChanged {
			answered(p, err)
			return
		}
		n.links.Go(func() {
			a.roster.changed(n, *text)
			n.acquireAnew(ctx, a, answered)
		})
	})
}

// acquireAnew does the work of acquire after a new look at the node.
func (n *node) acquireAnew(ctx context.Context, a *appeal, answered func(poll, error)) {
	text, err := a.roster.admitted(ctx, n)
	if err != nil {
		answered(poll{}, err)
		return
	}
	n.vote(ctx, a, text, answered)
}

func (n *node) vote(ctx context.Context, a *appeal, text *string, answered func(poll, error)) {
	c := &a.claim
	if n.inboxOf(c) != "" {
		n.subscription.Inbox(c.Key) // marks the inbox as in use
	}
	sent := time.Now()
	call := a.to(n, text)
	call.Begin(ctx, n.links, link.Step, func(v string, err error) {
		if err != nil {
			answered(poll{}, err)
			return
		}
		p, at, err := n.quorum.pollOf(a, v)
		if !at.IsZero() {
			a.roster.clockSeen(n, at, sent)
		}
		p.text, p.era = *text, under(*text)
		// All readers of a phase have one fence, so the fence does not identify the vote for one
		// reader. The time when this reader's part ends identifies the vote.
		if p.vote = p.minted; c.Mode == store.Shared {
			p.vote = uint64(at.UnixMilli() + n.quorum.life(c.TTL)) //nolint:gosec // after 1970
		}
		answered(p, err)
	})
}

// pollOf reads the answer to an appeal. The result at is the time by the node's clock.
func (q *quorum) pollOf(a *appeal, text string) (p poll, at time.Time, err error) {
	r := redisstore.Reply{Rest: text}
	state := r.Word()
	at = r.Time()
	switch state {
	case "changed":
		return poll{}, at, errChanged
	case "1":
		p.State, p.Fence, p.FenceCount, p.minted = store.Granted, a.hint, a.block, a.hint
	case "granted", "entered":
		_ = r.Word()
		if state == "entered" {
			p.Writer = r.Word() == "1"
		}
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
			p.holder, p.Holder.Left = h.Token, q.left(left)
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
	return p, at, nil
}

// parseVote reads a lease L that a quorum has written: token:fence:block:minted:metadata. After a
// confirmation, fence is the fence of the whole quorum.
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

// confirm raises the node's vote to the fence of the quorum. The function answered gets false when
// the owner does not have the vote any more.
func (n *node) confirm(ctx context.Context, c store.Claim, p poll, fence uint64, block int, answered func(bool, error)) {
	part := ""
	if c.Mode == store.Shared {
		part = n.partOf(c)
	}
	confirmScript.Call(
		[]string{c.Key, redisstore.CounterKey(c.Key), redisstore.ReadersKey(c.Key), n.quorum.roster(c.Key).marker},
		p.text, c.Owner, strconv.FormatUint(p.minted, 10), strconv.FormatUint(fence, 10),
		strconv.FormatUint(fence+uint64(block)-1, 10), part, //nolint:gosec // ≥ 1
	).Begin(ctx, n.links, link.Renewal, func(v string, err error) { answered(v == "1", err) })
}

// withdrawal has the arguments of a release besides the claim.
type withdrawal struct {
	vote      uint64 // the vote to withdraw; 0: any vote
	hush      bool   // notify no waiter
	tombstone string // "" for "undone"
	text      string // text of the node's marker; only with Complete
}

// withdraw releases the token at this node: the node takes its vote back, and notifies a waiter.
func (n *node) withdraw(ctx context.Context, c store.Claim, how withdrawal, answered func(store.Grant, error)) {
	n.begin(ctx, n.withdrawal(&c, how), link.Release, func(g store.Grant, err error) {
		if err != errChanged {
			answered(g, err)
			return
		}
		c.Complete = false // the done mark would not count, but the node must still end the lease
		n.withdraw(ctx, c, how, func(_ store.Grant, err error) {
			if err == nil {
				err = errChanged
			}
			answered(g, err)
		})
	})
}

// begin starts release.lua.
func (n *node) begin(ctx context.Context, release *redisstore.Call, class link.Class, answered func(store.Grant, error)) {
	release.Begin(ctx, n.links, class, func(text string, err error) { answered(withdrawalAnswer(text, err)) })
}

// clean repeats a release at this node until the node confirms it.
func (n *node) clean(c store.Claim) {
	ch := calls.Chore{Claim: c, Useless: time.Now().Add(max(c.TTL, c.TombstoneTTL, calls.QueueLife))}
	if c.KeepFor > 0 {
		ch.Keep = time.Now().Add(c.KeepFor)
	}
	n.links.Chore(c.Key, calls.Attempts(ch, func(c store.Claim, answered func(store.Grant, error)) {
		n.begin(context.Background(), n.withdrawal(&c, withdrawal{}), link.Undo, answered)
	}))
}

// withdrawal returns the call of release.lua.
func (n *node) withdrawal(c *store.Claim, how withdrawal) *redisstore.Call {
	done, text, hush := time.Duration(0), "-", "0"
	if c.Complete {
		done = c.Once
		if how.text != "" {
			text = how.text
		}
	}
	if how.hush {
		hush = "1"
	}
	entry, part, more := "", "", ""
	if inbox := n.inboxOf(c); inbox != "" {
		entry = c.Owner + "|" + inbox + "|" + redisstore.AsksOnce(*c) + "|"
	}
	if n.quorum.readers {
		part = n.partOf(*c)
	}
	if c.KeepFor > 0 || c.TombstoneTTL > 0 || done > 0 || how != (withdrawal{text: how.text}) {
		more = fmt.Sprintf("%d %d %d %d %s %s %s", redisstore.Millis(c.KeepFor), redisstore.Millis(c.TombstoneTTL), redisstore.Millis(done),
			how.vote, hush, text, cmp.Or(how.tombstone, "undone"))
	}
	note := redisstore.TombstoneKey(c.Key, c.Owner)
	phase := note
	if c.Fence != 0 {
		phase = redisstore.PhaseNoteKey(c.Key, c.Fence)
	}
	if c.Owner == redisstore.SharedToken {
		note = phase // the revocation's note is for all readers of the phase
	}
	return releaseScript.Call(
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), note, redisstore.DoneKey(c.Key),
			redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key), phase, n.quorum.roster(c.Key).marker},
		c.Owner, entry, part, more)
}

// withdrawalAnswer reads the answer to a release.
func withdrawalAnswer(text string, err error) (store.Grant, error) {
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

// renew renews the votes of leases whose keys have the same roster. The node refuses if its marker
// does not have the given text.
func (n *node) renew(ctx context.Context, r *roster, cs []store.Claim, text string, answered func([]store.Grant, error)) {
	if text == "" {
		answered(nil, r.why(n.index))
		return
	}
	keys := make([]string, 0, 3*len(cs)+1)
	args := make([]any, 0, 4*len(cs)+1)
	for _, c := range cs {
		if c.Mode == store.Shared && c.Inbox != "" && n.subscription != nil {
			n.subscription.Inbox(c.Key) // marks the inbox as in use, because readers learn through it that a writer waits
		}
		keys = append(keys, c.Key, redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key))
		args = append(args, c.Owner, n.quorum.life(c.TTL), n.partOf(c), strconv.FormatUint(c.Fence, 10))
	}
	sent := time.Now()
	call := renewScript.Call(append(keys, r.marker), append(args, text)...)
	call.Begin(ctx, n.links, link.Renewal, func(v string, err error) {
		reply := redisstore.Reply{Rest: v}
		switch {
		case err != nil:
			answered(nil, err)
			return
		case strings.HasPrefix(v, "changed "):
			r.outdated(n, text)
			answered(nil, errChanged)
			return
		}
		at := reply.Time()
		if len(reply.Rest) != len(cs) {
			answered(nil, redisstore.Unreadable("renew"))
			return
		}
		r.clockSeen(n, at, sent)
		off := n.quorum.clocks.off(n.index)
		grants := make([]store.Grant, len(cs))
		for i := range grants {
			switch mark := reply.Rest[i]; {
			case mark == '0':
				grants[i] = store.Grant{State: store.NotOurs, At: at}
			case off > n.quorum.skew: // the node may end the lease too early
				grants[i] = store.Grant{Err: errOff(off)}
			default:
				grants[i] = store.Grant{State: store.Released, At: at, Writer: mark == '2'}
			}
		}
		answered(grants, nil)
	})
}

// examine returns warnings about unsafe settings of the node.
func (n *node) examine(ctx context.Context) []store.Warning {
	if c, ok := n.client.(redisstore.ClusterClient); ok {
		return redisstore.NewCluster(n.Single, c).CheckServer(ctx)
	}
	return n.CheckServer(ctx)
}
