package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// NodeID is how the other nodes of a cluster call this server.
func (s *Server) NodeID() (id string, err error) {
	err = s.once(func(ctx context.Context, c *redis.Client) error {
		id, err = c.ClusterMyID(ctx).Result()
		return err
	})
	return id, err
}

// Move is a slot on its way from one master of a [Cluster] to another.
type Move struct {
	t        testing.TB
	cluster  *Cluster
	slot     int
	from, to *Server
	fromID   string
	toID     string
}

// Owner is the master that served the slot at the start, and its place among the masters.
func (c *Cluster) Owner(slot int) (*Server, int) {
	for i := range c.Masters {
		if slot < clusterSlots*(i+1)/3 {
			return c.Masters[i], i
		}
	}
	panic(fmt.Sprintf("redistest: there is no slot %d", slot))
}

// Migrate begins to move a slot, with nothing moved yet: keys that the source has are served there,
// for all others it answers ASK, and both answer TRYAGAIN to a script whose keys are not all in one
// place.
func (c *Cluster) Migrate(t testing.TB, slot int, from, to *Server) *Move {
	t.Helper()
	m := &Move{t: t, cluster: c, slot: slot, from: from, to: to}
	var err error
	if m.fromID, err = from.NodeID(); err != nil {
		t.Fatal(err)
	}
	if m.toID, err = to.NodeID(); err != nil {
		t.Fatal(err)
	}
	m.must(to, "cluster", "setslot", slot, "importing", m.fromID)
	m.must(from, "cluster", "setslot", slot, "migrating", m.toID)
	return m
}

// Carry moves these keys, or all that are in the slot now, and says how many.
func (m *Move) Carry(keys ...string) int {
	m.t.Helper()
	carried := 0
	err := m.from.once(func(ctx context.Context, c *redis.Client) error {
		for {
			batch, err := keys, error(nil)
			if len(keys) == 0 {
				batch, err = c.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
			}
			if err != nil || len(batch) == 0 {
				return err
			}
			for _, key := range batch {
				answer, err := c.Migrate(ctx, loopback, fmt.Sprint(m.to.port), key, 0, patience).Result()
				if err != nil {
					return err
				}
				if answer == "OK" { // otherwise it has run out
					carried++
				}
			}
			if len(keys) > 0 {
				return nil
			}
		}
	})
	if err != nil {
		m.t.Errorf("carry the keys of slot %d: %v", m.slot, err)
	}
	return carried
}

// Finish carries what is there and gives the slot to the target. Everybody else hears of it from
// their neighbours.
func (m *Move) Finish() {
	m.t.Helper()
	m.Carry()
	m.must(m.to, "cluster", "setslot", m.slot, "node", m.toID)
	m.must(m.from, "cluster", "setslot", m.slot, "node", m.toID)
}

func (m *Move) must(s *Server, words ...any) {
	m.t.Helper()
	if err := s.once(func(ctx context.Context, c *redis.Client) error { return c.Do(ctx, words...).Err() }); err != nil {
		m.t.Errorf("%v on %s: %v", words, s.Addr(), err)
	}
}

// Failover makes a replica take its master's place, with the master's consent: nothing is lost. It
// returns when the replica serves.
func (c *Cluster) Failover(t testing.TB, replica *Server) {
	t.Helper()
	err := replica.once(func(ctx context.Context, r *redis.Client) error { return r.ClusterFailover(ctx).Err() })
	if err == nil {
		err = replica.await("take its master's place", func(ctx context.Context, r *redis.Client) error {
			info, err := r.Info(ctx, "replication").Result()
			if err == nil && !strings.Contains(info, "role:master") {
				err = fmt.Errorf("it is none yet: %s", info)
			}
			return err
		})
	}
	if err != nil {
		t.Error(err)
	}
}

func clusterOK(info string) bool { return strings.Contains(info, "cluster_state:ok") }

// once asks the server one thing, on a connection of its own.
func (s *Server) once(ask func(context.Context, *redis.Client) error) error {
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: s.password, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return ask(ctx, client)
}
