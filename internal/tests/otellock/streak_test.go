package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"

	otellock "github.com/latchkit/latchkit/otel"
)

// busyService is another process. Its callers take order:42 again and again, and hand it to each
// other. When the test sends the id of a span, busyService prints two numbers. The first number
// counts the hand-offs of the lease before this span's caller got it. The second number counts
// the callers that got the same lease after this caller.
var busyService = proc.Register("busy service", func(args []string) {
	spans := tracetest.NewSpanRecorder()
	o, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))))
	if err != nil {
		panic(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: args[0]}), locker.WithObserver(o))
	if err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for {
				err := locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, nothing)
				if err != nil && !errors.Is(err, locker.ErrClosed) {
					panic(err)
				}
			}
		}()
	}
	fmt.Println("ready")
	for {
		id, ok := strings.CutPrefix(proc.Listen(), "who ")
		if !ok {
			_ = l.Close(context.Background())
			return
		}
		streak, followers := positionInStreak(spans.Ended(), id)
		fmt.Println("was", streak, followers)
	}
})

// positionInStreak finds the acquire whose span has this id. It returns how many hand-offs its
// streak had before this acquire, and how many callers followed in the same streak.
func positionInStreak(ended []sdktrace.ReadOnlySpan, id string) (streak, followers int64) {
	streaks, own := make(map[int64]int64), int64(-1) // for each fence: the number of earlier hand-offs in its streak
	for _, s := range ended {
		if s.Name() != "acquire order" {
			continue
		}
		set := attribute.NewSet(s.Attributes()...)
		fence, _ := set.Value("latchkit.lock.fence")
		before, _ := set.Value("latchkit.lock.handoff.streak")
		streaks[fence.AsInt64()] = before.AsInt64()
		if s.SpanContext().SpanID().String() == id {
			own = fence.AsInt64()
		}
	}
	if own < 0 {
		return -1, 0 // there is no such acquire
	}
	for streaks[own+followers+1] == streaks[own]+followers+1 {
		followers++
	}
	return streaks[own], followers
}

// Another process hands a lease from caller to caller. The span of a waiter in this process
// links to the first caller of this streak.
func TestAWaiterLinksToTheFirstOfAStreakInAnotherProcess(t *testing.T) {
	server := redistest.Start(t)
	other := busyService.Start(t, server.Addr())
	other.Expect(t, "ready")
	streaks := 0
	await(t, "the waiter has met three streaks of several holders", func() bool {
		one := localService(t, server)
		if err := (<-one.asks(t, "waiter")).Release(t.Context()); err != nil {
			t.Error(err)
		}
		for _, l := range one.span(t, "acquire order").Links() {
			other.Send("who " + l.SpanContext.SpanID().String())
			var streak, followers int
			if _, err := fmt.Sscan(other.Expect(t, "was"), &streak, &followers); err != nil {
				t.Fatal(err)
			}
			if streak != 0 {
				t.Fatalf("the link %v leads to a holder after %d hand-offs, want the first one", l.Attributes, streak)
			}
			if followers > 0 {
				streaks++
			}
		}
		return streaks >= 3
	})
	other.Send("end")
	other.Wait(t)
}
