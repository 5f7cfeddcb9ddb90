package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// SentinelName is the name of the master for the Sentinels of a [SentinelSet].
const SentinelName = "locks"

// SentinelSet is a master with two replicas and three Sentinels. The Sentinels promote a replica
// when the master is unreachable for a second. [StartSentinel] makes a SentinelSet; the zero value
// is not usable.
type SentinelSet struct {
	t         testing.TB
	tls       *tls.Config // the configuration of its clients; nil: the set does not use TLS
	args      []string    // the further arguments of its servers
	Servers   []*Server   // the first master, and then its replicas
	Sentinels []*Server
}

// StartSentinel starts a set for this test alone. The set stops when the test ends. StartSentinel
// returns when every Sentinel knows all other Sentinels and both replicas, and the replicas have
// the master's data. The function through is optional. It gets the address of the first master, and
// returns an address that leads to this master, such as the address of a proxy. Then replicas,
// Sentinels and clients use the returned address.
func StartSentinel(t testing.TB, through ...func(master string) string) *SentinelSet {
	t.Helper()
	s, err := LaunchSentinel(through...)
	if err != nil {
		t.Fatal(err)
	}
	s.own(t)
	return s
}

// StartTLSSentinel does the work of [StartSentinel] for servers and Sentinels that accept only TLS
// connections, from clients and from each other.
func StartTLSSentinel(t testing.TB) *SentinelSet {
	t.Helper()
	config, args := certified(t)
	s := &SentinelSet{tls: config, args: append(args, "--tls-replication", "yes")}
	if err := s.start(nil); err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	s.own(t)
	return s
}

