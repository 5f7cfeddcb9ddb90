package otellock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// exportedRecords is a processor of log records. It keeps the records in memory instead of
// exporting them.
type exportedRecords struct {
	mu   sync.Mutex
	kept []sdklog.Record
}

func (e *exportedRecords) OnEmit(_ context.Context, r *sdklog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = append(e.kept, r.Clone())
	return nil
}

func (*exportedRecords) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (*exportedRecords) Shutdown(context.Context) error                         { return nil }
func (*exportedRecords) ForceFlush(context.Context) error                       { return nil }

// The loss of a lease is exported as a log record of OpenTelemetry. The record has the trace and
// the span of the hold, a severity, and attributes. The record contains no token and no key.
func TestALossIsARecordOfOpenTelemetryThatBelongsToItsSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var exporter exportedRecords
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		logger := otelslog.NewLogger("orders", otelslog.WithLoggerProvider(sdklog.NewLoggerProvider(sdklog.WithProcessor(&exporter))))
		o, err := otellock.New(append(tel.options(otellock.WithHoldSpans()), otellock.WithLogger(logger))...)
		if err != nil {
			t.Fatal(err)
		}
		backend := &spy{Memory: lockertest.NewMemory()}
		l := lockertest.NewLocker(t, backend, locker.WithObserver(o))
		err = locker.Run(t.Context(), l, locker.Rule{Key: "order:canary"}, func(ctx context.Context) error {
			backend.Steal("order:canary")
			return untilLost(ctx)
		})
		if err == nil {
			t.Error("the loss was not told")
		}
		synctest.Wait()
		hold := tel.span(t, "hold order").SpanContext()
		// There may also be a record about a failed renewal.
		lost := slices.IndexFunc(exporter.kept, func(r sdklog.Record) bool { return strings.Contains(r.Body().String(), "lost while") })
		if lost < 0 {
			t.Fatalf("%d records were exported, none of them of the loss", len(exporter.kept))
		}
		r := exporter.kept[lost]
		if r.TraceID() != hold.TraceID() || r.SpanID() != hold.SpanID() || r.Severity() != otellog.SeverityError {
			t.Errorf("the record has trace %v, span %v, severity %v; the hold has %v, %v", r.TraceID(), r.SpanID(), r.Severity(), hold.TraceID(), hold.SpanID())
		}
		all := r.Body().String()
		r.WalkAttributes(func(kv attribute.KeyValue) bool {
			all += " " + string(kv.Key) + "=" + kv.Value.String()
			return true
		})
		for _, want := range []string{"latchkit.lock.name=order", "latchkit.lock.loss.cause=taken", "error.type=lost"} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is missing in the record: %s", want, all)
			}
		}
		if strings.Contains(all, "canary") || strings.Contains(all, backend.token()) {
			t.Errorf("the record shows a key or a token: %s", all)
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

// An answer that came after the deadline is not told as a margin below 0 of a lease that was nearly lost.
func TestARenewalThatWasAnsweredAfterTheDeadlineIsLogged(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	o := tel.observer.(locker.RenewalObserver)
	o.Renewed(t.Context(), locker.Rule{Key: "order:42"}, locker.RenewalEvent{Margin: -time.Second, TTL: 4 * time.Second})
	if len(tel.logs.linesWith("nearly lost")) != 0 || len(tel.logs.linesWith("after the deadline", slog.LevelWarn.String())) != 1 {
		t.Errorf("logged %q", tel.logs.linesWith())
	}
}
