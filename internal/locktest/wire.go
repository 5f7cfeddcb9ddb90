package locktest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

// Through returns a client whose connections go through the proxy.
func Through(t *testing.T, server *redistest.Server, proxy *chaos.Proxy, options ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return server.Client(t, append(options, func(o *redis.Options) { o.Addr = proxy.Addr() })...)
}

// ScriptsRun returns how many scripts the server has executed.
func ScriptsRun(t *testing.T, c *redis.Client) int {
	t.Helper()
	_, line, _ := strings.Cut(c.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
	n := 0
	_, _ = fmt.Sscan(strings.Split(line, ",")[0], &n)
	return n
}

// LoadScripts loads the scripts into the server, so that no call gets NOSCRIPT.
func LoadScripts(t testing.TB, client redis.UniversalClient, texts map[string]string) {
	t.Helper()
	for _, text := range texts {
		if err := client.ScriptLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// HeldBack is a client that delays the calls of one script until its gate is open.
type HeldBack struct {
	*redis.Client
	SHA     string // the script's SHA-1
	Gate    chan struct{}
	Arrived *sync.WaitGroup // done when the first call waits at the gate
	Passed  atomic.Int32    // how many calls the server has executed after they passed the gate
	once    sync.Once
}

// Process makes the calls of the script wait at the gate.
func (h *HeldBack) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[1] == h.SHA {
		h.once.Do(h.Arrived.Done)
		<-h.Gate
		defer h.Passed.Add(1)
		// The server must execute the call even if the caller has given the call up.
		ctx = context.WithoutCancel(ctx)
	}
	return h.Client.Process(ctx, cmd)
}
