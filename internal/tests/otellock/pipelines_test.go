package otellock_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracespb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/optimistic"

	otellock "github.com/latchkit/latchkit/otel"
)

// receiver decodes what exporters send by OTLP. It describes each span, link and metric by one
// word.
type receiver struct {
	mu    sync.Mutex
	words []string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch req.URL.Path {
	case "/v1/traces":
		var sent tracespb.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, resource := range sent.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					r.words = append(r.words, fmt.Sprintf("span %s %x", span.Name, span.SpanId))
					for _, link := range span.Links {
						r.words = append(r.words, fmt.Sprintf("link %x %s=%s", link.SpanId, link.Attributes[0].Key, link.Attributes[0].Value.GetStringValue()))
					}
				}
			}
		}
	case "/v1/metrics":
		var sent metricspb.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, resource := range sent.ResourceMetrics {
			for _, scope := range resource.ScopeMetrics {
				for _, m := range scope.Metrics {
					r.words = append(r.words, "metric "+m.Name+" "+m.Unit)
				}
			}
		}
	}
}

// contend makes a second process wait for the lock of a first process.
func contend(t *testing.T, first, second locker.Observer) {
	t.Helper()
	backend := lockertest.NewMemory()
	one := lockertest.NewLocker(t, backend, locker.WithObserver(first))
	two := lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(second))
	lease, err := one.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = lease.Release(context.Background()) })
	if err := locker.Run(t.Context(), two, locker.Rule{Key: "order:42"}, nothing); err != nil {
		t.Fatal(err)
	}
}

func TestLinksAndMetricsArriveByOTLP(t *testing.T) {
	var r receiver
	server := httptest.NewServer(&r)
	defer server.Close()
	traces, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpointURL(server.URL+"/v1/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(traces))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metrics)))
	o, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if err != nil {
		t.Fatal(err)
	}
	contend(t, o, o)
	if err := tracers.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := meters.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	holder := ""
	for _, word := range r.words {
		if id, ok := strings.CutPrefix(word, "span acquire order "); ok {
			holder = id // the first span that ends is the acquire of the holder
			break
		}
	}
	for _, want := range []string{
		"link " + holder + " latchkit.link.role=holder", "link " + holder + " latchkit.link.role=released_by",
		"metric latchkit.lock.acquire.duration s", "metric latchkit.lock.wait.duration s", "metric latchkit.lock.handoffs {handoff}",
	} {
		if !slices.Contains(r.words, want) {
			t.Errorf("not received: %q in %q", want, r.words)
		}
	}
}

// These are the names that the metrics have in Prometheus. Dashboards and alerts use them.
func TestPrometheusScrapesTheseNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	tracers := sdktrace.NewTracerProvider()
	o, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if err != nil {
		t.Fatal(err)
	}
	contend(t, o, o)
	o.(locker.RenewalObserver).Renewed(t.Context(), locker.Rule{Name: "order"}, locker.RenewalEvent{Margin: 20 * time.Second, TTL: 30 * time.Second})
	o.(locker.RequestObserver).Request(t.Context(), locker.RequestEvent{Name: "order", Result: "replayed"})
	o.(locker.Warner).Warn(locker.Warning{Code: "node-out", Text: "a test"})
	for op, out := range map[locker.Op]locker.Outcome{
		locker.OpHold: {Result: locker.ResultLost, Err: locker.ErrLost, Cause: locker.LossTaken}, "tick": {Result: "enqueued"},
	} {
		_, end := o.Begin(t.Context(), op, locker.Rule{Name: "order"})
		end(out)
	}
	for _, result := range []locker.Result{"stale_fence", "fence_regressed"} {
		_, end := o.Begin(t.Context(), "transact", locker.Rule{Name: "order"})
		end(locker.Outcome{Result: result})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	names := make(map[string]bool)
	for _, f := range families {
		names[f.GetName()] = true
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(text.String())
	for _, want := range []string{
		"latchkit_lock_acquire_duration_seconds", "latchkit_lock_wait_duration_seconds", "latchkit_lock_hold_duration_seconds",
		"latchkit_lock_release_duration_seconds", "latchkit_lock_held_active", "latchkit_lock_waiter_active", "latchkit_lock_queue_length",
		"latchkit_lock_handoffs_total", "latchkit_lock_renewals_total", "latchkit_lock_renewal_margin_seconds", "latchkit_lock_losses_total",
		"latchkit_lock_fence_rejections_total", "latchkit_lock_fence_regressions_total", "latchkit_lock_requests_total",
		"latchkit_sql_commits_total", "latchkit_idempotency_replays_total", "latchkit_scheduler_ticks_total", "latchkit_quorum_nodes_out",
	} {
		if !names[want] {
			t.Errorf("there is no %s", want)
		}
	}
	for _, label := range []string{`latchkit_lock_contended="true"`, `latchkit_lock_loss_cause="taken"`, `latchkit_lock_handoff_scope="remote"`} {
		if !strings.Contains(text.String(), label) {
			t.Errorf("there is no label %s", label)
		}
	}
}

// contexts is a handler of slog that remembers the span of each record, as OpenTelemetry's bridge
// does.
type contexts struct {
	slog.Handler
	mu    sync.Mutex
	spans []trace.SpanContext
}

func (c *contexts) Enabled(context.Context, slog.Level) bool { return true }

func (c *contexts) Handle(ctx context.Context, _ slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, trace.SpanContextFromContext(ctx))
	return nil
}

func TestARecordOfALossHasTheContextOfItsSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handler contexts
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		o, err := otellock.New(append(tel.options(otellock.WithHoldSpans()), otellock.WithLogger(slog.New(&handler)))...)
		if err != nil {
			t.Fatal(err)
		}
		backend := lockertest.NewMemory()
		l := lockertest.NewLocker(t, backend, locker.WithObserver(o))
		err = locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
			backend.Steal("order:42")
			return untilLost(ctx)
		})
		if err == nil {
			t.Error("the loss was not told")
		}
		synctest.Wait()
		if held := tel.span(t, "hold order").SpanContext(); !slices.ContainsFunc(handler.spans, held.Equal) {
			t.Errorf("no record has the span %v: %v", held.SpanID(), handler.spans)
		}
	})
}

