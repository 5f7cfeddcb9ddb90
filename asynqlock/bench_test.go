package asynqlock_test

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// BenchmarkTask compares a guarded task with one whose handler calls Run itself, and with one without a lock, on the Store in
// memory.
func BenchmarkTask(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	type order struct {
		ID       string `json:"id" lock:"key"`
		Customer string `json:"customer"`
	}
	task := asynq.NewTaskWithHeaders("order:ship", []byte(`{"id":"42","customer":"ann"}`), map[string]string{"order": "42"})
	done := func(context.Context, *asynq.Task) error { return nil }
	for _, bm := range []struct {
		name string
		keys asynqlock.Keys // zero: no Guard
		run  func(context.Context, *asynq.Task) error
	}{
		{"no lock", asynqlock.Keys{}, done},
		{"Run in the handler", asynqlock.Keys{}, func(ctx context.Context, _ *asynq.Task) error {
			rule := locker.Rule{Key: "order:42", Name: "order:ship", Wait: locker.NoWait}
			return locker.Run(ctx, l, rule, func(context.Context) error { return nil })
		}},
		{"Template of a header", asynqlock.Template("order:{header.order}"), done},
		{"Template of the payload", asynqlock.Template("order:{payload.id}"), done},
		{"Key", asynqlock.Key(func(o order) string { return "order:" + o.ID }), done},
		{"Fields", asynqlock.Fields[order]("order"), done},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var h asynq.Handler = asynq.HandlerFunc(bm.run)
			if bm.name != "no lock" && bm.name != "Run in the handler" {
				h = guardOf(b, l, asynqlock.On("order:*", bm.keys)).Middleware(h)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := h.ProcessTask(b.Context(), task); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
