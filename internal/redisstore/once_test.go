package redisstore_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// Each script is sent only once, even while connections break again and again. Many calls are under
// way together, and some are sent in one write to the connection.
func TestScriptsAreSentOnceWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	const callers, calls = 32, 60
	for way, how := range clientOptions {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := chaos.NewProxy(t, server.Addr())
			client := through(t, server, proxy, how)
			loadScripts(t, client)
			backend := locktest.SingleStore(client)

			// The function below sees every request, and selects every 40th request. The server
			// executes a selected request, and the proxy cuts the connection before the answer.
			var mu sync.Mutex
			requests, seen := 0, make(map[string]int)
			broken := proxy.LoseReplies(chaos.Every, func(request []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				requests++
				for _, mark := range []string{"TOKEN", "CONTR"} {
					if i := bytes.Index(request, []byte(mark)); i >= 0 {
						seen[string(request[i:i+26])]++
					}
				}
				return requests%40 == 0
			})
			mark := func(start string) string { return start + rand.Text()[len(start):] }
			var wg sync.WaitGroup
			var unclear atomic.Int32
			for w := range callers {
				wg.Go(func() {
					for i := range calls {
						claim := store.Claim{Key: fmt.Sprintf("storm:%d:%d", w, i), Owner: mark("TOKEN"), TTL: time.Minute}
						_, err := backend.Acquire(t.Context(), claim)
						if _, no := errors.AsType[*store.Refusal](err); err != nil && !no {
							unclear.Add(1)
						}
						if i%4 == 0 { // not counted, because go-redis may repeat reads
							_ = client.Get(t.Context(), mark("CONTR")).Err()
						}
					}
				})
			}
			wg.Wait()
			broken.Lift()

			mu.Lock()
			defer mu.Unlock()
			sent := map[string]int{}
			for mark, n := range seen {
				sent[mark[:5]] = max(sent[mark[:5]], n)
			}
			if sent["TOKEN"] != 1 {
				t.Errorf("a script was sent %d times", sent["TOKEN"])
			}
			if broken.Hits() < 10 || unclear.Load() < 10 || sent["CONTR"] < 2 {
				t.Errorf("positive control: %d connections broke, %d acquires were unclear, a GET was sent %d times",
					broken.Hits(), unclear.Load(), sent["CONTR"])
			}
		})
	}
}
