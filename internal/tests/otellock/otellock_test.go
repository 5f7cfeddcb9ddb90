package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/optimistic"
	otellock "github.com/latchkit/latchkit/otel"
)

// world has the Locker and the clock for one case of the table. Its second Locker, other, is not
// observed.
type world struct {
	store *lockertest.Memory
	lock  *locker.Engine
	other *locker.Engine

	options []locker.Option // options of the Locker under test
}

func nothing(context.Context) error { return nil }

// untilLost is work that waits until its lock is lost.
func untilLost(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestEachResultIsToldOnSpans(t *testing.T) {
	const acquired = "acquire order: Unset fence=N mode=exclusive name=order result=acquired ttl=3 wait.attempts=1"
	run := func(ctx context.Context, w world, rule locker.Rule, fn func(context.Context) error) {
		rule.Key, rule.TTL = "order:42", 3*time.Second
		_ = locker.Run(ctx, w.lock, rule, fn)
	}
	occupied := func(w world) { w.store.Occupy("order:42", 0) }
	for name, tc := range map[string]struct {
		do    func(ctx context.Context, t *testing.T, w world)
		spans []string
	}{
		"acquired and released": {
			do: func(ctx context.Context, _ *testing.T, w world) { run(ctx, w, locker.Rule{}, nothing) },
			spans: []string{
				acquired,
				"hold order: Unset fence=N mode=exclusive name=order result=released ttl=3",
				"release order: Unset fence=N mode=exclusive name=order result=released ttl=3",
			},
		},
		"acquired after a wait": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Occupy("order:42", 1500*time.Millisecond)
				run(ctx, w, locker.Rule{}, nothing)
			},
			spans: []string{
				"acquire order: Unset fence=N mode=exclusive name=order result=acquired ttl=3 wait.attempts=4 wait.duration=1.501",
				"hold order: Unset fence=N mode=exclusive name=order result=released ttl=3",
				"release order: Unset fence=N mode=exclusive name=order result=released ttl=3",
			},
		},
		"busy": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				occupied(w)
				run(ctx, w, locker.Rule{Wait: locker.NoWait}, nothing)
			},
			spans: []string{"acquire order: Unset mode=exclusive name=order result=busy ttl=3 wait.attempts=1"},
		},
		"timeout of the Rule": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				occupied(w)
				run(ctx, w, locker.Rule{Wait: 1500 * time.Millisecond}, nothing)
			},
			spans: []string{"acquire order: Error(busy) error.type=busy mode=exclusive name=order result=timeout ttl=3 wait.attempts=3 wait.duration=1.5"},
		},
		"timeout of the caller": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				occupied(w)
				ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
				defer cancel()
				run(ctx, w, locker.Rule{}, nothing)
			},
			spans: []string{"acquire order: Error(deadline_exceeded) error.type=deadline_exceeded mode=exclusive name=order result=timeout ttl=3 wait.attempts=3 wait.duration=1.5"},
		},
		"canceled": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				occupied(w)
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(500*time.Millisecond, cancel)
				run(ctx, w, locker.Rule{}, nothing)
			},
			spans: []string{"acquire order: Error(canceled) error.type=canceled mode=exclusive name=order result=canceled ttl=3 wait.attempts=2 wait.duration=0.5"},
		},
		"done": {
			do: func(ctx context.Context, t *testing.T, w world) {
				if err := locker.Run(t.Context(), w.other, locker.Rule{Key: "order:42", OnceFor: time.Hour}, nothing); err != nil {
					t.Error(err)
				}
				run(ctx, w, locker.Rule{OnceFor: time.Hour}, nothing)
			},
			spans: []string{"acquire order: Unset mode=exclusive name=order result=done ttl=3 wait.attempts=1"},
		},
		"too many waiters": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				occupied(w)
				waits, stop := context.WithCancel(context.WithoutCancel(ctx))
				var wg sync.WaitGroup
				wg.Go(func() { run(waits, w, locker.Rule{}, nothing) })
				synctest.Wait()
				run(ctx, w, locker.Rule{Name: "second"}, nothing)
				stop()
				wg.Wait()
			},
			spans: []string{
				"acquire second: Error(too_many_waiters) error.type=too_many_waiters mode=exclusive name=second result=too_many_waiters ttl=3 wait.attempts=0",
				"acquire order: Error(canceled) error.type=canceled mode=exclusive name=order result=canceled ttl=3 wait.attempts=2",
			},
		},
		"unavailable": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
				run(ctx, w, locker.Rule{}, nothing)
			},
			spans: []string{"acquire order: Error(unavailable) error.type=unavailable mode=exclusive name=order result=unavailable ttl=3 wait.attempts=1"},
		},
		"error": { // the Store without readers returns the error
			do: func(ctx context.Context, t *testing.T, w world) {
				w.lock = lockertest.NewLocker(t, struct{ store.Store }{w.store}, w.options...)
				run(ctx, w, locker.Rule{Mode: locker.Shared}, nothing)
			},
			spans: []string{
				"acquire order: Error(unsupported) error.type=unsupported mode=shared name=order result=error ttl=3 wait.attempts=0",
			},
		},
		"lost": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error {
					w.store.Steal("order:42")
					return untilLost(ctx)
				})
			},
			spans: []string{
				acquired,
				"hold order: Error(lost) error.type=lost fence=N mode=exclusive name=order result=lost ttl=3",
				"release order: Error(lost) error.type=lost fence=N mode=exclusive name=order result=lost ttl=3",
			},
		},
		"revoked": {
			do: func(ctx context.Context, t *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error {
					info, err := w.lock.Inspect(ctx, "order:42")
					if err != nil {
						t.Error(err)
					}
					if err := w.lock.Revoke(ctx, "order:42", info.Fence, "drill"); err != nil {
						t.Error(err)
					}
					return untilLost(ctx)
				})
			},
			spans: []string{
				acquired,
				"revoke order: Unset fence=N mode=exclusive name=order result=revoked",
				"hold order: Error(revoked) error.type=revoked fence=N mode=exclusive name=order result=revoked ttl=3",
				"release order: Error(revoked) error.type=revoked fence=N mode=exclusive name=order result=revoked ttl=3",
			},
		},
		"expired": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{EndAfter: time.Second}, untilLost)
			},
			spans: []string{
				acquired,
				"hold order: Error(expired) error.type=expired fence=N mode=exclusive name=order result=expired ttl=3",
				"release order: Error(expired) error.type=expired fence=N mode=exclusive name=order result=expired ttl=3",
			},
		},
		"extended, and not": {
			do: func(ctx context.Context, t *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error {
					lease, _ := locker.FromContext(ctx)
					if err := lease.Extend(ctx, time.Minute); err != nil {
						t.Error(err)
					}
					w.store.Steal("order:42")
					_ = lease.Extend(ctx, 2*time.Minute)
					return nil
				})
			},
			spans: []string{
				acquired,
				"extend order: Unset fence=N mode=exclusive name=order result=extended ttl=3",
				"hold order: Error(lost) error.type=lost fence=N mode=exclusive name=order result=lost ttl=3",
				"extend order: Error(lost) error.type=lost fence=N mode=exclusive name=order result=lost ttl=3",
				"release order: Error(lost) error.type=lost fence=N mode=exclusive name=order result=lost ttl=3",
			},
		},
		"gone": {
			do:    func(ctx context.Context, _ *testing.T, w world) { _ = w.lock.Revoke(ctx, "order:42", 7, "drill") },
			spans: []string{"revoke order: Error(gone) error.type=gone fence=N mode=exclusive name=order result=gone"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
				backend := lockertest.NewMemory()
				pace := locker.WithBackoff(locker.Exponential(time.Second, time.Second))
				options := []locker.Option{pace, locker.WithMaxWaiters(1), locker.WithObserver(tel.observer)}
				tc.do(t.Context(), t, world{
					store:   backend,
					lock:    lockertest.NewLocker(t, backend, options...),
					other:   lockertest.NewLocker(t, backend, pace),
					options: options,
				})
				if got := tel.spanLines(t); !slices.Equal(got, tc.spans) {
					t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.spans, "\n"))
				}
				if started := len(tel.spans.Started()); started != len(tc.spans) {
					t.Errorf("%d spans were started, %d ended", started, len(tc.spans))
				}
			})
		})
	}
}

