package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// spans keeps spans in memory. A real service would export them.
type spans struct {
	provider *sdk.TracerProvider
	mu       sync.Mutex
	all      []sdk.ReadOnlySpan
}

var _ sdk.SpanExporter = (*spans)(nil)

func newSpans() *spans {
	s := &spans{}
	s.provider = sdk.NewTracerProvider(sdk.WithSyncer(s))
	return s
}

func (s *spans) tracer() trace.Tracer { return s.provider.Tracer("asynq-reports") }

// ExportSpans keeps spans that have ended.
func (s *spans) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, spans...)
	return nil
}

// Shutdown has nothing to do.
func (s *spans) Shutdown(context.Context) error { return nil }

// print writes the trace of a task that waited for its lock to out, as a tree.
func (s *spans) print(ctx context.Context, out io.Writer) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		if id, ok := s.waitingTrace(); ok {
			s.printTree(out, id, trace.SpanID{}, "  ")
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond): // the span of the release may not have ended yet
		case <-ctx.Done():
		}
	}
	return errors.New("there is no trace of a task that waited")
}

// waitingTrace returns the ID of a complete trace of a task that waited for its lock. ok is false
// if there is no such trace.
func (s *spans) waitingTrace() (found trace.TraceID, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := map[trace.TraceID]bool{}
	for _, span := range s.all {
		id := span.SpanContext().TraceID()
		if _, is := attribute(span, "latchkit.lock.wait.duration"); is && strings.HasPrefix(span.Name(), "acquire") {
			waits[id] = true
		}
		if waits[id] && strings.HasPrefix(span.Name(), "release") {
			return id, true
		}
	}
	return found, false
}

// printTree writes the spans below the span parent, in the trace id, to out. Each line begins
// with indent.
func (s *spans) printTree(out io.Writer, id trace.TraceID, parent trace.SpanID, indent string) {
	s.mu.Lock()
	var children []sdk.ReadOnlySpan
	for _, span := range s.all {
		if span.SpanContext().TraceID() == id && span.Parent().SpanID() == parent {
			children = append(children, span)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(children, func(a, b sdk.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	for _, span := range children {
		note, _ := attribute(span, "latchkit.lock.result")
		if _, waited := attribute(span, "latchkit.lock.wait.duration"); waited {
			note += ", after a wait"
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%s%-*s%s", indent, 34-len(indent), span.Name(), note), " "))
		s.printTree(out, id, span.SpanContext().SpanID(), indent+"  ")
	}
}

func attribute(span sdk.ReadOnlySpan, key string) (value string, ok bool) {
	for _, a := range span.Attributes() {
		if string(a.Key) == key {
			return a.Value.String(), true
		}
	}
	return "", false
}
