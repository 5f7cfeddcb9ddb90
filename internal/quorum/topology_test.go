package quorum_test

import (
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// After a move or a failover, even a planned one, another master serves a slot. The leases of this
// slot may then be lost. Other slots are not affected.
func TestASlotWithAnotherMasterDoesNotVoteAtOnce(t *testing.T) {
	t.Parallel()
	const key, elsewhere = "{moved}key", "{stays}key"
	for how, happens := range map[string]func(t *testing.T, c *redistest.Cluster){
		"it moved": func(t *testing.T, c *redistest.Cluster) {
			from, i := c.Owner(int(redisstore.SlotOf(key)))
			c.Migrate(t, int(redisstore.SlotOf(key)), from, c.Masters[(i+1)%3]).Finish()
		},
		"its replica took over": func(t *testing.T, c *redistest.Cluster) {
			_, i := c.Owner(int(redisstore.SlotOf(key)))
			c.Failover(t, c.Replicas[i])
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cluster, servers := redistest.StartCluster(t), startNodes(t, 2)
			nodes := []locker.Client{cluster.Client(t), servers[0].Client(t), servers[1].Client(t)}
			l := newRedlock(t, nodes, shortQuarantine...)
			// A quarantine of two slots takes less time than the enrolment of all.
			var before *locker.Lease
			for _, k := range []string{elsewhere, key} {
				eventually(t, "the slot votes", func() bool {
					var err error
					before, err = l.Acquire(t.Context(), locker.Rule{Key: k, Wait: time.Second})
					return err == nil
				})
				release(t, before)
			}
			servers[1].Kill() // now a quorum needs the vote of the cluster
			before = acquire(t, l, locker.Rule{Key: key, Wait: 10 * time.Second})
			release(t, before)

			happens(t, cluster)
			var refused error
			eventually(t, "the slot does not vote", func() bool {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: 500 * time.Millisecond})
				if err == nil { // the new master does not serve the slot yet
					release(t, lease)
					return false
				}
				refused = err
				return strings.Contains(err.Error(), "may have forgotten")
			})
			wantErr(t, refused, key, locker.ErrQuorum)
			if how == "it moved" {
				release(t, acquire(t, l, locker.Rule{Key: elsewhere, Wait: 10 * time.Second}))
			}
			servers[1].Restart()
			var after *locker.Lease
			eventually(t, "it votes again", func() bool {
				var err error
				after, err = l.Acquire(t.Context(), locker.Rule{Key: key, Wait: time.Second})
				return err == nil
			})
			if after.Fence() <= before.Fence() {
				t.Errorf("fence %d after %d", after.Fence(), before.Fence())
			}
			release(t, after)
		})
	}
}

// checkTwoClientsOfAClusterAreOneNode gives a Locker two clients of a cluster and one of a server,
// which stops then. Both are nodes of an enrolled set.
func checkTwoClientsOfAClusterAreOneNode(t *testing.T, cluster *redistest.Cluster, server *redistest.Server) {
	one := []locker.Client{cluster.Client(t), cluster.Client(t), server.Client(t)}
	err := locker.EnrollRedlock(t.Context(), one, locker.WithNodeTimeout(20*time.Second))
	if err == nil || !strings.Contains(err.Error(), "the same server as node") {
		t.Fatalf("EnrollRedlock: %v", err)
	}
	l := newRedlock(t, one, locker.WithNodeTimeout(2*time.Second))
	release(t, acquire(t, l, locker.Rule{Key: "a"})) // two votes are enough
	server.Kill()
	_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 5 * time.Second})
	wantErr(t, err, "a", locker.ErrQuorum)
}
