package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
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

// tasks is an asynq server whose locks are in memory.
type tasks struct {
	queue      string
	store      *lockertest.Memory
	other      *locker.Engine // this Locker has no Observer
	client     *asynqlock.Client
	inspector  *asynq.Inspector
	errorCodes chan string // receives the codes of the Problems that reach asynq's ErrorHandler
}

const taskKey = "customer:canary"

func (s *tasks) enqueue(ctx context.Context, t *testing.T, opts ...asynq.Option) string {
	t.Helper()
	info, err := s.client.EnqueueContext(ctx, asynq.NewTask("mail", []byte(`{"customer":"canary"}`)), append(opts, asynq.Queue(s.queue), asynq.Retention(time.Hour))...)
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

// becomes waits until the task id has the state want, such as "retry after 0".
func (s *tasks) becomes(t *testing.T, id, want string) {
	t.Helper()
	await(t, "the task is "+want, func() bool {
		info, err := s.inspector.GetTaskInfo(s.queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound):
			return want == "gone"
		case err != nil:
			t.Fatal(err)
		}
		return fmt.Sprintf("%v after %d", info.State, info.Retried) == want
	})
}

// await calls cond every 5 ms until cond returns true, for 30 s at most. Then the test fails.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s still not: %s", what)
		}
	}
}

