package quorum

import (
	"strconv"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// appeal is the request of one round of an acquire. The words of the call are made once for all
// nodes that publish on the same channel, which usually are all nodes. Only the marker's text
// differs from node to node.
type appeal struct {
	claim        store.Claim
	roster       *roster
	hint, ticket uint64 // proposed and queuedAt of the ballot
	block        int

	channel string           // the channel on which the first node would publish
	call    *redisstore.Call // the call to the first node; the other nodes get copies of it
}

// textIndex is the index of the marker's text in the words of a vote. Before the text come EVALSHA,
// the script's name, the number of keys, and the keys.
const textIndex = 3 + voteKeys

// voteKeys is the number of keys that a call of vote.lua gets.
const voteKeys = 7

// newAppeal returns the request for the claim c that proposes the fence hint and has the given
// ticket in the queue.
func (q *quorum) newAppeal(c store.Claim, hint, ticket uint64) *appeal {
	a := &appeal{claim: c, roster: q.roster(c.Key), hint: hint, ticket: ticket, block: max(c.FenceCount, 1)}
	n := q.nodes[0]
	a.channel, a.call = n.channelOf(&a.claim), n.voteCall(a)
	return a
}

// callTo returns the call of vote.lua for node n, with the given text of the node's marker.
func (a *appeal) callTo(n *node, text *string) redisstore.Call {
	if n.channelOf(&a.claim) != a.channel {
		call := n.voteCall(a)
		call.Words[textIndex] = text
		return *call
	}
	call := a.call.Again()
	call.Words[textIndex] = text
	return call
}

// voteCall returns the call of vote.lua for the node, without the marker's text. The most frequent
// caller, which does not queue, sends only the arguments that it needs.
func (n *node) voteCall(a *appeal) *redisstore.Call {
	c, q := &a.claim, n.quorum
	keys := []string{c.Key, redisstore.QueueKey(c.Key), redisstore.WakeKey(c.Key), redisstore.CounterKey(c.Key), redisstore.TombstoneKey(c.Key, c.Owner),
		a.roster.markerKey, redisstore.DoneKey(c.Key)}
	skew, last := uint64(q.skew.Microseconds()), a.hint+uint64(a.block)-1
	fence := strconv.FormatUint(a.hint, 10)
	lease := c.Owner + ":" + fence + ":" + strconv.Itoa(a.block) + ":" + fence + ":" + c.Metadata
	earliest := strconv.FormatUint(max(a.hint-skew, last-mostAhead), 10)
	args := [10]any{"", lease, q.life(c.TTL), fence, strconv.FormatUint(last, 10), earliest, strconv.FormatUint(a.hint+skew, 10)}
	if !c.Queue && c.OnceFor == 0 {
		return voteScript.Call(keys, args[:7]...)
	}
	args[7], args[8], args[9] = redisstore.AsksOnce(*c), n.inboxOf(c), strconv.FormatUint(a.ticket, 10)
	return voteScript.Call(keys, args[:]...)
}

// mostAhead is how far the last fence of a block may be ahead of a node's clock, in µs.
const mostAhead = 100_000
