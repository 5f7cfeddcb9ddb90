package chaos_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestAPipeFreezesReplicationAndNothingElse(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	pipe := chaos.NewPipe(t, master.Addr())
	host, port, err := net.SplitHostPort(pipe.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", host+" "+port).Client(t)
	client := master.Client(t, func(o *redis.Options) { o.Addr = pipe.Addr() })
	await := func(what string, true func() bool) {
		t.Helper()
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		for deadline := time.After(30 * time.Second); !true(); {
			select {
			case <-look.C:
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	await("the replica does not follow", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})

	pipe.Freeze()
	if err := client.Set(t.Context(), "key", "new", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := client.Wait(t.Context(), 1, 200*time.Millisecond).Val(); n != 0 {
		t.Errorf("%d replicas have acknowledged", n)
	}
	await("nothing was kept", func() bool { return pipe.Kept() > 0 })
	if got := replica.Get(t.Context(), "key").Val(); got != "" {
		t.Errorf("the replica has %q", got)
	}
	pipe.Thaw()
	await("the replica has not caught up", func() bool { return replica.Get(t.Context(), "key").Val() == "new" })
}

func TestAPipeMakesAnswersLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	pipe := chaos.NewPipe(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr = pipe.Addr() })
	const late = 100 * time.Millisecond
	for _, d := range []time.Duration{late, 0} {
		pipe.Delay(d)
		began := time.Now()
		if _, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for range 50 {
				p.Ping(t.Context())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < d || d == late && took > 20*late {
			t.Errorf("50 answers that are %v late took %v", d, took)
		}
	}
}
