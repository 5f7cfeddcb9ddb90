package otellock_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/internal/redistest"
	otellock "github.com/latchkit/latchkit/otel"
	otelredislock "github.com/latchkit/latchkit/otel/redislock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// redislockClient is an interface that a service could have declared for its use of redislock.
type redislockClient[L any] interface {
	Obtain(ctx context.Context, key string, ttl time.Duration, opt *redislock.Options) (L, error)
}

// redislockLock has the methods of a lock that such a service uses.
type redislockLock interface {
	Key() string
	Token() string
	Metadata() string
	TTL(ctx context.Context) (time.Duration, error)
	Refresh(ctx context.Context, ttl time.Duration, opt *redislock.Options) error
	Release(ctx context.Context) error
}

var (
	_ redislockClient[*redislock.Lock]     = (*redislock.Client)(nil)
	_ redislockClient[*otelredislock.Lock] = (*otelredislock.Client)(nil)
	_ redislockClient[*redislock.Lock]     = (*redislock.Lock)(nil)
	_ redislockClient[*otelredislock.Lock] = (*otelredislock.Lock)(nil)
	_ redislockLock                        = (*redislock.Lock)(nil)
	_ redislockLock                        = (*otelredislock.Lock)(nil)
)

// retry returns options that make redislock try n more times.
func retry(n int) *redislock.Options {
	return &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(5*time.Millisecond), n)}
}

// durations matches the durations in spans. They are real times, so they differ in each run.
var durations = regexp.MustCompile(`wait\.duration=\S+`)

func TestRedislockIsTracedByAnotherConstructor(t *testing.T) {
	server := redistest.Start(t) // a server for this test alone, because the test does not release all locks
	direct := redislock.New(server.Client(t))
	const ttl = 30 * time.Second
	for name, tc := range map[string]struct {
		do    func(ctx context.Context, t *testing.T, c *otelredislock.Client)
		spans []string
	}{
		"obtained, refreshed and released": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				lock, err := c.Obtain(ctx, "order:1", ttl, &redislock.Options{Token: "token", Metadata: "meta"})
				if err != nil {
					t.Fatal(err)
				}
				if left, err := lock.TTL(ctx); lock.Key() != "order:1" || lock.Token() != "token" || lock.Metadata() != "meta" || left <= 0 || err != nil {
					t.Errorf("%q %q %q %v %v", lock.Key(), lock.Token(), lock.Metadata(), left, err)
				}
				if err := lock.Refresh(ctx, time.Minute, nil); err != nil {
					t.Error(err)
				}
				if err := lock.Release(ctx); err != nil {
					t.Error(err)
				}
			},
			spans: []string{
				"acquire order: Unset mode=exclusive name=order result=acquired ttl=30 wait.attempts=1",
				"extend order: Unset mode=exclusive name=order result=extended ttl=30",
				"hold order: Unset mode=exclusive name=order result=released ttl=30",
				"release order: Unset mode=exclusive name=order result=released ttl=30",
			},
		},
		"busy": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				if _, err := direct.Obtain(ctx, "busy", ttl, nil); err != nil {
					t.Fatal(err)
				}
				if lock, err := c.Obtain(ctx, "busy", ttl, nil); err != redislock.ErrNotObtained || lock != nil {
					t.Errorf("%v %v", lock, err)
				}
			},
			spans: []string{"acquire lock: Unset mode=exclusive name=lock result=busy ttl=30 wait.attempts=1"},
		},
		"waited for, in vain": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				if _, err := direct.Obtain(ctx, "vain:1", ttl, nil); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Obtain(ctx, "vain:1", ttl, retry(3)); err != redislock.ErrNotObtained {
					t.Error(err)
				}
			},
			spans: []string{"acquire vain: Error(busy) error.type=busy mode=exclusive name=vain result=timeout ttl=30 wait.attempts=4 wait.duration=T"},
		},
		"waited for until the deadline": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				if _, err := direct.Obtain(ctx, "late:1", ttl, nil); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
				_, err := c.Obtain(ctx, "late:1", ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			},
			spans: []string{"acquire late: Error(deadline_exceeded) error.type=deadline_exceeded mode=exclusive name=late result=timeout ttl=30 wait.attempts=1 wait.duration=T"},
		},
		"given up": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				if _, err := direct.Obtain(ctx, "gone:1", ttl, nil); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(200*time.Millisecond, cancel)
				_, err := c.Obtain(ctx, "gone:1", ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			},
			spans: []string{"acquire gone: Error(canceled) error.type=canceled mode=exclusive name=gone result=canceled ttl=30 wait.attempts=1 wait.duration=T"},
		},
		"lost": {
			do: func(ctx context.Context, t *testing.T, c *otelredislock.Client) {
				lock, err := c.Obtain(ctx, "lost:1", ttl, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := server.Client(t).Del(ctx, "lost:1").Err(); err != nil {
					t.Fatal(err)
				}
				if err := lock.Refresh(ctx, ttl, nil); err != redislock.ErrNotObtained {
					t.Error(err)
				}
				if err := lock.Release(ctx); err != redislock.ErrLockNotHeld {
					t.Error(err)
				}
			},
			spans: []string{
				"acquire lost: Unset mode=exclusive name=lost result=acquired ttl=30 wait.attempts=1",
				"extend lost: Error(lost) error.type=lost mode=exclusive name=lost result=lost ttl=30",
				"hold lost: Error(lost) error.type=lost mode=exclusive name=lost result=lost ttl=30",
				"release lost: Error(lost) error.type=lost mode=exclusive name=lost result=lost ttl=30",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tel := newTelemetry(t, sdktrace.AlwaysSample())
			c, err := otelredislock.New(redislock.New(server.Client(t)), tel.options(otellock.WithHoldSpans())...)
			if err != nil {
				t.Fatal(err)
			}
			ctx, request := tel.tracer.Start(t.Context(), "request")
			tc.do(ctx, t, c)
			request.End()
			got := tel.spanLines(t)
			for i := range got {
				got[i] = durations.ReplaceAllString(got[i], "wait.duration=T")
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.spans) {
				t.Errorf("spans\n\t%q, want\n\t%q", got, tc.spans)
			}
			for _, s := range tel.spans.Ended() {
				if s.Name() != "request" && s.Parent().SpanID() != request.SpanContext().SpanID() {
					t.Errorf("%q is no child of the request", s.Name())
				}
			}
		})
	}
}

