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
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// node is one independent server of a quorum: what single is where there is one server. It gives
// votes.
type node struct {
	redisstore.Single
	cluster *redisstore.Cluster // a Redis Cluster; nil: one server, or the one that Sentinel picks
	index   int
	addr    string
	label   string // by which this process calls the node in markers
	quorum  *quorum
	ear     ear // nil: the client cannot subscribe

	underWay atomic.Int32 // calls
	late     atomic.Int32 // those that have taken too long
	failed   atomic.Int32 // the last ones, in a row
	opening  atomic.Bool  // of the inbox

	cleaner calls.Cleaner         // releases that the node has not confirmed
	last    atomic.Pointer[error] // of the last call, when it failed
}

// poll is a node's answer to an acquire.
type poll struct {
	store.Grant
	holder string // Busy: what tells holders apart
	minted uint64 // Granted: the fence that this node has minted, whatever the quorum's is
	vote   uint64 // Granted: grows with each vote that the node gives to a token
	text   string // of the marker that it was asked under
}

func newNode(c redisstore.Client, i int, q *quorum) *node {
	n := &node{Single: redisstore.NewSingle(c), index: i, addr: addressOf(c), quorum: q}
	if cluster, ok := c.(redisstore.ClusterClient); ok {
		n.cluster = redisstore.NewCluster(n.Single, cluster)
	}
	if n.label = labelled(n.addr); n.label == "" || n.addr == failover {
		n.label = "#" + strconv.Itoa(i)
	}
	n.cleaner = calls.Cleaner{
		Calls: &q.calls, Background: q.background, Closing: q.closing, One: true,
		Release: func(ctx context.Context, c store.Claim) (store.Grant, error) { return n.release(ctx, c) },
	}
	n.cleaner.Init()
	return n
}

// error says which node an error is of. That this node refused says nothing of the others, so it is
// no Refusal any more: whoever looks for one inside would take a step for not done that another
// node may have done.
func (n *node) error(err error) error {
	for no, ok := errtype.As[*store.Refusal](err); ok; no, ok = errtype.As[*store.Refusal](err) {
		err = no.Err
	}
	return &store.NodeError{Node: n.index, Addr: n.addr, Err: err}
}

// acquire asks for the node's vote, if it may vote.
func (n *node) acquire(ctx context.Context, a *appeal) (poll, error) {
	for range 2 {
		text, err := a.roster.admitted(ctx, n)
		if err != nil {
			return poll{}, err
		}
		p, err := n.vote(ctx, a, text)
		if err != errChanged {
			return p, err
		}
		a.roster.changed(n, *text)
	}
	return poll{}, errChanged
}

func (n *node) vote(ctx context.Context, a *appeal, text *string) (poll, error) {
	c := &a.claim
	if n.inboxOf(c) != "" {
		n.ear.Inbox(c.Key) // which is so in use
	}
	sent := time.Now()
	call := a.to(n, text)
	v, err := call.Run(ctx, n.Steps)
	if err != nil {
		return poll{}, err
	}
	p, at, err := n.quorum.pollOf(v)
	if !at.IsZero() {
		a.roster.clockSeen(n, at, sent)
	}
	p.text = *text
	if p.vote = p.minted; c.Mode == store.Shared { // many have the same; then it is when the reader's part runs out, in ms
		p.vote = uint64(at.UnixMilli() + n.quorum.life(c.TTL)) //nolint:gosec // after 1970
	}
	return p, err
}

// pollOf reads the answer to an acquire. at is the node's clock.
func (q *quorum) pollOf(text string) (p poll, at time.Time, err error) {
	r := redisstore.Reply{Rest: text}
	state := r.Word()
	at = r.Time()
	switch state {
	case "changed":
		return poll{}, at, errChanged
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

// parseVote reads L as a quorum writes it: token:fence:block:minted:metadata. fence is the quorum's
// once it was confirmed.
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
	return h, 0, number == "" // kept for somebody, or of a Locker on this server alone
}

// confirm raises the node's vote to the fence that the quorum agreed on. It is false when it is not
// the owner's any more.
func (n *node) confirm(ctx context.Context, c store.Claim, p poll, fence uint64, block int) (bool, error) {
	part := ""
	if c.Mode == store.Shared {
		part = n.partOf(c)
	}
	v, err := confirmScript.Run(ctx, n.Steps,
		[]string{c.Key, redisstore.CounterKey(c.Key), redisstore.ReadersKey(c.Key), n.quorum.roster(c.Key).marker},
		p.text, c.Owner, strconv.FormatUint(p.minted, 10), strconv.FormatUint(fence, 10),
		strconv.FormatUint(fence+uint64(block)-1, 10), part) //nolint:gosec // ≥ 1
	return v == "1", err
}

// release takes the vote back, and wakes who waits for it.
func (n *node) release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return n.take(ctx, c, taking{})
}

