package redisstore_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/internal/store/storetest"
	"github.com/latchkit/latchkit/locker"
)

func TestSingleObeysTheLaws(t *testing.T) {
	t.Parallel()
	checkLaws(t, locktest.SingleStore)
}

func TestReadWriteObeysTheLaws(t *testing.T) {
	t.Parallel()
	checkLaws(t, locktest.ReadWriteStore)
}

// A semaphore whose claims have no Limit is an exclusive lock.
func TestSemaphoreObeysTheLaws(t *testing.T) {
	t.Parallel()
	checkLaws(t, locktest.SemaphoreStore)
}

// checkLaws runs the laws of all Stores with the given Store on one server.
func checkLaws(t *testing.T, store func(c locker.Client) store.Store, options ...func(*redis.Options)) {
	t.Helper()
	checkLawsOn(t, func(t *testing.T) site { return serverSite(t, redistest.Shared(t), options...) }, store)
}

func serverSite(t *testing.T, server *redistest.Server, options ...func(*redis.Options)) site {
	t.Helper()
	direct := server.Client(t)
	return site{
		direct: direct,
		addrs:  []string{server.Addr()},
		client: func(dial dialer) redis.UniversalClient {
			o := &redis.Options{Addr: server.Addr(), Dialer: dial}
			for _, set := range options {
				set(o)
			}
			return redis.NewClient(o)
		},
		listeners: func(channel string) int64 {
			return direct.PubSubNumSub(context.Background(), channel).Val()[channel]
		},
	}
}

// site describes the servers on which the Stores of one law keep their data.
type site struct {
	direct    redis.UniversalClient
	addrs     []string // addresses of the servers that run scripts; none if no proxy can read the calls
	client    func(dial dialer) redis.UniversalClient
	listeners func(channel string) int64
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// checkLawsOn runs the laws of all Stores. Each law gets Stores that backend makes, on a new site
// that newSite makes.
func checkLawsOn(t *testing.T, newSite func(t *testing.T) site, backend func(c locker.Client) store.Store) {
	t.Helper()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		s := newSite(t)
		direct := s.direct
		proxies, dial := proxiesFor(t, s.addrs)
		connect := func(t testing.TB, dial dialer) redis.UniversalClient {
			c := s.client(dial)
			t.Cleanup(func() { _ = c.Close() }) // Kill may have closed the client, so an error does not matter
			return c
		}
		client := connect(t, dial)
		clients := make(map[store.Store]redis.UniversalClient)
		under, can := backend(client), storetest.All
		can.Readers = store.CapabilitiesOf(under).Readers
		if can.Permits = store.CapabilitiesOf(under).Permits; can.Permits {
			can.Metadata = false // L does not have the data of a single permit
		}
		h := storetest.Harness{
			Store: under,
			Can:   can,
			LoseReply: func(t testing.TB, op locker.Op, key string) {
				loadScripts(t, client)
				var lost []*chaos.Fault
				for _, p := range proxies {
					lost = append(lost, p.LoseReplies(1, scriptCall(op, key)))
				}
				t.Cleanup(func() {
					hits := 0
					for _, f := range lost {
						hits += f.Hits()
					}
					if hits != 1 {
						t.Errorf("%d answers were lost, the law needs one", hits)
					}
				})
			},
			Another: func(t testing.TB) store.Store {
				c := connect(t, nil)
				s := backend(c)
				clients[s] = c
				return s
			},
			Kill: func(t testing.TB, dead store.Store) {
				for _, channel := range redisstore.Silence(dead) {
					for s.listeners(channel) != 0 {
						if t.Context().Err() != nil {
							t.Fatal("somebody listens there still")
						}
					}
				}
				if err := clients[dead].Close(); err != nil {
					t.Fatal(err)
				}
			},
			Queued: func(t testing.TB, key string) int {
				return int(direct.ZCard(t.Context(), redisstore.QueueKey(key)).Val())
			},
			Occupy: func(t testing.TB, key string, ttl time.Duration) {
				if err := direct.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Spoil: func(t testing.TB, key string) func() bool {
				if err := direct.HSet(t.Context(), key, "field", "value").Err(); err != nil {
					t.Fatal(err)
				}
				return func() bool { return direct.HGet(context.Background(), key, "field").Val() == "value" }
			},
		}
		if len(s.addrs) == 0 {
			h.LoseReply = nil
		}
		return h
	})
}

// proxiesFor puts a proxy in front of each server of addrs. It returns the proxies, and a
// dialer that connects through these proxies.
func proxiesFor(t testing.TB, addrs []string) ([]*chaos.Proxy, dialer) {
	t.Helper()
	var proxies []*chaos.Proxy
	way := make(map[string]string)
	for _, addr := range addrs {
		p := chaos.NewProxy(t, addr)
		proxies, way[addr] = append(proxies, p), p.Addr()
	}
	return proxies, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if through, ok := way[addr]; ok {
			addr = through
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// scriptCall matches the EVALSHA of one step on one key, by a Locker with or without readers.
func scriptCall(op locker.Op, key string) chaos.Match {
	var shas []string
	for _, name := range map[locker.Op][]string{
		locker.OpAcquire: {"acquire", "rw_acquire", "sem_acquire"}, locker.OpRenew: {"renew", "confirm"},
		locker.OpRelease: {"release", "rw_release", "sem_release"},
	}[op] {
		shas = append(shas, scriptSHA(name))
	}
	return func(request []byte) bool {
		return strings.Contains(string(request), key) && slices.ContainsFunc(shas, func(sha string) bool {
			return strings.Contains(string(request), sha)
		})
	}
}

// loadScripts loads the scripts into the server, so that no call gets NOSCRIPT.
func loadScripts(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	for _, text := range redisstore.ScriptTexts {
		if err := client.ScriptLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