// LaunchSentinel starts a set outside of tests. The set runs until Close is called.
func LaunchSentinel(through ...func(master string) string) (*SentinelSet, error) {
	s := &SentinelSet{}
	if err := s.start(through); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *SentinelSet) start(through []func(string) string) error {
	args := append(slices.Clone(quickSync), s.args...)
	master, err := launch(&Server{tls: s.tls, args: args})
	if err != nil {
		return err
	}
	s.Servers = append(s.Servers, master)
	addr := master.Addr()
	for _, way := range through {
		addr = way(addr)
	}
	host, port, _ := strings.Cut(addr, ":")
	for range 2 {
		replica, err := launch(&Server{tls: s.tls, args: append([]string{"--replicaof", host, port}, args...)})
		if err != nil {
			return err
		}
		s.Servers = append(s.Servers, replica)
	}
	for range 3 {
		sentinel, err := launch(&Server{tls: s.tls, args: append([]string{"--sentinel"}, s.args...), config: fmt.Sprintf(`
sentinel monitor %[1]s %[2]s %[3]s 2
sentinel down-after-milliseconds %[1]s 60000
sentinel failover-timeout %[1]s 4000
sentinel parallel-syncs %[1]s 2
`, SentinelName, host, port)})
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	return s.awaitReady()
}

// awaitReady returns when a failover is possible.
func (s *SentinelSet) awaitReady() error {
	for _, replica := range s.Servers[1:] {
		if err := replica.awaitSync(); err != nil {
			return err
		}
	}
	for _, sentinel := range s.Sentinels {
		err := sentinel.awaitNoError("know the whole set", func(ctx context.Context, c *redis.Client) error {
			return knows(ctx, c, 2)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// knows returns nil if the Sentinel of c sees the master, the given number of its replicas, and the
// two other Sentinels.
func knows(ctx context.Context, c *redis.Client, replicas int) error {
	sees := redis.NewMapStringStringCmd(ctx, "sentinel", "master", SentinelName)
	if err := c.Process(ctx, sees); err != nil {
		return err
	}
	if m := sees.Val(); m["flags"] != "master" || m["num-other-sentinels"] != "2" {
		return fmt.Errorf("it says of the master: %v", m)
	}
	list := redis.NewMapStringStringSliceCmd(ctx, "sentinel", "replicas", SentinelName)
	if err := c.Process(ctx, list); err != nil {
		return err
	}
	n := 0
	for _, m := range list.Val() {
		if m["flags"] == "slave" && m["master-link-status"] == "ok" {
			n++
		}
	}
	if n < replicas {
		return fmt.Errorf("%d of %d replicas follow", n, replicas)
	}
	return nil
}

// Addrs returns the addresses of the Sentinels, for redis.FailoverOptions.
func (s *SentinelSet) Addrs() []string { return addrs(s.Sentinels) }

// Client returns a client of the Sentinels' present master. The client is closed when the test
// ends.
func (s *SentinelSet) Client(t testing.TB, mod ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	options := &redis.FailoverOptions{MasterName: SentinelName, SentinelAddrs: s.Addrs(), TLSConfig: s.tls}
	for _, change := range mod {
		change(options)
	}
	client := redis.NewFailoverClient(options)
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("ping the master: %v", err)
	}
	return client
}

// Protect gives the servers and the Sentinels a password each, which their clients must know from
// now on.
func (s *SentinelSet) Protect(t testing.TB, password, ofSentinels string) {
	t.Helper()
	at := func(servers []*Server, commands ...[]any) {
		t.Helper()
		for _, server := range servers {
			for _, command := range commands { // each over a connection of its own, which was there before the password
				if err := server.runOnce(func(ctx context.Context, c *redis.Client) error { return c.Do(ctx, command...).Err() }); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	at(s.Sentinels, []any{"sentinel", "set", SentinelName, "auth-pass", password}, []any{"sentinel", "config", "set", "sentinel-pass", ofSentinels})
	at(s.Servers, []any{"config", "set", "masterauth", password}, []any{"config", "set", "requirepass", password})
	at(s.Sentinels, []any{"acl", "setuser", "default", "resetpass", ">" + ofSentinels})
	for _, server := range s.Servers {
		server.password = password
	}
	for _, sentinel := range s.Sentinels {
		sentinel.password = ofSentinels
	}
}

// FailOverAfter makes the Sentinels promote a replica when the master has not answered for d. At
// first they wait for a minute: on a machine that is short of processors, a second without an
// answer would be a failover that the test does not expect, and leases would be lost.
func (s *SentinelSet) FailOverAfter(t testing.TB, d time.Duration) {
	t.Helper()
	for _, sentinel := range s.Sentinels {
		err := sentinel.runOnce(func(ctx context.Context, c *redis.Client) error {
			return c.Do(ctx, "sentinel", "set", SentinelName, "down-after-milliseconds", d.Milliseconds()).Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Promoted waits until the Sentinels have promoted one of the replicas, because the master was
// killed or was asked for a failover. It returns the promoted server.
func (s *SentinelSet) Promoted(t testing.TB) *Server {
	t.Helper()
	s.FailOverAfter(t, time.Second)
	defer s.FailOverAfter(t, time.Minute)
	var promoted *Server
	err := s.Sentinels[0].awaitNoError("promote a replica", func(ctx context.Context, c *redis.Client) error {
		where := redis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", SentinelName)
		if err := c.Process(ctx, where); err != nil {
			return err
		}
		for _, server := range s.Servers[1:] {
			if server.Addr() == strings.Join(where.Val(), ":") {
				promoted = server
				return nil
			}
		}
		return fmt.Errorf("the master is at %v", where.Val())
	})
	if err != nil {
		t.Fatal(err)
	}
	return promoted
}

// Close kills all servers and removes their folders. Sets of tests are closed automatically.
func (s *SentinelSet) Close() error { return closeAll(append(slices.Clip(s.Sentinels), s.Servers...)) }

func (s *SentinelSet) own(t testing.TB) {
	s.t = t
	for _, server := range append(slices.Clip(s.Sentinels), s.Servers...) {
		server.t = t
		t.Cleanup(server.cleanUp)
	}
}
