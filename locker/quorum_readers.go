package locker

import (
	"context"
	"strconv"
	"time"
)

// A quorum with readers: each node lets a reader in, or gives a writer its vote, and never both at once. A reader and a writer
// each need more than half of the nodes, so they have one in common, and that one excludes them. A writer who waits leaves its
// intent on the nodes, which keeps new readers out until it has asked for the last time and 3 s more; so it waits for the
// readers who are in. After a writer the readers who wait may enter for 50 ms although another writer waits.
//
// The fence of a reader is the largest of the nodes' phases, and no node counts whose counter is below it: so whoever writes
// later has a larger one, and who wrote before a smaller.

// newReadWriteQuorum is NewReadWrite with several clients.
func newReadWriteQuorum(cs []Client, opts []Option) (*Engine, error) {
	q, cfg, err := newRedlock("NewReadWrite", cs, opts)
	if err != nil {
		return nil, err
	}
	return newEngine(q.withReaders(cs), cfg), nil
}

// withReaders is the quorum as a Store with readers.
func (q *quorum) withReaders(cs []Client) Store {
	q.readers = true
	if s, ok := q.withEars(cs).(hinted); ok {
		return hintedReaders{s}
	}
	return quorumReaders{q}
}

// A quorum is a Downgrader only where it has readers.
type (
	quorumReaders struct{ *quorum }
	hintedReaders struct{ hinted }
)

var (
	_ Downgrader = quorumReaders{}
	_ interface {
		Downgrader
		Notifier
	} = hintedReaders{}
)

// Downgrade is the Store's step.
func (q quorumReaders) Downgrade(ctx context.Context, c Claim) (Grant, error) {
	return q.downgrade(ctx, c)
}

// Downgrade is the Store's step.
func (q hintedReaders) Downgrade(ctx context.Context, c Claim) (Grant, error) {
	return q.downgrade(ctx, c)
}

// downgrade is granted when a quorum has made the writer a reader. On the others it is repeated by the Engine, or they go on
// keeping readers out until the release.
func (q *quorum) downgrade(ctx context.Context, c Claim) (Grant, error) {
	ctx = lasting(ctx)
	q.ballots.renewed([]Claim{c})
	f := fanOut(q, q.all(), nil, func(n *node) (Grant, error) { return n.downgrade(ctx, c) })
	defer f.done()
	t := count{quorum: q}
	for !t.decided() {
		a, ok := f.next()
		if !ok {
			break
		}
		t.hear(q.nodes[a.node], a.value, a.err)
	}
	g, err := t.result(f.open)
	if g.State == Released {
		g = Grant{State: Granted, Fence: c.Fence, Block: 1, Writer: t.writer}
	}
	return g, err
}

// downgrade runs quorum_rw_downgrade.lua. Released stands for a node that has done it: it counts like one that has released.
func (n *node) downgrade(ctx context.Context, c Claim) (Grant, error) {
	v, err := quorumRWDowngradeScript.run(ctx, n.steps,
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), readersOf(c.Key), intentOf(c.Key)},
		c.Owner, millis(c.TTL), n.memberOf(c), strconv.FormatUint(c.Fence, 10))
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
	switch ours, at := r.word(), r.time(); ours {
	case "1":
		return Grant{State: Released, At: at, Writer: r.rest == "1"}, nil
	case "0":
		if reason, ok := n.revoked(ctx, c); ok {
			return Grant{State: Revoked, At: at, Reason: reason}, nil
		}
		return Grant{State: NotOurs, At: at}, nil
	}
	return Grant{}, odd("downgrade")
}

// askingReader is quorum_rw_acquire.lua as a node is sent it.
func (n *node) askingReader(a *appeal, m *member) *call {
	c, member, again := &a.claim, "", "0"
	if c.Mode == Shared {
		member = n.memberOf(*c)
	}
	if c.Queue {
		again = "1"
	}
	return quorumRWAcquireScript.call(
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), counterOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key), m.marker, readersOf(c.Key), intentOf(c.Key)},
		c.Owner, millis(c.TTL), int64(max(c.Block, 1)), asksOnce(*c), c.Metadata, n.inboxOf(c),
		strconv.FormatUint(a.hint, 10), n.quorum.skew.Microseconds(), strconv.FormatUint(a.ticket, 10), member, again)
}

// confirmReading runs quorum_rw_confirm.lua.
func (n *node) confirmReading(ctx context.Context, c Claim, minted, fence uint64, block int) (bool, error) {
	member := ""
	if c.Mode == Shared {
		member = n.memberOf(c)
	}
	v, err := quorumRWConfirmScript.run(ctx, n.steps, []string{c.Key, counterOf(c.Key), readersOf(c.Key)},
		c.Owner, strconv.FormatUint(minted, 10), strconv.FormatUint(fence, 10), strconv.FormatUint(fence+uint64(block)-1, 10), member) //nolint:gosec // ≥ 1
	return v == "1", err
}

// takingReader is quorum_rw_release.lua. The tombstone of all readers together is named after their fence.
func (n *node) takingReader(c *Claim, tombstone string, done time.Duration, vote uint64) *call {
	entry, note, only := "", tombstoneOf(c.Key, c.Owner), ""
	if vote != 0 {
		only = strconv.FormatUint(vote, 10)
	}
	if inbox := n.inboxOf(c); inbox != "" {
		entry = c.Owner + "|" + inbox + "|" + asksOnce(*c) + "|"
	}
	phase := note
	if c.Fence != 0 {
		phase = noteOf(c.Key, c.Fence)
	}
	if c.Owner == shared {
		note = phase
	}
	return quorumRWReleaseScript.call(
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), note, doneOf(c.Key), readersOf(c.Key), intentOf(c.Key), phase},
		c.Owner, millis(c.Keep), millis(c.Undo), tombstone, millis(done), entry, only, n.memberOf(*c))
}

// memberOf is a claim's entry in R at this node. It must not change while the token lives.
func (n *node) memberOf(c Claim) string {
	if c.Inbox != "" && n.ear != nil {
		c.Inbox = n.ear.name(c.Key)
	}
	return memberOf(c)
}

// renewReading runs quorum_rw_renew.lua, on a cluster for each slot by itself.
func (n *node) renewReading(ctx context.Context, cs []Claim) ([]Grant, error) {
	grants := make([]Grant, len(cs))
	if n.cluster == nil {
		for _, b := range batches(cs, func(string) uint16 { return 0 }) {
			n.renewBatch(ctx, b, grants)
		}
	} else {
		n.cluster.each(batches(cs, func(key string) uint16 { return slot(tagOf(key)) }), func(b *batch) { n.renewBatch(ctx, b, grants) })
	}
	return n.renewed(ctx, cs, grants)
}

func (n *node) renewBatch(ctx context.Context, b *batch, grants []Grant) {
	keys := make([]string, 0, 3*len(b.places))
	args := make([]any, 0, 4*len(b.places))
	for c := range b.claims() {
		if c.Mode == Shared && c.Inbox != "" && n.ear != nil {
			n.ear.Inbox(c.Key) // which is so in use: who reads wants to hear of writers
		}
		keys = append(keys, c.Key, readersOf(c.Key), intentOf(c.Key))
		args = append(args, c.Owner, millis(c.TTL), n.memberOf(*c), strconv.FormatUint(c.Fence, 10))
	}
	v, err := quorumRWRenewScript.run(ctx, n.renewals, keys, args...)
	if err != nil {
		b.fail(grants, err)
		return
	}
	b.fill(grants, v, nil)
}
