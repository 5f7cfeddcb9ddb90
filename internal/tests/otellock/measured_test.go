package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// Each possible outcome of a lock has its metrics.
func TestEachOutcomeIsMeasured(t *testing.T) {
	const (
		acquired = "acquire.duration contended=false mode=exclusive name=order result=acquired: 1 of 0"
		over     = "held.active mode=exclusive name=order: 0"
		released = "release.duration mode=exclusive name=order result=released: 1 of 0"
	)
	run := func(ctx context.Context, w world, rule locker.Rule, fn func(context.Context) error) {
		rule.Key, rule.TTL = "order:42", 3*time.Second
		_ = locker.Run(ctx, w.lock, rule, fn)
	}
	lost := func(cause, kind, after string, more ...string) []string {
		return append([]string{
			acquired, over, "hold.duration mode=exclusive name=order result=" + kind + ": 1 of " + after,
			"losses loss.cause=" + cause + " mode=exclusive name=order: 1",
			"release.duration error.type=" + kind + " mode=exclusive name=order result=" + kind + ": 1 of 0",
		}, more...)
	}
	for name, tc := range map[string]struct {
		do   func(ctx context.Context, t *testing.T, w world)
		want []string
	}{
		"acquired and released": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(context.Context) error { time.Sleep(700 * time.Millisecond); return nil })
			},
			want: []string{acquired, over, "hold.duration mode=exclusive name=order result=released: 1 of 1", released},
		},
		"renewed": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(context.Context) error { time.Sleep(1700 * time.Millisecond); return nil })
			},
			want: []string{
				acquired, over, "hold.duration mode=exclusive name=order result=released: 1 of 2", released,
				"renewal.margin mode=exclusive name=order: 1 of 2", "renewals mode=exclusive name=order: 1",
			},
		},
		"acquired after a wait": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Occupy("order:42", 1500*time.Millisecond)
				run(ctx, w, locker.Rule{}, nothing)
			},
			want: []string{
				"acquire.duration contended=true mode=exclusive name=order result=acquired: 1 of 2", over,
				"hold.duration mode=exclusive name=order result=released: 1 of 0", released,
				"queue.length mode=exclusive name=order: 1 of 1", "wait.duration mode=exclusive name=order result=acquired: 1 of 2",
				"waiter.active mode=exclusive name=order: 0",
			},
		},
		"busy": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Occupy("order:42", 0)
				run(ctx, w, locker.Rule{Wait: locker.NoWait}, nothing)
			},
			want: []string{"acquire.duration contended=true mode=exclusive name=order result=busy: 1 of 0"},
		},
		"timeout": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Occupy("order:42", 0)
				run(ctx, w, locker.Rule{Wait: 1500 * time.Millisecond}, nothing)
			},
			want: []string{
				"acquire.duration error.type=busy contended=true mode=exclusive name=order result=timeout: 1 of 2",
				"queue.length mode=exclusive name=order: 1 of 1", "wait.duration mode=exclusive name=order result=timeout: 1 of 2",
				"waiter.active mode=exclusive name=order: 0",
			},
		},
		"unavailable": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				w.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
				run(ctx, w, locker.Rule{}, nothing)
			},
			want: []string{"acquire.duration error.type=unavailable contended=false mode=exclusive name=order result=unavailable: 1 of 0"},
		},
		"taken": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error { w.store.Steal("order:42"); return untilLost(ctx) })
			},
			want: lost("taken", "lost", "1", "renewals error.type=lost mode=exclusive name=order: 1"),
		},
		"not renewed": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error {
					w.store.Fail(locker.OpRenew, &store.Refusal{Temporary: true, Err: errors.New("loading")})
					return untilLost(ctx)
				})
			},
			want: lost("unrenewed", "lost", "3", "renewals error.type=unavailable mode=exclusive name=order: N"),
		},
		"revoked": {
			do: func(ctx context.Context, t *testing.T, w world) {
				run(ctx, w, locker.Rule{}, func(ctx context.Context) error {
					info, err := w.other.Inspect(ctx, "order:42")
					if err != nil {
						t.Error(err)
					}
					if err := w.other.Revoke(ctx, "order:42", info.Fence, "drill"); err != nil {
						t.Error(err)
					}
					return untilLost(ctx)
				})
			},
			want: lost("revoked", "revoked", "1", "renewals error.type=revoked mode=exclusive name=order: 1"),
		},
		"expired": {
			do: func(ctx context.Context, _ *testing.T, w world) {
				run(ctx, w, locker.Rule{EndAfter: time.Second}, untilLost)
			},
			want: lost("expired", "expired", "1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tel := newTelemetry(t, sdktrace.AlwaysSample())
				backend := lockertest.NewMemory()
				w := world{
					store: backend, lock: lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer)),
					other: lockertest.NewLocker(t, backend.NewProcess()),
				}
				tc.do(t.Context(), t, w)
				synctest.Wait()
				got := tel.measured(t)
				for i, line := range got { // the number of repeated renewals is left out, because it is random
					if strings.HasPrefix(line, "renewals error.type=unavailable") {
						got[i] = line[:strings.LastIndex(line, " ")] + " N"
					}
				}
				slices.Sort(tc.want)
				if !slices.Equal(got, tc.want) {
					t.Errorf("measured:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
				}
			})
		})
	}
}

