package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
)

// clientOptions has the options of several clients, each of which sends a script in another way.
var clientOptions = map[string]func(*redis.Options){
	"in batches": func(*redis.Options) {},
	"directly":   func(o *redis.Options) { o.ContextTimeoutEnabled = true },
}

// Only the Engine repeats a call. If go-redis made its three retries too, a script could be
// executed four times.
func TestEveryScriptIsSentOnce(t *testing.T) {
	t.Parallel()
	for way, how := range clientOptions {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := chaos.NewProxy(t, server.Addr())
			client := through(t, server, proxy, how)
			loadScripts(t, client)
			backend := locktest.SingleStore(client)
			claim := store.Claim{Key: "once:sent", Owner: strings.Repeat("T", 26), TTL: time.Minute}

			for name, call := range map[string]func() error{
				"acquire": func() error { _, err := backend.Acquire(t.Context(), claim); return err },
				"renew":   func() error { _, err := backend.Renew(t.Context(), []store.Claim{claim}); return err },
				"release": func() error { _, err := backend.Release(t.Context(), claim); return err },
				"inspect": func() error { _, err := store.CapabilitiesOf(backend).Inspect(t.Context(), claim.Key); return err },
				"raise":   func() error { return store.CapabilitiesOf(backend).RaiseFence(t.Context(), claim.Key, 1) },
			} {
				proxy.ResetCommands()
				lost := proxy.LoseReplies(chaos.Every, chaos.Command("EVALSHA"))
				err := call()
				if no, ok := errors.AsType[*store.Refusal](err); err == nil || ok {
					t.Errorf("%s: %v %v, want an unclear error", name, err, no)
				}
				if n := proxy.Commands()["EVALSHA"]; n != 1 || lost.Hits() != 1 {
					t.Errorf("%s was sent %d times", name, n)
				}
				lost.Lift()
			}
			proxy.ResetCommands()
			lost := proxy.LoseReplies(chaos.Every, chaos.Command("GET"))
			_ = client.Get(t.Context(), "control").Err()
			if n := proxy.Commands()["GET"]; n < 2 {
				t.Errorf("positive control: go-redis sent an ordinary GET %d times", n)
			}
			lost.Lift()
		})
	}
}
