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
// writer waits only for the readers that hold the key already. After a writer, waiting readers
// may enter for 50 ms although another writer waits.
//
// The fence of a reader is the largest fence among the nodes' phases. A node's answer counts only
// if the node's counter is at least that fence. So a later writer has a larger fence than the
// reader, and an earlier writer has a smaller fence.

// withReaders returns the quorum of the clients cs as a Store with readers.
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

// downgrade makes the owner of c, a writer, a reader. It returns Granted when a quorum of nodes has
// done that. A node that has not answered may still keep readers out, until the Engine repeats the
// downgrade there or until the release.
func (q *quorum) downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	ctx = context.WithoutCancel(ctx)
	q.ballots.prolong([]store.Claim{c})
	r := q.roster(c.Key)
	texts := r.ensureTexts(ctx)
	t := count{quorum: q}
	g, err := t.collect(fanOut(q, q.allNodes(), nil, func(n *node, onAnswer func(store.Grant, error)) {
		n.downgrade(ctx, r, c, texts[n.index], onAnswer)
	}))
	if g.State == store.Released {
		g = store.Grant{State: store.Granted, Fence: c.Fence, FenceCount: 1, Writer: t.writer}
	}
	grants := []store.Grant{g}
	q.findRevocations(ctx, []store.Claim{c}, grants)
	return grants[0], err
}

// downgrade runs downgrade.lua for the claim c at this node, with the given text of its marker, and
// passes the answer to onAnswer.
func (n *node) downgrade(ctx context.Context, r *roster, c store.Claim, text string, onAnswer func(store.Grant, error)) {
	if text == "" {
		onAnswer(store.Grant{}, r.reason(n.index))
		return
	}
	downgradeScript.Call(
		[]string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key), r.markerKey},
		text, c.Owner, n.quorum.life(c.TTL), n.partOf(c), strconv.FormatUint(c.Fence, 10),
	).Begin(ctx, n.links, link.Renewal, func(v string, err error) {
		reply := redisstore.Reply{Rest: v}
		ours, clock := reply.Word(), reply.Time()
		switch {
		case err != nil:
			onAnswer(store.Grant{}, err)
		case ours == "changed":
			r.forgetAndTend(n, text)
			onAnswer(store.Grant{}, errChanged)
		case ours == "1":
			onAnswer(store.Grant{State: store.Released, At: clock, Writer: reply.Rest == "1"}, nil)
		case ours == "0":
			onAnswer(store.Grant{State: store.NotOurs, At: clock}, nil)
		default:
			onAnswer(store.Grant{}, redisstore.Unreadable("downgrade"))
		}
	})
}

// partOf returns the entry of the claim c in R at this node. The entry must not change while the
// token lives.
func (n *node) partOf(c store.Claim) string {
	if c.Inbox != "" && n.subscription != nil {
		c.Inbox = n.subscription.Address(c.Key)
	}
	return redisstore.ReaderEntry(c)
}
