package otellock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"

	otellock "github.com/latchkit/latchkit/otel"
)

// otherService is another process, with its own SDK. When the test sends the line "acquire", it
// acquires order:42 inside a new span, and prints the id and the links of the acquire's span.
// When the test sends "release", it releases this lease.
var otherService = proc.Register("other service", func(args []string) {
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	o, err := otellock.New(otellock.WithTracerProvider(tracers))
	if err != nil {
		panic(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: args[0]}), locker.WithObserver(o))
	if err != nil {
		panic(err)
	}
	leases := make(chan *locker.Lease, 2)
	asked := 0
	for {
		switch proc.Listen() {
		case "acquire":
			asked++
			ctx, request := tracers.Tracer("service").Start(context.Background(), fmt.Sprint("request ", asked))
			go func() {
				lease, err := l.Acquire(ctx, locker.Rule{Key: "order:42"})
				if err != nil {
					panic(err)
				}
				request.End()
				leases <- lease
				fmt.Println("got", acquireLinks(spans, request.SpanContext().SpanID().String()))
			}()
		case "release":
			if err := (<-leases).Release(context.Background()); err != nil {
				panic(err)
			}
		default:
			_ = l.Close(context.Background())
			return
		}
	}
})

// acquireLinks returns the id and the links of the span "acquire order" whose parent is the
// span with the id request.
func acquireLinks(spans *tracetest.SpanRecorder, request string) string {
	for _, s := range spans.Ended() {
		if s.Name() != "acquire order" || s.Parent().SpanID().String() != request {
			continue
		}
		return s.SpanContext().SpanID().String() + " " + idsOf(s)
	}
	return "no acquire has ended"
}

// idsOf returns the links of a span as text: for each link, its role and the id of the linked
// span.
func idsOf(s sdktrace.ReadOnlySpan) string {
	var links []string
	for _, l := range s.Links() {
		links = append(links, l.Attributes[0].Value.AsString()+"="+l.SpanContext.SpanID().String())
	}
	return strings.Join(links, " ")
}

// localService returns a service that runs in this process, and uses the given server.
func localService(t *testing.T, server *redistest.Server) *service {
	t.Helper()
	s := &service{telemetry: newTelemetry(t, sdktrace.AlwaysSample())}
	var err error
	if s.lock, err = locker.New(server.Client(t), locker.WithObserver(s.observer)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.lock.Close(context.Background()) })
	return s
}

// inQueue waits until want processes wait for the key.
func (s *service) inQueue(t *testing.T, want int) {
	t.Helper()
	await(t, "the waiter stands in the queue", func() bool {
		info, err := s.lock.Inspect(t.Context(), "order:42")
		return err == nil && info.Waiters == want
	})
}

// A waiter in one process links to the span of a holder in another process.
func TestAWaiterLinksToAHolderInAnotherProcess(t *testing.T) {
	server := redistest.Start(t)
	one, other := localService(t, server), otherService.Start(t, server.Addr())
	other.Send("acquire")
	holder := strings.TrimSpace(other.Expect(t, "got"))
	waiter := one.asks(t, "waiter")
	one.inQueue(t, 1)
	other.Send("release")
	if err := (<-waiter).Release(t.Context()); err != nil {
		t.Error(err)
	}
	span := one.span(t, "acquire order")
	if got, want := idsOf(span), "holder="+holder+" released_by="+holder; len(holder) != 16 || got != want {
		t.Errorf("the waiter links to %q, want %q", got, want)
	}
	other.Send("end")
	other.Wait(t)
}