// Two callers of one process want a key that another process holds. The holder hands the key to the
// process of these callers. Then the first of these callers hands the key to the second caller,
// inside their process.
func TestHandoffsAndWhoIsActiveAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		backend := lockertest.NewMemory()
		here := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer))
		there := lockertest.NewLocker(t, backend.NewProcess())
		rule := locker.Rule{Key: "order:42"}
		held, err := there.Acquire(t.Context(), rule)
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if err := locker.Run(t.Context(), here, rule, func(context.Context) error { <-release; return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		shows := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := tel.measured(t); slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(got, line) }) {
				t.Errorf("%s measured are\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		shows("while both wait,", "waiter.active mode=exclusive name=order: 2")
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		shows("while one holds,", "waiter.active mode=exclusive name=order: 1", "held.active mode=exclusive name=order: 1",
			"handoffs handoff.scope=remote mode=exclusive name=order: 1")
		close(release)
		all.Wait()
		shows("at the end,", "waiter.active mode=exclusive name=order: 0", "held.active mode=exclusive name=order: 0",
			"handoffs handoff.scope=local mode=exclusive name=order: 1")
	})
}

type tenantKey struct{}

// tenant returns an attribute that comes from the caller's context.
func tenant(ctx context.Context) []attribute.KeyValue {
	if name, ok := ctx.Value(tenantKey{}).(string); ok {
		return []attribute.KeyValue{attribute.String("tenant", name)}
	}
	return nil
}

func TestAttributesComeFromTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithMetricAttributes(tenant))
		backend := lockertest.NewMemory()
		l := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer))
		backend.Occupy("order:42", time.Second)
		ctx := context.WithValue(t.Context(), tenantKey{}, "acme")
		err := locker.Run(ctx, l, locker.Rule{Key: "order:42", TTL: 3 * time.Second}, func(context.Context) error {
			time.Sleep(1700 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, line := range tel.measured(t) {
			if !strings.Contains(line, " tenant=acme") {
				t.Errorf("measured without the tenant: %s", line)
			}
		}
	})
}

// A program has 10 000 keys. By mistake, the Name of each Rule is its key. The program uses each
// instrument.
func TestTenThousandKeysMakeABoundedNumberOfSeries(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	o := tel.observer.(interface {
		locker.WaitObserver
		locker.RenewalObserver
		locker.RequestObserver
	})
	for i := range 10_000 {
		rule := locker.Rule{Key: fmt.Sprint("order-", i), Name: fmt.Sprint("order-", i)}
		for op, outcome := range map[locker.Op]locker.Outcome{
			locker.OpAcquire: {Result: locker.ResultAcquired, Waited: time.Second, Handoff: "local"},
			locker.OpHold:    {Result: locker.ResultLost, Err: locker.ErrLost, Cause: "taken"},
			locker.OpRelease: {Result: locker.ResultReleased},
			"transact":       {Result: "stale_fence"},
		} {
			_, end := o.Begin(t.Context(), op, rule)
			end(outcome)
		}
		o.Waiting(t.Context(), rule, locker.WaitEvent{Place: 1})()
		o.Renewed(t.Context(), rule, locker.RenewalEvent{Margin: time.Second})
		o.Request(t.Context(), locker.RequestEvent{Name: rule.Name, Result: "replayed"})
	}
	names := make(map[string]int)
	for _, span := range tel.spans.Ended() {
		names[span.Name()]++
	}
	if len(names) != 3*257 || names["acquire _OTHER"] != 10_000-256 {
		t.Errorf("%d names of spans, want 257 for acquire, release and transact; %d acquires of _OTHER", len(names), names["acquire _OTHER"])
	}
	series := make(map[string]int)
	for _, line := range tel.measured(t) {
		name, _, _ := strings.Cut(line, " ")
		series[name]++
	}
	if len(series) != 15 {
		t.Errorf("%d instruments were used, want 15: %v", len(series), series)
	}
	for name, n := range series {
		if n != 257 {
			t.Errorf("%s has %d series, want 256 names and _OTHER", name, n)
		}
	}
}
