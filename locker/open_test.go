package locker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestOpenMakesAClientThatCloseEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	options := &redis.Options{Addr: server.Addr()}
	byURL := func(opts ...locker.SingleOption) (*locker.Engine, error) {
		return locker.Open("redis://"+server.Addr(), opts...)
	}
	byOptions := func(opts ...locker.SingleOption) (*locker.Engine, error) { return locker.Open(options, opts...) }
	for name, open := range map[string]func(...locker.SingleOption) (*locker.Engine, error){"URL": byURL, "options": byOptions} {
		var recorder lockertest.Recorder
		l, err := open(locker.WithObserver(&recorder))
		if err != nil {
			t.Fatal(name, err)
		}
		release(t, acquire(t, l, locker.Rule{Key: "order:42"}))
		connections := func() int { return strings.Count(client.ClientList(t.Context()).Val(), "\n") }
		if connections() < 2 {
			t.Errorf("%s: positive control: the Locker has no connection", name)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(name, err)
		}
		eventually(t, "the Locker's connections are closed", func() bool { return connections() == 1 })
		if got := recorder.Warnings(); len(got) != 0 {
			t.Errorf("%s: the client of Open is warned of: %v", name, got)
		}
	}
	if options.ContextTimeoutEnabled {
		t.Error("Open has changed its caller's options")
	}
}

// A pool of one connection serves the calls with acknowledgements, and those of Keys, too.
func TestOpenLocksWithAPoolOfOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	redistest.Start(t, "--replicaof", host, port)
	witness := server.Client(t)
	eventually(t, "the replica acknowledges", func() bool {
		return witness.Set(t.Context(), "write", 1, 0).Err() == nil && witness.Wait(t.Context(), 1, time.Second).Val() == 1
	})
	for name, limit := range map[string]func(o *redis.Options){
		"PoolSize 1":       func(o *redis.Options) { o.PoolSize = 1 },
		"MaxActiveConns 2": func(o *redis.Options) { o.MaxActiveConns = 2 },
	} {
		o := &redis.Options{Addr: server.Addr()}
		limit(o)
		l, err := locker.Open(o, locker.WithReplicaAck(1, time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		for range 3 {
			lease, err := l.Acquire(t.Context(), locker.Rule{Key: "one"})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if keys, err := l.Keys(t.Context(), "one"); err != nil || len(keys) != 1 {
				t.Errorf("%s: %v %v", name, keys, err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A server that waits for its replicas answers later than a server that does not.
func TestOpenWaitsForReplicasForLongerThanForOtherAnswers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", host, port)
	l, err := locker.Open("redis://"+server.Addr(), locker.WithReplicaAck(1, 3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	eventually(t, "the replica acknowledges", func() bool {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "first"})
		return err == nil && lease.Release(t.Context()) == nil
	})
	replica.Pause()
	time.AfterFunc(1300*time.Millisecond, replica.Resume)
	began := time.Now()
	release(t, acquire(t, l, locker.Rule{Key: "order:42"}))
	if took := time.Since(began); took < 1200*time.Millisecond {
		t.Errorf("positive control: the replica acknowledged after %v", took)
	}
}

func TestOpenRefusesWhatIsNoServer(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() (*locker.Engine, error){
		"no URL":         func() (*locker.Engine, error) { return locker.Open("localhost:6379") },
		"not of Redis":   func() (*locker.Engine, error) { return locker.Open("http://u:hunter2@localhost") },
		"a bad port":     func() (*locker.Engine, error) { return locker.Open("redis://u:hunter2@localhost:port") },
		"nil options":    func() (*locker.Engine, error) { return locker.Open[*redis.Options](nil) },
		"nil set":        func() (*locker.Engine, error) { return locker.Open[*redis.FailoverOptions](nil) },
		"nil cluster":    func() (*locker.Engine, error) { return locker.Open[*redis.ClusterOptions](nil) },
		"a wrong option": func() (*locker.Engine, error) { return locker.Open("redis://localhost:6379", locker.WithTTL(0)) },
	} {
		l, err := open()
		if err == nil || l != nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
		if name != "a wrong option" && !strings.Contains(err.Error(), "redis://") {
			t.Errorf("%s: the error does not say what to give: %v", name, err)
		}
	}
}

func TestOpenLocksOnSentinelAndCluster(t *testing.T) {
	t.Parallel()
	set, cluster := redistest.StartSentinel(t), redistest.StartCluster(t)
	for name, open := range map[string]func() (*locker.Engine, error){
		"Sentinel": func() (*locker.Engine, error) {
			return locker.Open(&redis.FailoverOptions{MasterName: redistest.SentinelName, SentinelAddrs: set.Addrs()})
		},
		"Cluster": func() (*locker.Engine, error) {
			return locker.Open(&redis.ClusterOptions{Addrs: cluster.Addrs()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ls [2]*locker.Engine
			for i := range ls {
				l, err := open()
				if err != nil {
					t.Fatal(err)
				}
				ls[i] = l
				t.Cleanup(func() {
					if err := l.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range 20 {
				rule := locker.Rule{Key: fmt.Sprint("order:", i)}
				first := acquire(t, ls[0], rule)
				refused := rule
				refused.Wait = locker.NoWait
				if _, err := ls[1].Acquire(t.Context(), refused); !errors.Is(err, locker.ErrBusy) {
					t.Errorf("a held key was refused with %v", err)
				}
				release(t, first)
				release(t, acquire(t, ls[1], rule))
			}
		})
	}
}

// While the server hangs, a caller that leaves is back within 250 ms. When the server answers
// again, no key stays locked.
func TestCallersOfOpenAreBackInTimeWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, err := locker.Open("redis://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	}
	server.Pause()
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := l.Acquire(ctx, locker.Rule{Key: fmt.Sprint("k", i)}); err == nil {
				t.Error("a server that stands still has granted a lock")
			}
			if took := time.Since(began); took > 300*time.Millisecond+slack {
				t.Errorf("the caller is back after %v", took)
			}
		})
	}
	work.Wait()
	server.Resume()
	client := server.Client(t)
	for i := range 8 {
		release(t, acquire(t, l, locker.Rule{Key: fmt.Sprint("k", i)}))
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for i := range 8 {
		if client.Exists(t.Context(), fmt.Sprint("k", i)).Val() != 0 {
			t.Errorf("k%d is still locked", i)
		}
	}
}
