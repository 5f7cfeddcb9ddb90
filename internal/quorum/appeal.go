package quorum

import (
	"strconv"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// appeal is what one round of an acquire asks of the nodes. Its words are made once for all nodes
// that listen at the same channel: mostly that is each of them. The text of its marker each node is
// sent by itself.
type appeal struct {
	claim        store.Claim
	roster       *roster
	hint, ticket uint64

	channel string           // at which the first node would notify
	call    *redisstore.Call // to that node; it is not sent itself: nodes get copies
}

// textAt is where the text of the marker stands among the words of a vote: behind EVALSHA, name,
// number of keys, and the keys.
const textAt = 3 + voteKeys

// voteKeys is how many keys a vote has.
const voteKeys = 9

func (q *quorum) appeal(c store.Claim, hint, ticket uint64) *appeal {
	a := &appeal{claim: c, roster: q.roster(c.Key), hint: hint, ticket: ticket}
	n := q.nodes[0]
	a.channel, a.call = n.channelOf(&a.claim), n.asking(a)
	return a
}

// to is what node n is sent.
func (a *appeal) to(n *node, text *string) redisstore.Call {
	if n.channelOf(&a.claim) != a.channel {
		call := n.asking(a)
		call.Words[textAt] = text
		return *call
	}
	call := a.call.Again()
	call.Words[textAt] = text
	return call
}

// asking is vote.lua as the node is sent it, but for the text of its marker. A writer that does not
// queue, the most frequent of all, is sent no more than it needs.
func (n *node) asking(a *appeal) *redisstore.Call {
	c, q := &a.claim, n.quorum
	block, part, again := max(c.FenceCount, 1), "", "0"
	if c.Mode == store.Shared {
		part, block = n.partOf(*c), 1
	}
	if c.Queue && q.readers {
		again = "1"
	}
	keys := []string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.CounterKey(c.Key), redisstore.TombstoneKey(c.Key, c.Owner),
		redisstore.DoneKey(c.Key), a.roster.marker, redisstore.ReadersKey(c.Key), redisstore.IntentKey(c.Key)}
	hint, last := strconv.FormatUint(a.hint, 10), strconv.FormatUint(a.hint+uint64(block)-1, 10) //nolint:gosec // ≥ 1
	if part == "" && !c.Queue && c.Once == 0 {
		return voteScript.Call(keys, "", c.Owner, q.life(c.TTL), hint, last, int64(block), q.skew.Microseconds(), c.Metadata)
	}
	return voteScript.Call(keys, "", c.Owner, q.life(c.TTL), hint, last, int64(block), q.skew.Microseconds(), c.Metadata,
		redisstore.AsksOnce(*c), n.inboxOf(c), strconv.FormatUint(a.ticket, 10), part, again)
}