// spy is a Store that records in which spans it was called.
type spy struct {
	*lockertest.Memory
	mu    sync.Mutex
	calls map[locker.Op]trace.SpanID
	owner string
}

func (s *spy) note(ctx context.Context, op locker.Op, c store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[locker.Op]trace.SpanID)
	}
	s.calls[op] = trace.SpanContextFromContext(ctx).SpanID()
	s.owner = c.Owner
}

func (s *spy) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.note(ctx, locker.OpAcquire, c)
	return s.Memory.Acquire(ctx, c)
}

func (s *spy) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.note(ctx, locker.OpRelease, c)
	return s.Memory.Release(ctx, c)
}

func TestSpansNestAsTheWorkDoes(t *testing.T) {
	for name, tc := range map[string]struct {
		opts   []otellock.Option
		parent string // the span around the work
	}{
		"without hold spans": {parent: "request"},
		"with hold spans":    {opts: []otellock.Option{otellock.WithHoldSpans()}, parent: "hold order"},
	} {
		t.Run(name, func(t *testing.T) {
			tel := newTelemetry(t, sdktrace.AlwaysSample(), tc.opts...)
			store := &spy{Memory: lockertest.NewMemory()}
			l := lockertest.NewLocker(t, store, locker.WithObserver(tel.observer))
			ctx, request := tel.tracer.Start(t.Context(), "request")
			if err := locker.Run(ctx, l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
				_, work := tel.tracer.Start(ctx, "work")
				work.End()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			request.End()
			for child, parent := range map[string]string{
				"acquire order": "request", "work": tc.parent, "release order": "request",
			} {
				if tel.span(t, child).Parent().SpanID() != tel.span(t, parent).SpanContext().SpanID() {
					t.Errorf("%q is no child of %q", child, parent)
				}
			}
			if tc.parent == "hold order" && tel.span(t, "hold order").Parent().SpanID() != request.SpanContext().SpanID() {
				t.Error("the hold is no child of the caller's span")
			}
			for op, call := range store.calls {
				if want := string(op) + " order"; call != tel.span(t, want).SpanContext().SpanID() {
					t.Errorf("the server's call of %v is not inside the span %q", op, want)
				}
			}
		})
	}
}

func TestExemplarsLeadToTheSpan(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(tel.observer))
	if err := locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, nothing); err != nil {
		t.Fatal(err)
	}
	h := tel.histogram(t)
	if len(h.DataPoints) != 1 || len(h.DataPoints[0].Exemplars) != 1 {
		t.Fatalf("%+v", h.DataPoints)
	}
	acquire := tel.span(t, "acquire order").SpanContext().SpanID()
	if got := h.DataPoints[0].Exemplars[0].SpanID; !slices.Equal(got, acquire[:]) {
		t.Errorf("the exemplar is of span %x, want %x", got, acquire)
	}
	if want := []float64{0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60}; !slices.Equal(h.DataPoints[0].Bounds, want) {
		t.Errorf("buckets %v, want %v", h.DataPoints[0].Bounds, want)
	}
}