// The Observer logs when renewals fail or are nearly too late, and when nodes are out. If such
// events are frequent, the Observer logs only a few of them.
func TestTroubleIsLoggedWithoutAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		o := tel.observer.(interface {
			locker.RenewalObserver
			locker.Warner
		})
		rule := locker.Rule{Key: "canary-key", Name: "order", TTL: 30 * time.Second}
		ctx, span := tel.tracer.Start(t.Context(), "request")
		late := locker.RenewalEvent{Margin: time.Second, TTL: 30 * time.Second}
		failed := locker.RenewalEvent{Margin: 20 * time.Second, TTL: 30 * time.Second, Err: fmt.Errorf("%w: READONLY canary-key", locker.ErrUnavailable)}
		for range 100 {
			o.Renewed(ctx, rule, late)
			o.Renewed(ctx, rule, failed)
			o.Renewed(ctx, rule, locker.RenewalEvent{Margin: 20 * time.Second, TTL: 30 * time.Second})
		}
		trace := `"trace_id":"` + span.SpanContext().TraceID().String() + `"`
		lateOnes, failures := tel.logs.linesWith("nearly lost", trace), tel.logs.linesWith("could not be renewed", "READONLY [key]", "unavailable", trace)
		if len(lateOnes) != 5 || len(failures) != 5 || len(tel.logs.linesWith("canary")) > 0 {
			t.Errorf("%d late and %d failed renewals were logged: %q", len(lateOnes), len(failures), tel.logs.linesWith())
		}
		time.Sleep(11 * time.Second)
		o.Renewed(ctx, rule, late)
		if len(tel.logs.linesWith(`"dropped":190`)) != 1 {
			t.Errorf("what was dropped is not told: %q", tel.logs.linesWith("dropped"))
		}
		o.Warn(locker.Warning{Code: "node-out", Text: "node 2 is out"})
		if got := strings.Join(tel.measured(t), "\n"); !strings.Contains(got, "quorum.nodes.out: 1") || len(tel.logs.linesWith("node 2 is out", slog.LevelWarn.String())) != 1 {
			t.Errorf("measured %s, logged %q", got, tel.logs.linesWith("node"))
		}
		o.Warn(locker.Warning{Code: "node-returned", Text: "node 2 votes again"})
		if got := strings.Join(tel.measured(t), "\n"); !strings.Contains(got, "quorum.nodes.out: 0") || len(tel.logs.linesWith("votes again", slog.LevelInfo.String())) != 1 {
			t.Errorf("measured %s, logged %q", got, tel.logs.linesWith("node"))
		}
	})
}

// A lease that was handed to a waiter has 2 s, and its first renewal comes after an eighth of them.
// This renewal is in time, so it is not logged as one of a lease that was nearly lost.
func TestTheRenewalOfALeaseThatWasJustHandedOverIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		backend := lockertest.NewMemory()
		holder, err := lockertest.NewLocker(t, backend).Acquire(t.Context(), locker.Rule{Key: "order:42"})
		if err != nil {
			t.Fatal(err)
		}
		waiter := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer))
		go func() {
			time.Sleep(300 * time.Millisecond)
			_ = holder.Release(t.Context())
		}()
		err = locker.Run(t.Context(), waiter, locker.Rule{Key: "order:42"}, func(context.Context) error {
			time.Sleep(5 * time.Second) // the handed lease is renewed once, for its whole TTL
			return nil
		})
		if got := strings.Join(tel.measured(t), "\n"); err != nil || !strings.Contains(got, "renewals mode=exclusive name=order: 1") {
			t.Fatalf("positive control: %v, %s", err, got)
		}
		if late := tel.logs.linesWith("nearly lost"); len(late) > 0 {
			t.Errorf("logged %q", late)
		}
	})
}

// When a lease is lost, no earlier record may claim that its renewal was tried again.
func TestTheRenewalOfALostLeaseIsNotLoggedAsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		backend := lockertest.NewMemory()
		l := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer))
		_ = locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
			backend.Steal("order:42")
			return untilLost(ctx)
		})
		synctest.Wait()
		if len(tel.logs.linesWith("lost while it was in use")) != 1 || len(tel.logs.linesWith("tried again")) > 0 {
			t.Errorf("logged is %q", tel.logs.linesWith())
		}
	})
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
