package quorum_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func TestNewRedlockSaysWhatIsWrongWithItsNodes(t *testing.T) {
	t.Parallel()
	node := func(port int) locker.Client {
		return redis.NewClient(&redis.Options{Addr: fmt.Sprint("10.0.0.1:", port)})
	}
	one := node(1)
	for _, c := range []struct {
		want    string
		clients []locker.Client
		options []locker.QuorumOption
	}{
		{"0 clients; give clients of an odd number of independent servers, at least 3", nil, nil},
		{"use locker.New for one", []locker.Client{one}, nil},
		{"4 clients; give an odd number", []locker.Client{one, node(2), node(3), node(4)}, nil},
		{"at most 31", append([]locker.Client{}, manyNodes(33)...), nil},
		{"client 1 is nil", []locker.Client{one, (*redis.Client)(nil), node(3)}, nil},
		{"client 2 is nil", []locker.Client{one, node(2), nil}, nil},
		{"clients 0 and 2 both lead to 10.0.0.1:1", []locker.Client{one, node(2), one}, nil},
		{"a *redis.Ring, which moves keys", []locker.Client{one, node(2), redis.NewRing(&redis.RingOptions{})}, nil},
		{"client 2 is a client of a Redis Cluster", []locker.Client{one, node(2), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.1:3"}})}, nil},
		{"shorter than the default TTL 2m0s", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithTTL(2 * time.Minute)}},
		{"WithNodeTimeout(0s)", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithNodeTimeout(0)}},
		{"WithMaxSkew(-1s)", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithMaxSkew(-time.Second)}},
	} {
		_, err := locker.NewRedlock(c.clients, c.options...)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "latchkit: ") {
			t.Errorf("NewRedlock: %v, want %q", err, c.want)
		}
		if err := locker.EnrollRedlock(t.Context(), c.clients, c.options...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("EnrollRedlock: %v, want %q", err, c.want)
		}
	}
}

func manyNodes(n int) (all []locker.Client) {
	for i := range n {
		all = append(all, redis.NewClient(&redis.Options{Addr: fmt.Sprint("10.0.1.1:", i+1)}))
	}
	return all
}

func TestLeasesOnQuorumsAreNoLongerThanTheirQuarantine(t *testing.T) {
	t.Parallel()
	l := redlockOn(t, enrolled(t, 3))
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: 61 * time.Second})
	wantErr(t, err, "a", locker.ErrInvalidRule)
	release(t, acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute}))
}

// A server that has two addresses is recognised by its identity.
func TestAServerDoesNotVoteTwice(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	again := servers[0].Client(t, func(o *redis.Options) { o.Addr = chaos.NewProxy(t, servers[0].Addr()).Addr() })
	third := servers[0].Client(t, func(o *redis.Options) { o.Addr = chaos.NewProxy(t, servers[0].Addr()).Addr() })
	two := newRedlock(t, []locker.Client{servers[0].Client(t), again, servers[1].Client(t)})
	lease := acquire(t, two, locker.Rule{Key: "a"})
	if n := servers[0].Client(t).Exists(t.Context(), "a").Val() + servers[1].Client(t).Exists(t.Context(), "a").Val(); n != 2 {
		t.Fatalf("%d servers have voted, want 2", n)
	}
	release(t, lease)
	if nodes, err := two.Nodes(t.Context()); err != nil || nodes[1].State != store.NodeTwice || !strings.Contains(nodes[1].Reason, "the same server as node 0") {
		t.Errorf("%+v, %v", nodes, err)
	}

	if err := locker.EnrollRedlock(t.Context(), []locker.Client{servers[0].Client(t), again, servers[1].Client(t)}); err == nil || !strings.Contains(err.Error(), "the same server as node 0") {
		t.Errorf("EnrollRedlock: %v", err)
	}

	one := newRedlock(t, []locker.Client{servers[0].Client(t), again, third})
	_, err := one.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 200 * time.Millisecond})
	wantErr(t, err, "a", locker.ErrQuorum, locker.ErrUnavailable, locker.ErrUnsupported)
	wantNot(t, err, locker.ErrBusy)
	if !strings.Contains(err.Error(), "the same server as node") {
		t.Error(err)
	}
}

func TestEachNodesErrorIsFound(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	l := newRedlock(t, []locker.Client{cs[0], deadNode(t), cs[2]}, locker.WithNodeTimeout(20*time.Second))
	cs[2].Close()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 20 * time.Second})
	wantErr(t, err, "a", locker.ErrQuorum, locker.ErrUnavailable, redis.ErrClosed)
	wantNot(t, err, locker.ErrBusy)
	var node *store.NodeError
	if !errors.As(err, &node) || node.Node != 1 || node.Addr != "127.0.0.1:1" {
		t.Errorf("node error %+v in %v", node, err)
	}
	if !strings.Contains(err.Error(), "1 of 3 nodes answered, 2 must agree") || !strings.Contains(err.Error(), "node 2 (") {
		t.Error(err)
	}
	waitUntilEmpty(t, servers[0])
}
