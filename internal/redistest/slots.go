package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// NodeID returns the name of this server among the nodes of a cluster.
func (s *Server) NodeID() (id string, err error) {
	err = s.runOnce(func(ctx context.Context, c *redis.Client) error {
		id, err = c.ClusterMyID(ctx).Result()
		return err
	})
	return id, err
}

// Move is the move of one slot from one master of a [Cluster] to another.
type Move struct {
	t              testing.TB
	cluster        *Cluster
	slot           int
	source, target *Server
	fromID         string
	toID           string
}

// Owner returns the master that served the slot at the start, and its index among the masters.
func (c *Cluster) Owner(slot int) (*Server, int) {
	for i := range c.Masters {
		if slot < clusterSlots*(i+1)/3 {
			return c.Masters[i], i
		}
	}
	panic(fmt.Sprintf("redistest: there is no slot %d", slot))
}

// Migrate begins the move of a slot, but does not move any key yet. The source serves the keys that
// it has, and replies ASK for all other keys. Both masters reply TRYAGAIN to a script whose keys
// are not all on one master.
func (c *Cluster) Migrate(t testing.TB, slot int, source, target *Server) *Move {
	t.Helper()
	m := &Move{t: t, cluster: c, slot: slot, source: source, target: target}
	var err error
	if m.fromID, err = source.NodeID(); err != nil {
		t.Fatal(err)
	}
	if m.toID, err = target.NodeID(); err != nil {
		t.Fatal(err)
	}
	m.must(target, "cluster", "setslot", slot, "importing", m.fromID)
	m.must(source, "cluster", "setslot", slot, "migrating", m.toID)
	return m
}

// Carry moves the given keys of the slot to the target. Without an argument, it moves all keys of
// the slot. Carry returns how many keys it has moved.
func (m *Move) Carry(keys ...string) int {
	m.t.Helper()
	carried := 0
	err := m.source.runOnce(func(ctx context.Context, c *redis.Client) error {
		for {
			batch, err := keys, error(nil)
			if len(keys) == 0 {
				batch, err = c.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
			}
			if err != nil || len(batch) == 0 {
				return err
			}
			for _, key := range batch {
				answer, err := c.Migrate(ctx, loopback, fmt.Sprint(m.target.port), key, 0, patience).Result()
				if err != nil {
					return err
				}
				if answer == "OK" { // with another answer, the key has expired
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

// Finish moves the remaining keys and gives the slot to the target. The other nodes learn of the
// new owner by gossip.
func (m *Move) Finish() {
	m.t.Helper()
	m.Carry()
	m.must(m.target, "cluster", "setslot", m.slot, "node", m.toID)
	m.must(m.source, "cluster", "setslot", m.slot, "node", m.toID)
}

// Abandon ends a move that cannot be finished, because one of its masters was replaced by a
// replica. Keys that were carried already stay where they are.
func (m *Move) Abandon() {
	m.t.Helper()
	m.must(m.source, "cluster", "setslot", m.slot, "stable")
	m.must(m.target, "cluster", "setslot", m.slot, "stable")
}

// The commands that move a slot with all its keys in one step.
const (
	migrateSlots = "CLUSTER MIGRATESLOTS"     // since Valkey 9
	importSlots  = "CLUSTER MIGRATION IMPORT" // since Redis 8.4
)

// AtomicMove returns the command by which the server s moves a slot in one step, or "" if it has no
// such command.
func (s *Server) AtomicMove(t testing.TB) (command string) {
	t.Helper()
	err := s.runOnce(func(ctx context.Context, c *redis.Client) error {
		for _, command = range []string{migrateSlots, importSlots} {
			words := strings.Fields(strings.ToLower(command))
			found, err := c.Do(ctx, "command", "info", words[0]+"|"+words[1]).Slice()
			if err != nil || len(found) > 0 && found[0] != nil {
				return err
			}
		}
		command = ""
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return command
}

// MoveAtomically moves a slot with all its keys in one step, by the command that AtomicMove has
// returned. It returns when the source knows that the target serves the slot.
func (c *Cluster) MoveAtomically(t testing.TB, command string, slot int, source, target *Server) {
	t.Helper()
	m := &Move{t: t, cluster: c, slot: slot, source: source, target: target}
	id, err := target.NodeID()
	if err != nil {
		t.Fatal(err)
	}
	if command == migrateSlots {
		m.must(source, "cluster", "migrateslots", "slotsrange", slot, slot, "node", id)
	} else {
		m.must(target, "cluster", "migration", "import", slot, slot)
	}
	err = source.awaitNoError("give a slot away", func(ctx context.Context, c *redis.Client) error {
		all, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // it shows the owner of a slot
		for _, one := range all {
			if one.Start <= slot && slot <= one.End && len(one.Nodes) > 0 && one.Nodes[0].Addr == target.Addr() {
				return nil
			}
		}
		return cmp.Or(err, errors.New("it serves the slot still"))
	})
	if err != nil {
		t.Error(err)
	}
}

func (m *Move) must(s *Server, words ...any) {
	m.t.Helper()
	if err := s.runOnce(func(ctx context.Context, c *redis.Client) error { return c.Do(ctx, words...).Err() }); err != nil {
		m.t.Errorf("%v on %s: %v", words, s.Addr(), err)
	}
}

// Failover promotes a replica in agreement with its master, so no data is lost. Failover returns
// when the replica serves the slots.
func (c *Cluster) Failover(t testing.TB, replica *Server) {
	t.Helper()
	err := replica.runOnce(func(ctx context.Context, r *redis.Client) error { return r.ClusterFailover(ctx).Err() })
	if err == nil {
		err = replica.awaitNoError("take its master's place", func(ctx context.Context, r *redis.Client) error {
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

// runOnce calls the function ask once, with a client that has a separate connection to the server.
func (s *Server) runOnce(ask func(context.Context, *redis.Client) error) error {
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: s.password, TLSConfig: s.tls, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return ask(ctx, client)
}
