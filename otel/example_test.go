package otellock_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// Spans and a histogram of every acquire go to the global providers of OpenTelemetry.
func Example() {
	observer, err := otellock.New()
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.Open("redis://localhost:6379", locker.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(context.Background())
}

// The options add a span for the time of the hold, the key in every span, and an attribute of your
// own in every measurement. A SpanProcessor of your TracerProvider adds attributes to spans.
func ExampleNew_options() {
	observer, err := otellock.New(
		otellock.WithHoldSpans(),
		otellock.WithKey(), // only where keys are not personal data
		otellock.WithMetricAttributes(func(context.Context) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String("shop.region", "eu")}
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	l, err := lockertest.NewMemory().NewLocker(locker.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	err = locker.Run(context.Background(), l, locker.Rule{Key: "order:42", Name: "order"}, func(ctx context.Context) error {
		fmt.Println("a tracer is set up:", trace.SpanContextFromContext(ctx).IsValid())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: a tracer is set up: false
}

// A trace continues in the worker that takes the task out of the queue.
func ExampleHeaders() {
	traceID, _ := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	spanID, _ := trace.SpanIDFromHex("b7ad6b7169203331")
	ctx := trace.ContextWithSpanContext(context.Background(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID}))

	message := map[string]string{} // the headers of a message
	otellock.Headers{}.Inject(ctx, message)
	received := otellock.Headers{}.Extract(context.Background(), message) // in another process
	fmt.Println(trace.SpanContextFromContext(received).TraceID() == traceID)
	// Output: true
}
