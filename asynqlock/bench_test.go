package asynqlock_test

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

type shipment struct {
	ID       string `json:"id" lock:"key"`
	Customer string `json:"customer"`
}

var shipping = asynq.NewTaskWithHeaders("order:ship", []byte(`{"id":"42","customer":"ann"}`), map[string]string{"order": "42"})

// handlers returns handlers on the Store in memory: a handler without a lock, a handler that calls
// Run itself, and handlers under a Guard.
func handlers(t testing.TB) map[string]asynq.Handler {
	t.Helper()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	done := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	hs := map[string]asynq.Handler{
		"no lock": done,
		"Run in the handler": asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			rule := locker.Rule{Key: "order:42", Name: "order:ship", Wait: locker.NoWait}
			return locker.Run(ctx, l, rule, func(context.Context) error { return nil })
		}),
	}
	for name, keys := range map[string]asynqlock.Keys{
		"Template of a header":    asynqlock.Template("order:{header.order}"),
		"Template of the payload": asynqlock.Template("order:{payload.id}"),
		"Key":                     asynqlock.Key(func(s shipment) string { return "order:" + s.ID }),
		"Fields":                  asynqlock.Fields[shipment]("order"),
	} {
		hs[name] = guardOf(t, l, asynqlock.On("order:*", keys)).Middleware(done)
	}
	return hs
}

func BenchmarkTask(b *testing.B) {
	for name, h := range handlers(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := h.ProcessTask(b.Context(), shipping); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
