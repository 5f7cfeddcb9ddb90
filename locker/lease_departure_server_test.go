package locker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// pipelineCounter is a hook that counts pipelines with more than one command.
type pipelineCounter struct{ n atomic.Int64 }

func (h *pipelineCounter) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *pipelineCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *pipelineCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 1 {
			h.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// endCallsWithContext makes go-redis end a call when its context ends.
func endCallsWithContext(o *redis.Options) { o.ContextTimeoutEnabled = true }

// unansweredReleases returns the number of releases in recorder that the server has not answered.
// The number can be above 0, because a busy machine may stop the server for a while.
func unansweredReleases(recorder *lockertest.Recorder) (n int) {
	for _, r := range recorder.Records(locker.OpRelease) {
		if r.Outcome.Result == locker.ResultUnavailable {
			n++
		}
	}
	return n
}

// The release is sent together with the next acquire, no call overtakes the release, and Close
// leaves no key behind.
func TestBackgroundReleaseOnServers(t *testing.T) {
	t.Parallel()
	option := locker.WithBackgroundRelease()
	kinds := map[string]func(*testing.T, *lockertest.Recorder) (*locker.Engine, redis.UniversalClient, *pipelineCounter){
		"one server": func(t *testing.T, recorder *lockertest.Recorder) (*locker.Engine, redis.UniversalClient, *pipelineCounter) {
			c, hook := redistest.Start(t).Client(t, endCallsWithContext), new(pipelineCounter)
			c.AddHook(hook)
			l, err := locker.New(c, option, locker.WithObserver(recorder))
			if err != nil {
				t.Fatal(err)
			}
			return l, c, hook
		},
		"flights only": func(t *testing.T, recorder *lockertest.Recorder) (*locker.Engine, redis.UniversalClient, *pipelineCounter) {
			c, hook := redistest.Start(t).Client(t), new(pipelineCounter)
			c.AddHook(hook)
			l, err := locker.New(c, option, locker.WithObserver(recorder))
			if err != nil {
				t.Fatal(err)
			}
			return l, c, hook
		},
		"readers and writers": func(t *testing.T, recorder *lockertest.Recorder) (*locker.Engine, redis.UniversalClient, *pipelineCounter) {
			c, hook := redistest.Start(t).Client(t, endCallsWithContext), new(pipelineCounter)
			c.AddHook(hook)
			l, err := locker.NewReadWrite(c, option, locker.WithObserver(recorder))
			if err != nil {
				t.Fatal(err)
			}
			return l, c, hook
		},
		"cluster": func(t *testing.T, recorder *lockertest.Recorder) (*locker.Engine, redis.UniversalClient, *pipelineCounter) {
			c := redistest.StartCluster(t).Client(t, func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = true })
			l, err := locker.New(c, option, locker.WithObserver(recorder))
			if err != nil {
				t.Fatal(err)
			}
			return l, c, nil
		},
	}
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var recorder lockertest.Recorder
			l, c, hook := open(t, &recorder)
			busy := 0
			for i := range 200 {
				for _, rule := range []locker.Rule{
					{Key: "same", Wait: locker.NoWait}, // asks the server each time
					{Key: fmt.Sprint("own:", i)},
				} {
					if err := locker.Run(t.Context(), l, rule, nothing); err != nil {
						busy++
					}
				}
			}
			if hook != nil {
				// On a slow machine, the release may be sent alone, because its millisecond is
				// over before the next acquire. So the test tries again.
				for i := 0; hook.n.Load() == 0; i++ {
					if err := locker.Run(t.Context(), l, locker.Rule{Key: fmt.Sprint("more:", i)}, nothing); err != nil {
						t.Fatal(err)
					}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := l.Close(ctx); err != nil {
				t.Error(err)
			}
			if lost := unansweredReleases(&recorder); busy > lost {
				t.Errorf("%d acquires were refused, and %d releases were not answered", busy, lost)
			}
			if n, err := c.Exists(t.Context(), "same").Result(); err != nil || n != 0 {
				t.Errorf("a key is held after Close, %v", err)
			}
			for i := range 200 {
				if n, err := c.Exists(t.Context(), fmt.Sprint("own:", i)).Result(); err != nil || n != 0 {
					t.Fatalf("own:%d is held after Close, %v", i, err)
				}
			}
		})
	}
}

