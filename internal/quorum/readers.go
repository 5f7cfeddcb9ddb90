package quorum

import (
	"context"
	"strconv"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// A quorum with readers: each node lets a reader in, or gives a writer its vote, and never both at
// once. A reader and a writer each need more than half of the nodes, so they have one in common,
// and that one excludes them. A writer who waits leaves its intent on the nodes, which keeps new
// readers out until it has asked for the last time and 3 s more; so it waits for the readers who
// are in. After a writer the readers who wait may enter for 50 ms although another writer waits.
//
// The fence of a reader is the largest of the nodes' phases, and no node counts whose counter is
// below it: so whoever writes later has a larger one, and who wrote before a smaller.

// withReaders is the quorum as a Store with readers.
func (q *quorum) withReaders(cs []redisstore.Client) store.Store {
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
	_ store.Downgrader = quorumReaders{}
	_ interface {
		store.Downgrader
		store.Notifier
	} = hintedReaders{}
)

// Downgrade is the Store's step.
func (q quorumReaders) Downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	return q.downgrade(ctx, c)
}

// Downgrade is the Store's step.
func (q hintedReaders) Downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	return q.downgrade(ctx, c)
}

// downgrade is granted when a quorum has made the writer a reader. On the others it is repeated by
// the Engine, or they go on keeping readers out until the release.
func (q *quorum) downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	ctx = lasting(ctx)
	q.ballots.renewed([]store.Claim{c})
	r := q.roster(c.Key)
	texts := r.known(ctx)
	f := fanOut(q, q.all(), nil, func(n *node) (store.Grant, error) { return n.downgrade(ctx, r, c, texts[n.index]) })
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
	if g.State == store.Released {
		g = store.Grant{State: store.Granted, Fence: c.Fence, FenceCount: 1, Writer: t.writer}
	}
	return g, err
}

// downgrade runs downgrade.lua. Released stands for a node that has done it: it counts like one
// that has released.
func (n *node) downgrade(ctx context.Context, r *roster, c store.Claim, text string) (store.Grant, error) {
	if text == "" {
		return store.Grant{}, r.why(&r.members[n.index])
	}
	v, err := downgradeScript.Run(ctx, n.Steps,
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key), r.marker},
		text, c.Owner, n.quorum.life(c.TTL), n.partOf(c), strconv.FormatUint(c.Fence, 10))
	if err != nil {
		return store.Grant{}, err
	}
	reply := redisstore.Reply{Rest: v}
	switch ours, at := reply.Word(), reply.Time(); ours {
	case "changed":
		r.changed(n, text)
		r.tendSoon()
		return store.Grant{}, errChanged
	case "1":
		return store.Grant{State: store.Released, At: at, Writer: reply.Rest == "1"}, nil
	case "0":
		if reason, ok := n.Revoked(ctx, c); ok {
			return store.Grant{State: store.Revoked, At: at, Reason: reason}, nil
		}
		return store.Grant{State: store.NotOurs, At: at}, nil
	}
	return store.Grant{}, redisstore.Unreadable("downgrade")
}

// partOf is a claim's entry in R at this node. It must not change while the token lives.
func (n *node) partOf(c store.Claim) string {
	if c.Inbox != "" && n.ear != nil {
		c.Inbox = n.ear.Address(c.Key)
	}
	return redisstore.ReaderEntry(c)
}