// picky is a Sampler that records its arguments, and samples nothing.
type picky struct{ seen []sdktrace.SamplingParameters }

func (p *picky) ShouldSample(params sdktrace.SamplingParameters) sdktrace.SamplingResult {
	p.seen = append(p.seen, params)
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (*picky) Description() string { return "picky" }

func TestASamplerSeesNameAndModeAndDroppedSpansAreStillMeasured(t *testing.T) {
	var sampler picky
	tel := newTelemetry(t, &sampler, otellock.WithMetricAttributes(func(context.Context) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("region", "eu")}
	}))
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(tel.observer))
	if err := locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, nothing); err != nil {
		t.Fatal(err)
	}
	if len(sampler.seen) != 2 {
		t.Fatalf("the sampler was asked about %d spans, want acquire and release", len(sampler.seen))
	}
	for _, s := range sampler.seen {
		if got := text(s.Attributes); got != "mode=exclusive name=order" || s.Kind != trace.SpanKindInternal {
			t.Errorf("the sampler saw %q, kind %v", got, s.Kind)
		}
	}
	if points := tel.histogram(t).DataPoints; len(points) != 1 || text(points[0].Attributes.ToSlice()) != "mode=exclusive name=order region=eu result=acquired" {
		t.Errorf("measured %+v", points)
	}
}

// Every span and every measurement names the lock server that the Observer is for.
func TestSpansAndMetricsNameTheServer(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithServer("locks.internal", 6379))
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(tel.observer))
	if err := locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, nothing); err != nil {
		t.Fatal(err)
	}
	const server = "server.address=locks.internal server.port=6379"
	for _, s := range tel.spans.Ended() {
		if got := text(s.Attributes()); !strings.Contains(got, server) {
			t.Errorf("the span %s has %s", s.Name(), got)
		}
	}
	for _, p := range tel.histogram(t).DataPoints {
		if got := text(p.Attributes.ToSlice()); !strings.Contains(got, server) {
			t.Errorf("measured with %s", got)
		}
	}
	if spans, points := len(tel.spans.Ended()), len(tel.histogram(t).DataPoints); spans != 2 || points != 1 {
		t.Errorf("%d spans and %d time series", spans, points)
	}
}