// taking is what a release is told besides the claim.
type taking struct {
	vote      uint64 // take this vote back and no other; 0: whichever it is
	hush      bool   // notify nobody
	tombstone string // "" for "undone"
	text      string // of the node's marker; only with Complete
}

// take is a release.
func (n *node) take(ctx context.Context, c store.Claim, how taking) (store.Grant, error) {
	g, err := takenOf(n.taking(&c, how).Run(ctx, n.Steps))
	if err == errChanged {
		c.Complete = false // a mark that does not count must not be set, but the lease ends all the same
		if _, released := n.take(ctx, c, how); released != nil {
			return g, released
		}
	}
	return g, err
}

// taking is what take runs: release.lua.
func (n *node) taking(c *store.Claim, how taking) *redisstore.Call {
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
	if c.KeepFor > 0 || c.TombstoneTTL > 0 || done > 0 || how != (taking{text: how.text}) {
		more = fmt.Sprintf("%d %d %d %d %s %s %s", redisstore.Millis(c.KeepFor), redisstore.Millis(c.TombstoneTTL), redisstore.Millis(done),
			how.vote, hush, text, cmp.Or(how.tombstone, "undone"))
	}
	note := redisstore.TombstoneKey(c.Key, c.Owner)
	phase := note
	if c.Fence != 0 {
		phase = redisstore.PhaseNoteKey(c.Key, c.Fence)
	}
	if c.Owner == redisstore.SharedToken {
		note = phase // of all readers together
	}
	return releaseScript.Call(
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), note, redisstore.DoneKey(c.Key),
			redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key), phase, n.quorum.roster(c.Key).marker},
		c.Owner, entry, part, more)
}

// takenOf reads the answer to a release.
func takenOf(text string, err error) (store.Grant, error) {
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

// renew renews votes where they lie, as far as the node has a text in rosters.
func (n *node) renew(ctx context.Context, cs []store.Claim, texts map[*roster][]string) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	renew := func(b *redisstore.Batch) { n.renewBatch(ctx, b, grants, texts) }
	switch q := n.quorum; {
	case n.cluster != nil:
		n.cluster.Each(redisstore.Batches(cs, redisstore.SlotOf), renew)
	case q.slotted:
		for _, b := range redisstore.Batches(cs, redisstore.SlotOf) {
			renew(b)
		}
	default:
		for _, b := range redisstore.Batches(cs, func(string) uint16 { return 0 }) {
			renew(b)
		}
	}
	return n.Renewed(ctx, cs, grants)
}

func (n *node) renewBatch(ctx context.Context, b *redisstore.Batch, grants []store.Grant, texts map[*roster][]string) {
	keys := make([]string, 0, 3*len(b.Places)+1)
	args := make([]any, 0, 4*len(b.Places)+1)
	var r *roster
	for c := range b.Claims() {
		if c.Mode == store.Shared && c.Inbox != "" && n.ear != nil {
			n.ear.Inbox(c.Key) // which is so in use: a reader wants to be notified of writers
		}
		r = n.quorum.roster(c.Key)
		keys = append(keys, c.Key, redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key))
		args = append(args, c.Owner, n.quorum.life(c.TTL), n.partOf(*c), strconv.FormatUint(c.Fence, 10))
	}
	text := texts[r][n.index]
	if text == "" {
		b.Fail(grants, r.why(&r.members[n.index]))
		return
	}
	sent := time.Now()
	v, err := renewScript.Run(ctx, n.Renewals, append(keys, r.marker), append(args, text)...)
	if err != nil {
		b.Fail(grants, err)
		return
	}
	if strings.HasPrefix(v, "changed ") {
		r.changed(n, text)
		r.tendSoon()
		b.Fail(grants, errChanged)
		return
	}
	at := (&redisstore.Reply{Rest: v}).Time()
	r.clockSeen(n, at, sent)
	var short error
	if off := n.quorum.clocks.off(n.index); off > n.quorum.skew {
		short = errOff(off) // by a clock that is behind the lease would be over sooner
	}
	b.Fill(grants, v, short)
}

// examine finds out what is unsafe about the node.
func (n *node) examine(ctx context.Context) []store.Warning {
	if n.cluster != nil {
		return n.cluster.CheckServer(ctx)
	}
	return n.CheckServer(ctx)
}

// clean makes the node's cleaner repeat a release until it is confirmed.
func (n *node) clean(c store.Claim) {
	ch := calls.Chore{Claim: c, Useless: time.Now().Add(max(c.TTL, c.TombstoneTTL, calls.QueueLife))}
	if c.KeepFor > 0 {
		ch.Keep = time.Now().Add(c.KeepFor)
	}
	n.cleaner.Add(ch)
}

func errOff(by time.Duration) error {
	return &store.Refusal{Temporary: true, Err: fmt.Errorf("its clock is %v away from the others', so its vote does not count; set it right, or allow it with WithMaxSkew", by.Round(time.Millisecond))}
}
