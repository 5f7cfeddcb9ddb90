package quorum_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// A Refusal means that nothing was done. Here the answers of two nodes do not count because of
// their clocks, but all three nodes have put the waiter into their queues. A Refusal would make
// the Engine forget the waiter without a release, and each queue would keep the entry for a
// minute.
func TestAQuorumThatHasQueuedAWaiterDoesNotRefuse(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	direct := clientsOf(t, servers)
	acquire(t, newRedlock(t, clients(direct)), locker.Rule{Key: "a"})
	var cs []locker.Client
	for i, by := range []time.Duration{-time.Hour, 0, time.Hour} {
		cs = append(cs, skewedNode(t, servers[i], by))
	}
	s := quorumStore(cs, nodeTimeout)
	checkSettled(t, s)
	claim := store.Claim{Key: "a", Owner: rand.Text(), TTL: time.Minute, FenceCount: 1, Queue: true, Inbox: "of all nodes"}
	queued := func() (n int64) {
		for _, c := range direct {
			n += c.ZCard(t.Context(), redisstore.QueueKey("a")).Val()
		}
		return n
	}
	var err error
	eventually(t, "positive control: a node has the waiter in its queue, and too few answers count", func() bool {
		_, err = s.Acquire(t.Context(), claim)
		return err != nil && queued() > 0
	})
	if no := (*store.Refusal)(nil); errors.As(err, &no) {
		t.Errorf("%d queues have the waiter, but the answer is a Refusal: %v", queued(), err)
	}
	claim.TombstoneTTL = time.Minute // the Engine releases an unclear acquire with such a tombstone
	if _, err := s.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}
	eventually(t, "no queue has the waiter", func() bool { return queued() == 0 })
}