func TestRedislockTellsAServerThatIsNotThere(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	dead := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer dead.Close()
	c, err := otelredislock.New(redislock.New(dead), tel.options()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Obtain(t.Context(), "order:1", time.Second, retry(3)); err == nil || errors.Is(err, redislock.ErrNotObtained) {
		t.Fatal(err)
	}
	want := []string{"acquire order: Error(unavailable) error.type=unavailable mode=exclusive name=order result=unavailable ttl=1 wait.attempts=1"}
	if got := tel.spanLines(t); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The commands of redislock belong to spans below the adapter's span. So the tracing of the client
// shows which attempt took the time.
func TestTheCallsOfRedislockAreChildrenOfTheSpan(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	client := redistest.Shared(t).Client(t)
	var parents []trace.SpanID
	client.AddHook(hook(func(ctx context.Context) {
		parents = append(parents, trace.SpanContextFromContext(ctx).SpanID())
	}))
	c, err := otelredislock.New(redislock.New(client), tel.options()...)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := c.Obtain(t.Context(), "child:1", time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acquire child", "release child"} {
		if !slices.Contains(parents, tel.span(t, name).SpanContext().SpanID()) {
			t.Errorf("no command is a child of %q", name)
		}
	}
}

// hook is a hook of the client that gets the context of each command.
type hook func(ctx context.Context)

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h(ctx); return next(ctx, cmd) }
}
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestRedislockRefusesWhatCannotBeMeant(t *testing.T) {
	if _, err := otelredislock.New(nil); err == nil {
		t.Error("no client was accepted")
	}
	var none *otelredislock.Lock
	if err := none.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Errorf("%v, redislock returns ErrLockNotHeld", err)
	}
}

// A lock of redislock has the same metrics as a lock of latchkit, as far as redislock's methods
// allow it.
func TestRedislockIsMeasured(t *testing.T) {
	server := redistest.Start(t)
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	c, err := otelredislock.New(redislock.New(server.Client(t)), tel.options()...)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := c.Obtain(t.Context(), "order:1", 30*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Refresh(t.Context(), 30*time.Second, nil); err != nil {
		t.Error(err)
	}
	_, _ = c.Obtain(t.Context(), "order:1", 30*time.Second, retry(2))
	if err := server.Client(t).Del(t.Context(), "order:1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Refresh(t.Context(), 30*time.Second, nil); err == nil {
		t.Error("a lock was refreshed that is gone")
	}
	_ = lock.Release(t.Context())
	got := strings.Join(tel.measured(t), "\n")
	for _, want := range []string{
		"acquire.duration contended=false mode=exclusive name=order result=acquired: 1 of 0",
		"acquire.duration error.type=busy contended=true mode=exclusive name=order result=timeout: 1 of 0",
		"held.active mode=exclusive name=order: 0",
		"hold.duration mode=exclusive name=order result=lost: 1 of 0",
		"losses loss.cause=taken mode=exclusive name=order: 1",
		"renewal.margin mode=exclusive name=order: 1 of 30",
		"renewals error.type=lost mode=exclusive name=order: 1",
		"renewals mode=exclusive name=order: 1",
		"wait.duration mode=exclusive name=order result=timeout: 1 of 0",
		"waiter.active mode=exclusive name=order: 0",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not measured: %s\n%s", want, got)
		}
	}
	if lost := tel.logs.linesWith("lost while it was in use", `"latchkit.lock.loss.cause":"taken"`); len(lost) != 1 {
		t.Errorf("logged is %q", tel.logs.lines)
	}
}