func TestBackgroundReleaseOfReadersLetsWritersIn(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t, endCallsWithContext)
	l, err := locker.NewReadWrite(c, locker.WithBackgroundRelease())
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		for _, mode := range []locker.Mode{locker.Shared, locker.Exclusive, locker.Shared} {
			if err := locker.Run(t.Context(), l, locker.Rule{Key: "a", Mode: mode}, nothing); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := c.Keys(t.Context(), "a").Val(); len(left) > 0 {
		t.Error("the key is held after Close")
	}
}

// Run returns although the server is stopped. The server executes the release when it continues.
func TestBackgroundReleaseOutlastsAStall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t, endCallsWithContext)
	l, err := locker.New(c, locker.WithBackgroundRelease())
	if err != nil {
		t.Fatal(err)
	}
	// Because the answer for the key a was late, the server does not count as prompt. So Run
	// waits for the release of the key b.
	for _, key := range []string{"a", "b"} {
		if err := locker.Run(t.Context(), l, locker.Rule{Key: key}, func(context.Context) error {
			server.Pause()
			time.AfterFunc(300*time.Millisecond, server.Resume)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
	if n := c.Exists(t.Context(), "a", "b").Val(); n != 0 {
		t.Errorf("%d keys are held after Close", n)
	}
}

// It may happen that only the release notices a revocation. If the caller needs the answer to the
// release as a proof, Run waits for the answer and reports the loss.
func TestIdempotencyAwaitsTheRelease(t *testing.T) {
	t.Parallel()
	l, err := locker.New(redistest.Start(t).Client(t, endCallsWithContext), locker.WithBackgroundRelease())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	revoke := func(ctx context.Context) {
		lease, _ := locker.FromContext(ctx)
		if err := l.Revoke(t.Context(), lease.Key(), lease.Fence(), "why"); err != nil {
			t.Error(err)
		}
	}
	if err := locker.Run(t.Context(), l, locker.Rule{Key: "control"}, nothing); err != nil { // makes the server count as prompt
		t.Fatal(err)
	}
	k := idempotency.Keeper{Locker: l, Store: idempotency.NewMemory()}
	request := idempotency.Request{Rule: locker.Rule{Key: "a"}}
	_, err = k.Do(t.Context(), request, func(ctx context.Context) idempotency.Outcome {
		revoke(ctx)
		return idempotency.Outcome{}
	})
	wantErr(t, err, "a", locker.ErrRevoked)
}

func TestAClientThatDoesNotEndItsCallsIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	warned := func(c locker.Client) (n int) {
		var recorder lockertest.Recorder
		l, err := locker.New(c, locker.WithObserver(&recorder))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			release(t, acquire(t, l, locker.Rule{Key: "warned"}))
		}
		if err := l.Close(t.Context()); err != nil { // Close waits until the warnings have been delivered
			t.Fatal(err)
		}
		for _, w := range recorder.Warnings() {
			if w.Code == "calls-by-goroutine" {
				n++
			}
		}
		return n
	}
	short := func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond }
	if warned(server.Client(t)) != 1 || warned(server.Client(t, endCallsWithContext)) != 0 || warned(server.Client(t, short)) != 0 {
		t.Error("a default client is warned of once, and one that ends its calls is not")
	}
	if warned(struct{ *redis.Client }{server.Client(t)}) != 0 {
		t.Error("a wrapper is warned of, for which the option changes nothing")
	}
}

// TestACallerThatLeavesWhenItsTurnComesEndsTheDeparture takes the hold of a background release
// back for a caller whose context ends at that moment. The departure (the background release) must
// still end, because Close waits for it.
func TestACallerThatLeavesWhenItsTurnComesEndsTheDeparture(t *testing.T) {
	t.Parallel()
	var cancel context.CancelFunc
	l, err := locker.New(redistest.Start(t).Client(t, endCallsWithContext), locker.WithBackgroundRelease(),
		locker.WithMetadata(func(context.Context) string {
			if cancel != nil {
				cancel() // ends the context after the first time that Acquire checks it
			}
			return ""
		}))
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for range 64 {
		cancel = nil
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		cancel = stop
		lease, err := l.Acquire(ctx, locker.Rule{Key: "a"})
		cancel = nil
		if err != nil {
			left++
		} else if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if left == 0 {
		t.Error("positive control: no caller has left")
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}