// hold acquires the key of the task, and returns a function that releases it.
func (s *tasks) hold(t *testing.T) (release func()) {
	t.Helper()
	lease, err := s.other.Acquire(t.Context(), locker.Rule{Key: taskKey})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// waits returns as soon as a caller waits for the key of the task.
func (s *tasks) waits(t *testing.T) {
	t.Helper()
	await(t, "somebody waits", func() bool {
		info, err := s.other.Inspect(t.Context(), taskKey)
		return err == nil && info.Waiters > 0
	})
}

// The trace of a task shows the effect of the task's policy.
func TestATasksPolicyShowsInItsTrace(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, tc := range map[string]struct {
		policies []asynqlock.Policy
		handle   func(ctx context.Context, s *tasks) error
		scene    func(t *testing.T, s *tasks, enqueue func(opts ...asynq.Option) string)
		results  string // the results of the task's acquires
		told     string
	}{
		"nobody holds the key": {
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				s.becomes(t, enqueue(), "completed after 0")
			},
			results: "acquired",
		},
		"Drop": {
			policies: []asynqlock.Policy{asynqlock.Drop()},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				defer s.hold(t)()
				s.becomes(t, enqueue(), "gone")
			},
			results: "busy",
		},
		"Archive": {
			policies: []asynqlock.Policy{asynqlock.Archive()},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				defer s.hold(t)()
				s.becomes(t, enqueue(), "archived after 0")
			},
			results: "busy", told: "lock-busy",
		},
		"Snooze": {
			policies: []asynqlock.Policy{asynqlock.Snooze(time.Second)},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				release := s.hold(t)
				id := enqueue()
				s.becomes(t, id, "retry after 0")
				release()
				s.becomes(t, id, "completed after 0")
			},
			results: "busy acquired",
		},
		"Wait, long enough": {
			policies: []asynqlock.Policy{asynqlock.Wait(time.Minute)},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				release := s.hold(t)
				id := enqueue()
				s.waits(t)
				release()
				s.becomes(t, id, "completed after 0")
			},
			results: "acquired",
		},
		"Wait, too short, and Drop": {
			policies: []asynqlock.Policy{asynqlock.Wait(50 * time.Millisecond), asynqlock.Drop()},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				defer s.hold(t)()
				s.becomes(t, enqueue(), "gone")
			},
			results: "timeout",
		},
		"Wait, longer than the task may run": {
			policies: []asynqlock.Policy{asynqlock.Wait(time.Hour), asynqlock.Snooze(time.Hour)},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				defer s.hold(t)()
				s.becomes(t, enqueue(asynq.Timeout(time.Second)), "retry after 0")
			},
			results: "timeout",
		},
		"Once": {
			policies: []asynqlock.Policy{asynqlock.Once(time.Hour)},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				s.becomes(t, enqueue(), "completed after 0")
				s.becomes(t, enqueue(), "gone")
			},
			results: "acquired done",
		},
		"Once, after a failure": {
			policies: []asynqlock.Policy{asynqlock.Once(time.Hour)},
			handle: func(ctx context.Context, _ *tasks) error {
				if n, _ := asynq.GetRetryCount(ctx); n == 0 {
					return errors.New("it fails once")
				}
				return nil
			},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				s.becomes(t, enqueue(), "completed after 1")
			},
			results: "acquired acquired", told: "it fails once",
		},
		"no Redis": {
			policies: []asynqlock.Policy{asynqlock.Snooze(time.Hour)},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				s.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
				s.becomes(t, enqueue(), "retry after 0")
			},
			results: "unavailable", told: "lock-unavailable",
		},
		"lost": {
			policies: []asynqlock.Policy{asynqlock.Snooze(time.Hour)},
			handle: func(ctx context.Context, s *tasks) error {
				s.store.Steal(taskKey)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), locker.ErrLost) {
					return context.Cause(ctx)
				}
				return nil
			},
			scene: func(t *testing.T, s *tasks, enqueue func(...asynq.Option) string) {
				s.becomes(t, enqueue(asynq.MaxRetry(0)), "archived after 0")
			},
			results: "acquired", told: "lock-lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
			store := lockertest.NewMemory()
			redis := server.Client(t)
			s := &tasks{queue: strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()), store: store, errorCodes: make(chan string, 10)}
			s.inspector = asynq.NewInspectorFromRedisClient(redis)
			l := lockertest.NewLocker(t, store, locker.WithObserver(tel.observer))
			s.other = lockertest.NewLocker(t, store)
			g, err := asynqlock.New(l, asynqlock.WithPropagator(otellock.Headers{}),
				asynqlock.On("mail", asynqlock.Template("customer:{payload.customer}"), tc.policies...))
			if err != nil {
				t.Fatal(err)
			}
			s.client = g.Client(asynq.NewClientFromRedisClient(redis))
			mux := asynq.NewServeMux()
			mux.Use(g.Middleware)
			mux.HandleFunc("mail", func(ctx context.Context, _ *asynq.Task) error {
				if tc.handle != nil {
					return tc.handle(ctx, s)
				}
				return nil
			})
			worker := asynq.NewServerFromRedisClient(redis, g.Configure(asynq.Config{
				Queues: map[string]int{s.queue: 1}, Logger: silent{}, TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
				RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
					if p, ok := errors.AsType[*asynqlock.Problem](err); ok {
						s.errorCodes <- p.ErrorType()
					} else {
						s.errorCodes <- err.Error()
					}
				}),
			}))
			if err := worker.Start(mux); err != nil {
				t.Fatal(err)
			}
			stop := sync.OnceFunc(worker.Shutdown)
			// The server must stop before its client is closed, even when the test fails, because
			// otherwise asynq panics.
			t.Cleanup(stop)
			ctx, producer := tel.tracer.Start(t.Context(), "enqueue")
			tc.scene(t, s, func(opts ...asynq.Option) string { return s.enqueue(ctx, t, opts...) })
			stop()
			producer.End()

			var results []string
			for _, span := range tel.spans.Ended() {
				if span.Name() == "acquire mail" {
					set := attribute.NewSet(span.Attributes()...)
					result, _ := set.Value("latchkit.lock.result")
					results = append(results, result.AsString())
				}
				if span.Name() != "enqueue" && span.SpanContext().TraceID() != producer.SpanContext().TraceID() {
					t.Errorf("%q is in another trace than what enqueued the task", span.Name())
				}
			}
			if got := strings.Join(results, " "); got != tc.results {
				t.Errorf("the acquires have the results %q, want %q", got, tc.results)
			}
			if spans, points := tel.everything(t); strings.Contains(spans+points, "canary") {
				t.Errorf("the key was shown: %s%s", spans, points)
			}
			close(s.errorCodes)
			if told := <-s.errorCodes; told != tc.told {
				t.Errorf("asynq's ErrorHandler was told %q, want %q", told, tc.told)
			}
		})
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
