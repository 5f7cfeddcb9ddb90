package quorum

import (
	"context"
	"strconv"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// On a quorum with readers, each node lets readers in, or gives a writer its vote, and never does
// both at once. A reader and a writer each need more than half of the nodes. So they need at least
// one node in common, and this node admits only one of them. A waiting writer leaves its intent on
// the nodes. The intent keeps new readers out until 3 s after the writer's last request, so the
// writer waits only for the readers that are in. After a writer, waiting readers may enter for 50
// ms although another writer waits.
//
// The fence of a reader is the largest fence among the nodes' phases. A node's answer counts only
// if the node's counter is at least that fence. So a later writer has a larger fence than the
// reader, and an earlier writer has a smaller fence.

// withReaders returns the quorum as a Store with readers.
func (q *quorum) withReaders(cs []redisstore.Client) store.Store {
	q.readers = true
	if s, ok := q.withSubscriptions(cs).(hinted); ok {
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

// Downgrade makes the holder of a key its first reader.
func (q quorumReaders) Downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	return q.downgrade(ctx, c)
}

// Downgrade makes the holder of a key its first reader.
func (q hintedReaders) Downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	return q.downgrade(ctx, c)
}

// downgrade returns Granted when a quorum has made the writer a reader. A node that has not
// answered may still keep readers out, until the Engine repeats the downgrade there or until the
// release.
func (q *quorum) downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	ctx = context.WithoutCancel(ctx)
	q.ballots.renewed([]store.Claim{c})
	r := q.roster(c.Key)
	texts := r.known(ctx)
	t := count{quorum: q}
	g, err := t.collect(fanOut(q, q.all(), nil, func(n *node, answered func(store.Grant, error)) {
		n.downgrade(ctx, r, c, texts[n.index], answered)
	}))
	if g.State == store.Released {
		g = store.Grant{State: store.Granted, Fence: c.Fence, FenceCount: 1, Writer: t.writer}
	}
	grants := []store.Grant{g}
	q.lookUp(ctx, []store.Claim{c}, grants)
	return grants[0], err
}

// downgrade runs downgrade.lua.
func (n *node) downgrade(ctx context.Context, r *roster, c store.Claim, text string, answered func(store.Grant, error)) {
	if text == "" {
		answered(store.Grant{}, r.why(n.index))
		return
	}
	downgradeScript.Call(
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key), r.marker},
		text, c.Owner, n.quorum.life(c.TTL), n.partOf(c), strconv.FormatUint(c.Fence, 10),
	).Begin(ctx, n.links, link.Renewal, func(v string, err error) {
		reply := redisstore.Reply{Rest: v}
		ours, at := reply.Word(), reply.Time()
		switch {
		case err != nil:
			answered(store.Grant{}, err)
		case ours == "changed":
			r.outdated(n, text)
			answered(store.Grant{}, errChanged)
		case ours == "1":
			answered(store.Grant{State: store.Released, At: at, Writer: reply.Rest == "1"}, nil)
		case ours == "0":
			answered(store.Grant{State: store.NotOurs, At: at}, nil)
		default:
			answered(store.Grant{}, redisstore.Unreadable("downgrade"))
		}
	})
}

// partOf returns a claim's entry in R at this node. The entry must not change while the token
// lives.
func (n *node) partOf(c store.Claim) string {
	if c.Inbox != "" && n.subscription != nil {
		c.Inbox = n.subscription.Address(c.Key)
	}
	return redisstore.ReaderEntry(c)
}
