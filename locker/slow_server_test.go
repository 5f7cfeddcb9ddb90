package locker_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A dialer connects to a server, as the Dialer of a client's options.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// reach opens a Locker of the kind on the servers at the addresses, whose connections the dialer
// makes. A nil dialer is that of go-redis.
func reach(kind string, addrs []string, dial dialer) (*locker.Engine, error) {
	switch kind {
	case "Open":
		return locker.Open(&redis.Options{Addr: addrs[0], Dialer: dial})
	case "New":
		return locker.New(redis.NewClient(&redis.Options{Addr: addrs[0], Dialer: dial, ContextTimeoutEnabled: true}))
	case "Sentinel":
		return locker.Open(&redis.FailoverOptions{MasterName: redistest.SentinelName, SentinelAddrs: addrs, Dialer: dial})
	default:
		return locker.Open(&redis.ClusterOptions{Addrs: addrs, Dialer: dial})
	}
}

// startKinds starts the servers of each kind, and returns their addresses.
func startKinds(t *testing.T) map[string][]string {
	server := redistest.Start(t)
	return map[string][]string{
		"Open": {server.Addr()}, "New": {server.Addr()},
		"Sentinel": redistest.StartSentinel(t).Addrs(), "Cluster": redistest.StartCluster(t).Addrs(),
	}
}

// far makes connections whose answers come late.
type far struct {
	prompt []string     // the addresses of servers whose answers are never late
	late   atomic.Int64 // by how many nanoseconds
}

// dial connects to a server. The connection's answers come later by f.late.
func (f *far) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	server, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if slices.Contains(f.prompt, addr) {
		return server, nil
	}
	client, relay := net.Pipe()
	go func() { _, _ = bufio.NewReader(relay).WriteTo(server); _ = server.Close() }()
	type answer struct {
		text []byte
		due  time.Time
	}
	answers := make(chan answer, 1024)
	go func() {
		defer close(answers)
		for {
			text := make([]byte, 4096)
			n, err := server.Read(text)
			if err != nil {
				return
			}
			answers <- answer{text[:n], time.Now().Add(time.Duration(f.late.Load()))}
		}
	}()
	go func() {
		for a := range answers {
			<-time.After(time.Until(a.due))
			_, _ = relay.Write(a.text) // it fails only after the client's end
		}
		_ = relay.Close()
	}()
	return client, nil
}

const steadyKeys = 8 // so many keys lie on several nodes of a Cluster

// steady holds leases of the given TTL through l and takes locks, whose keys begin with the prefix.
// It returns how many locks it got while the trouble lasted, at least a second longer than the TTL,
// and how many leases it lost. One caller takes all locks, one after the other. So there are no more
// connections than a quiet service has.
func steady(l *locker.Engine, prefix string, trouble func(), ttl time.Duration) (grants, lost int, err error) {
	ctx := context.Background()
	var leases []*locker.Lease
	for i := range steadyKeys {
		lease, err := l.Acquire(ctx, locker.Rule{Key: fmt.Sprint(prefix, "held:", i), TTL: ttl})
		if err != nil {
			return 0, 0, err
		}
		leases = append(leases, lease)
	}
	lock := func(i int) bool {
		lease, failed := l.Acquire(ctx, locker.Rule{Key: fmt.Sprint(prefix, "taken:", i%steadyKeys), TTL: ttl})
		if failed != nil {
			err = failed
			return false
		}
		return lease.Release(ctx) == nil
	}
	for i := range 20 { // the server is fast
		if !lock(i) {
			return 0, 0, err
		}
	}
	trouble()
	// A busy machine gets twice the TTL for two locks.
	for i, began := 0, time.Now(); time.Since(began) < ttl+time.Second || grants < 2 && time.Since(began) < 2*ttl; i++ {
		if lock(i) {
			grants++
		}
	}
	for _, lease := range leases {
		if cause := context.Cause(lease.Context()); cause != nil {
			lost, err = lost+1, cause
		}
	}
	return grants, lost, err
}

// A server was fast, and then each of its answers takes a quarter of a second or more, for longer
// than a lease lasts. Locks are granted, and no lease is lost.
func TestASlowServerIsNotADeadOne(t *testing.T) {
	t.Parallel()
	for kind, addrs := range startKinds(t) {
		for _, late := range []time.Duration{250 * time.Millisecond, 350 * time.Millisecond} {
			t.Run(fmt.Sprint(kind, " ", late), func(t *testing.T) {
				t.Parallel()
				servers := new(far)
				if kind == "Sentinel" {
					servers.prompt = addrs
				}
				l, err := reach(kind, addrs, servers.dial)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					servers.late.Store(0)
					_ = l.Close(context.Background())
				}()
				grants, lost, err := steady(l, t.Name(), func() { servers.late.Store(int64(late)) }, 6*time.Second)
				if grants < 2 || lost > 0 {
					t.Errorf("%d locks granted, %d of %d leases lost: %v", grants, lost, steadyKeys, err)
				}
				t.Logf("%d locks granted: %v", grants, err)
			})
		}
	}
}

// busyProcess is a process with one processor, which busy goroutines take. For each kind of servers
// it says how many locks it got, and how many leases it lost. Its arguments are the kinds, each
// with its addresses.
var busyProcess = proc.Register("busy", func(args []string) {
	runtime.GOMAXPROCS(1)
	var work, ready sync.WaitGroup
	ready.Add(len(args))
	spin := sync.OnceFunc(func() {
		fmt.Println("begun")
		for range 16 {
			go func() {
				for n := 0; ; n++ {
					_ = n
				}
			}()
		}
	})
	busy := func() {
		ready.Done()
		ready.Wait()
		spin()
	}
	for _, arg := range args {
		kind, addrs, _ := strings.Cut(arg, "=")
		l, err := reach(kind, strings.Split(addrs, ","), nil)
		if err != nil {
			panic(err)
		}
		work.Go(func() {
			grants, lost, err := steady(l, kind, busy, 12*time.Second)
			fmt.Printf("result %s: %d %d %q\n", kind, grants, lost, fmt.Sprint(err))
		})
	}
	work.Wait()
	os.Exit(0)
})

// The process gets its answers late, because it has little CPU time, although the server is fast.
func TestAProcessWithoutCPUTimeKeepsItsLeases(t *testing.T) {
	t.Parallel()
	var args []string
	for kind, addrs := range startKinds(t) {
		args = append(args, kind+"="+strings.Join(addrs, ","))
	}
	child := busyProcess.Start(t, args...)
	child.Expect(t, "begun")
	for range args {
		var kind, failure string
		var grants, lost int
		said := child.Expect(t, "result")
		if _, err := fmt.Sscanf(said, "%s %d %d %q", &kind, &grants, &lost, &failure); err != nil {
			t.Fatal(said, err)
		}
		if grants == 0 || lost > 0 {
			t.Errorf("%d locks granted, %d of %d leases lost: %s", grants, lost, steadyKeys, said)
		}
		t.Log(said)
	}
}