func TestANameThatIsNoUTF8DoesNotReachTheExporter(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithKey())
	_, end := tel.observer.Begin(t.Context(), locker.OpAcquire, locker.Rule{Key: "\xff:1", Name: "\xff"})
	end(locker.Outcome{Result: locker.ResultAcquired})
	if got := tel.spanLines(t); len(got) != 1 || !utf8.ValidString(got[0]) {
		t.Errorf("%q", got)
	}
}

// The span of an update shows that other clients have written the key meanwhile.
func TestTheSpanOfAnUpdateShowsItsAttempts(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	client := redistest.Shared(t).Client(t)
	attempts := 0
	err := optimistic.Update(t.Context(), client, "cart:7", func(ctx context.Context, _ []byte) ([]byte, error) {
		if attempts++; attempts == 1 {
			return []byte("apple"), client.Set(ctx, "cart:7", "pear", 0).Err()
		}
		return []byte("apple"), nil
	}, optimistic.WithObserver(tel.observer, "cart"))
	if got := text(tel.span(t, "update cart").Attributes()); err != nil || !strings.Contains(got, "latchkit.update.attempts=2") {
		t.Errorf("%v, the span has %s", err, got)
	}
}

// everything returns all exported spans and all exported measurements as text.
func (tel *telemetry) everything(t testing.TB) (spans, points string) {
	t.Helper()
	return fmt.Sprintf("%+v", tracetest.SpanStubsFromReadOnlySpans(tel.spans.Ended())), fmt.Sprintf("%+v", tel.histogram(t))
}

// canaries runs all operations whose telemetry could show a key, a token, metadata or the text of
// an error.
func canaries(t *testing.T, opts ...otellock.Option) (tel *telemetry, token string) {
	tel = newTelemetry(t, sdktrace.AlwaysSample(), append(opts, otellock.WithHoldSpans())...)
	backend := &spy{Memory: lockertest.NewMemory()}
	l := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer),
		locker.WithMetadata(func(context.Context) string { return holderName }))
	rule := locker.Rule{Key: "canary-key", Name: "order", Wait: locker.NoWait}
	refused := func() { _ = locker.Run(t.Context(), l, rule, nothing) }
	_ = locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
		refused()
		info, _ := l.Inspect(ctx, rule.Key)
		_ = l.Revoke(ctx, rule.Key, info.Fence, "canary-reason")
		return untilLost(ctx)
	})
	_ = locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		backend.Steal(rule.Key)
		_ = lease.Extend(ctx, time.Minute)
		return errors.New("canary-error of the work")
	})
	backend.Free(rule.Key)
	backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("canary-error: canary-key is odd")})
	refused()
	synctest.Wait() // wait until the Engine's background work has ended
	if tel.span(t, "revoke lock") == nil || len(tel.spans.Ended()) < 9 || len(backend.owner) < 20 {
		t.Fatalf("the canaries were not flown: %q", tel.spanLines(t))
	}
	return tel, backend.owner
}

// holderName is the metadata of the holder. A waiter's span shows it. It has no bound, so it is an
// attribute of no measurement.
const holderName = "report@pod-7f9c:1"

func TestNoKeyNoTokenAndNoErrorTextIsExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel, token := canaries(t)
		spans, points := tel.everything(t)
		if !strings.Contains(spans, holderName) || strings.Contains(points, holderName) {
			t.Errorf("spans name the holder: %v, measurements name it: %v", strings.Contains(spans, holderName), strings.Contains(points, holderName))
		}
		for _, s := range []string{"canary", token} {
			if strings.Contains(spans, s) || strings.Contains(points, s) {
				t.Errorf("%q was exported:\n%s\n%s", s, spans, points)
			}
		}
	})
}

func TestWithKeyShowsTheKeyOnSpansAndInLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel, token := canaries(t, otellock.WithKey())
		spans, points := tel.everything(t)
		if !strings.Contains(spans, "canary-key") || strings.Contains(points, "canary") {
			t.Errorf("spans have the key: %v, measurements have it: %v",
				strings.Contains(spans, "canary-key"), strings.Contains(points, "canary"))
		}
		for _, s := range []string{"canary-reason", "canary-error", token} {
			if strings.Contains(spans, s) {
				t.Errorf("%q was exported", s)
			}
		}
		if len(tel.logs.linesWith("in use", "canary-key")) == 0 {
			t.Errorf("the loss is logged without its key: %q", tel.logs.linesWith())
		}
		for _, s := range tel.spans.Ended() {
			if strings.Contains(s.Name(), "canary") || strings.Contains(s.Status().Description, "canary") {
				t.Errorf("span %q with status %+v", s.Name(), s.Status())
			}
		}
	})
}
