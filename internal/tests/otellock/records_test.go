package otellock_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

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

// recorded makes an Observer that writes log records of OpenTelemetry.
func recorded(records otellog.LoggerProvider, opts ...otellock.Option) (locker.Observer, error) {
	logger := otelslog.NewLogger("orders", otelslog.WithLoggerProvider(records))
	return otellock.New(append(opts, otellock.WithLogger(logger))...)
}

// The loss of a lease is exported as a log record of OpenTelemetry. The record has the trace and
// the span of the hold, a severity, and attributes. The record contains no token and no key.
func TestALossIsARecordOfOpenTelemetryThatBelongsToItsSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var exporter exportedRecords
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		o, err := recorded(sdklog.NewLoggerProvider(sdklog.WithProcessor(&exporter)),
			otellock.WithTracerProvider(tel.tracers), otellock.WithMeterProvider(tel.meters), otellock.WithHoldSpans())
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
