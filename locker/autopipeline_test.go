package locker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestPipelinedObeysTheLaws(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"pipelined", "full duplex"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			obeysTheLaws(t, func(c locker.Client) locker.Store {
				return together(t, c)
			}, func(o *redis.Options) { o.AutoPipelineOptions = ways[way].options })
		})
	}
}

func TestWithAutoPipeline(t *testing.T) {
	t.Parallel()
	t.Run("few calls go alone, many together", func(t *testing.T) {
		t.Parallel()
		client := redistest.Shared(t).Client(t)
		loadScripts(t, client)
		var seen traffic
		client.AddHook(&seen)
		l := newSingle(t, client, locker.WithAutoPipeline())
		cycles := func(workers, times int) {
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for range times {
						release(t, acquire(t, l, locker.Rule{Key: fmt.Sprintf("together:%d", w)}))
					}
				})
			}
			wg.Wait()
		}
		cycles(2, 50)
		if alone, together := seen.alone.Load(), seen.together.Load(); alone < 200 || together != 0 {
			t.Errorf("2 callers: %d calls went alone, %d together", alone, together)
		}
		cycles(64, 50)
		if alone, together := seen.alone.Load(), seen.together.Load(); together < alone {
			t.Errorf("64 callers: %d calls went alone, %d together", alone, together)
		}
		if seen.pipes.Load()*2 > seen.together.Load() {
			t.Errorf("%d pipelines for %d calls", seen.pipes.Load(), seen.together.Load())
		}
	})

	t.Run("renewals go alone", func(t *testing.T) {
		t.Parallel()
		client := redistest.Shared(t).Client(t)
		var seen traffic
		client.AddHook(&seen)
		if _, err := together(t, client).Renew(t.Context(), []locker.Claim{{Key: "together:renew", Owner: "nobody"}}); err != nil {
			t.Fatal(err)
		}
		if alone, together := seen.alone.Load(), seen.together.Load(); alone < 1 || together != 0 {
			t.Errorf("%d went alone, %d together", alone, together)
		}
	})

	t.Run("a pipeline that somebody closed is not missed", func(t *testing.T) {
		t.Parallel()
		client := redistest.Shared(t).Client(t)
		store := newSingle(t, client, locker.WithAutoPipeline())
		pipeline, err := client.AutoPipeline()
		if err != nil {
			t.Fatal(err)
		}
		if err := pipeline.Close(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() { release(t, acquire(t, store, locker.Rule{Key: fmt.Sprintf("closed:%d", w)})) })
		}
		wg.Wait()
	})

	t.Run("what has no pipeline is refused", func(t *testing.T) {
		t.Parallel()
		client := redistest.Shared(t).Client(t)
		wrong := redis.NewClient(&redis.Options{Addr: client.Options().Addr, AutoPipelineOptions: &redis.AutoPipelineOptions{MaxConcurrentBatches: 2}})
		defer wrong.Close()
		for text, make := range map[string]func() (*locker.Engine, error){
			"has no AutoPipeline": func() (*locker.Engine, error) {
				return locker.NewSingle(struct{ locker.Client }{client}, locker.WithAutoPipeline())
			},
			"requires Unordered":                    func() (*locker.Engine, error) { return locker.NewSingle(wrong, locker.WithAutoPipeline()) },
			"constructors that take a Redis client": func() (*locker.Engine, error) { return locker.New(lockertest.NewMemory(), locker.WithAutoPipeline()) },
		} {
			if _, err := make(); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "WithAutoPipeline") {
				t.Errorf("err = %v, want one that says: %s", err, text)
			}
		}
	})
}

// traffic counts scripts by the way they go.
type traffic struct{ alone, together, pipes atomic.Int64 }

func (*traffic) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.alone.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (h *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // and not what a connection begins with
			h.pipes.Add(1)
			h.together.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}
