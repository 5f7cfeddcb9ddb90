package quorum_test

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/internal/store/storetest"
	"github.com/latchkit/latchkit/locker"
)

// quorumCan returns the abilities of a quorum. A quorum serves waiters in no particular order.
// Nodes can disagree about the waiters, so no node hands a key over.
var quorumCan = func() storetest.Capabilities {
	can := storetest.All
	can.Queue, can.Notify, can.Readers = false, false, false
	return can
}()

func TestRedlockObeysTheLaws(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"on three servers": 3, "on five servers": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := enrolled(t, n)
			storetest.Run(t, func(t *testing.T) storetest.Harness { return quorumHarness(t, servers) })
		})
	}
}

var (
	lossyNodes = flag.Int("nodes", 3, "how many nodes the quorum has that loses a call in each law")
	lossyPart  = flag.Int("part", time.Now().YearDay()%lossyParts, "which part of the laws loses calls; -1: all of them")
)

// lossyParts is the number of parts of the laws. All calls of all laws take minutes, so each day
// has its part.
const lossyParts = 8

// inLossyPart reports whether the law of the test loses its calls.
func inLossyPart(t *testing.T) bool {
	name := fnv.New32a()
	_, _ = name.Write([]byte(strings.Split(t.Name(), "/")[2])) // a hash never fails
	return *lossyPart < 0 || int(name.Sum32()%lossyParts) == *lossyPart
}

// One call to one node is lost, with its request or its reply. The other nodes are a quorum, so no
// step fails, and no caller gets another answer. A step asks all nodes alike, so the calls of one
// node are enough.
func TestTheLawsOfRedlockHoldWhenACallIsLost(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, *lossyNodes)
	enroll(t, clients(clientsOf(t, servers)))
	t.Logf("the flag -part=%d chooses the laws of this run", *lossyPart)
	t.Run(fmt.Sprintf("of %d", *lossyNodes), func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			if !inLossyPart(t) { // TestRedlockObeysTheLaws checks this law
				return storetest.Harness{Store: openQuorum(t, clientsOf(t, servers))}
			}
			h, losses := quorumHarness(t, servers), new(storetest.Losses)
			cs := clientsOf(t, servers)
			cs[len(cs)-1].AddHook(losses)
			h.Store, h.Losses, h.LoseReply = openQuorum(t, cs), losses, nil
			return h
		})
	})
}

func quorumHarness(t *testing.T, servers []*redistest.Server) storetest.Harness {
	direct := clientsOf(t, servers)
	var proxies []*chaos.Proxy
	var through []*redis.Client
	for _, s := range servers {
		p := chaos.NewProxy(t, s.Addr())
		proxies = append(proxies, p)
		through = append(through, s.Client(t, func(o *redis.Options) { o.Addr = p.Addr() }))
	}
	return storetest.Harness{
		Store: openQuorum(t, through),
		Can:   quorumCan,
		LoseReply: func(t testing.TB, op locker.Op, key string) {
			for i, p := range proxies {
				loadScripts(t, through[i])
				lost := p.LoseReplies(1, quorumCall(op, key))
				t.Cleanup(func() {
					if lost.Hits() != 1 {
						t.Errorf("%d answers of node %d were lost, the law needs one", lost.Hits(), i)
					}
				})
			}
		},
		Another: func(t testing.TB) store.Store {
			return openQuorum(t, clientsOf(t, servers))
		},
		Occupy: func(t testing.TB, key string, ttl time.Duration) {
			for _, c := range direct {
				if err := c.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Spoil: func(t testing.TB, key string) func() bool {
			for _, c := range direct {
				if err := c.HSet(t.Context(), key, "field", "value").Err(); err != nil {
					t.Fatal(err)
				}
			}
			return func() bool {
				for _, c := range direct {
					if c.HGet(context.Background(), key, "field").Val() != "value" {
						return false
					}
				}
				return true
			}
		},
	}
}

// lawPatience is how long a step waits for a node while laws are checked. It is long, because all
// nodes answer, but some answer late on a busy machine.
const lawPatience = 10 * time.Second

func openQuorum(t testing.TB, cs []*redis.Client) store.Store {
	t.Helper()
	s := quorumStore(clients(cs), lawPatience)
	checkSettled(t, s)
	return s
}

// checkSettled fails the test if the Store s still has work to do after the test.
func checkSettled(t testing.TB, s store.Store) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.(calls.Steps).Close(ctx); err != nil {
			t.Errorf("settle: %v", err)
		}
	})
}

// quorumCall matches the EVALSHA of one step of a quorum on one key.
func quorumCall(op locker.Op, key string) chaos.Match {
	sha := scriptSHA(map[locker.Op]string{
		locker.OpAcquire: "vote", locker.OpRenew: "renew", locker.OpRelease: "release",
	}[op])
	return func(request []byte) bool {
		return strings.Contains(string(request), key) && strings.Contains(string(request), sha)
	}
}

// A node may be a server or a Sentinel set, and they may be mixed.
func TestRedlockOfServersAndASentinelSetObeysTheLaws(t *testing.T) {
	t.Parallel()
	one, other, set := redistest.Start(t), redistest.Start(t), redistest.StartSentinel(t)
	nodes := func(t testing.TB) []redis.UniversalClient {
		return []redis.UniversalClient{one.Client(t), other.Client(t), set.Client(t)}
	}
	asClients := func(cs []redis.UniversalClient) (all []locker.Client) {
		for _, c := range cs {
			all = append(all, c)
		}
		return all
	}
	enroll(t, asClients(nodes(t)))
	store := func(t testing.TB) store.Store {
		s := quorumStore(asClients(nodes(t)), lawPatience)
		checkSettled(t, s)
		return s
	}
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		direct := nodes(t)
		return storetest.Harness{
			Store:   store(t),
			Can:     quorumCan,
			Another: store,
			Occupy: func(t testing.TB, key string, ttl time.Duration) {
				for _, c := range direct {
					if err := c.Set(t.Context(), key, "somebody else", ttl).Err(); err != nil {
						t.Fatal(err)
					}
				}
			},
		}
	})
}
