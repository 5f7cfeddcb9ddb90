package otellock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

const taskKey = "customer:canary"

// await calls cond every 5 ms until cond returns true, for 30 s at most. Then the test fails.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s still not: %s", what)
		}
	}
}

// The wait, the work and the release of a task are found from each other, whoever begins the span
// around them.
func TestTheSpansOfADeliveryAreOneTrace(t *testing.T) {
	t.Parallel()
	failed := errors.New("no paper")
	for name, tc := range map[string]struct {
		instrumented bool // an outer middleware begins a span
		producer     bool // the task has the span of its producer
		busy, lost   bool
		err          error
		result       string // of the span that the Guard begins; "": none
	}{
		"alone":                         {result: "processed"},
		"alone, and the handler fails":  {err: failed, result: "failed"},
		"alone, and the key is busy":    {busy: true, result: "snoozed"},
		"alone, and the lock is lost":   {lost: true, result: "failed"},
		"with its producer's span":      {producer: true, result: "processed"},
		"inside of another's span":      {instrumented: true},
		"with both, the inner one wins": {instrumented: true, producer: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
			store := lockertest.NewMemory()
			g, err := asynqlock.New(lockertest.NewLocker(t, store, locker.WithObserver(tel.observer)), asynqlock.WithPropagator(otellock.Headers{}),
				asynqlock.On("mail", asynqlock.Template("customer:{payload.customer}")))
			if err != nil {
				t.Fatal(err)
			}
			if tc.busy {
				store.Occupy(taskKey, 0)
			}
			headers := map[string]string{}
			if tc.producer {
				ctx, span := tel.tracer.Start(t.Context(), "enqueue")
				otellock.Headers{}.Inject(ctx, headers)
				span.End()
			}
			ctx := t.Context()
			if tc.instrumented {
				outer, span := tel.tracer.Start(ctx, "task")
				defer span.End()
				ctx = outer
			}
			h := g.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				_, span := tel.tracer.Start(ctx, "work")
				span.End()
				if tc.lost {
					store.Steal(taskKey)
				}
				return tc.err
			}))
			err = h.ProcessTask(ctx, asynq.NewTaskWithHeaders("mail", []byte(`{"customer":"canary"}`), headers))
			if p, _ := errors.AsType[*asynqlock.Problem](err); (p != nil) != (tc.busy || tc.lost) || tc.err != nil && !errors.Is(err, tc.err) {
				t.Fatal(err)
			}
			traces, result, kind := make(map[trace.TraceID]bool), "", trace.SpanKindUnspecified
			names := make(map[trace.SpanID]string)
			for _, span := range tel.spans.Ended() {
				names[span.SpanContext().SpanID()] = span.Name()
			}
			for _, span := range tel.spans.Ended() {
				if span.Name() == "enqueue" && tc.instrumented {
					continue // the outer middleware has begun a trace of its own
				}
				traces[span.SpanContext().TraceID()] = true
				if span.Name() == "process mail" {
					set := attribute.NewSet(span.Attributes()...)
					value, _ := set.Value("latchkit.lock.result")
					result, kind = value.AsString(), span.SpanKind()
					if parent := names[span.Parent().SpanID()]; tc.producer != (parent == "enqueue") {
						t.Errorf("the parent is %q", parent)
					}
					if (span.Status().Code == codes.Error) != (tc.result == "failed") {
						t.Errorf("the status is %v", span.Status())
					}
				}
			}
			if len(traces) != 1 || result != tc.result || (kind == trace.SpanKindConsumer) != (tc.result != "") {
				t.Errorf("%d traces, with the result %q of a span of the kind %v", len(traces), result, kind)
			}
		})
	}
}

func TestAPanicEndsTheSpanOfItsTask(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	g, err := asynqlock.New(lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(tel.observer)),
		asynqlock.On("mail", asynqlock.Template("customer:{payload.customer}")))
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { panic("no paper") })).
			ProcessTask(t.Context(), asynq.NewTask("mail", []byte(`{"customer":"canary"}`)))
	}()
	for _, span := range tel.spans.Ended() {
		if span.Name() == "process mail" && span.Status().Code == codes.Error {
			return
		}
	}
	t.Error("the span has not ended with an error")
}
