package main

import (
	"fmt"
	"strings"
	"sync"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	otellock "github.com/latchkit/latchkit/otel"

	"github.com/latchkit/latchkit/locker"
)

// trace records the spans of a server. A real server has an exporter instead. To make spans, a
// Locker needs only its Observer.
type trace struct {
	setUp        sync.Once
	spans        *tracetest.SpanRecorder
	lockObserver locker.Observer
}

// observer returns the Observer for locker.WithObserver.
func (t *trace) observer() locker.Observer {
	t.setUp.Do(func() {
		t.spans = tracetest.NewSpanRecorder()
		tracers := sdk.NewTracerProvider(sdk.WithSpanProcessor(t.spans))
		t.lockObserver, _ = otellock.New(otellock.WithTracerProvider(tracers)) // fails only for a nil option
	})
	return t.lockObserver
}

// forget drops the recorded spans.
func (t *trace) forget() { t.spans.Reset() }

// String returns a list of the spans in the order of their ends, each with its result.
func (t *trace) String() string {
	var lines []string
	for _, s := range t.spans.Ended() {
		for _, a := range s.Attributes() {
			if a.Key == "latchkit.lock.result" {
				lines = append(lines, fmt.Sprintf("%s: %s", s.Name(), a.Value.AsString()))
			}
		}
	}
	return strings.Join(lines, ", ")
}
