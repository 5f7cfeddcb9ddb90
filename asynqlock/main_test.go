package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

// quiet is a Logger that drops everything, for servers whose errors a test expects.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(...any) {}

// promptConfig returns a copy of cfg for a server that looks for tasks often, and retries at once.
func promptConfig(cfg asynq.Config, queue string) asynq.Config {
	cfg.Concurrency = 4
	cfg.Queues = map[string]int{queue: 1}
	cfg.Logger = quiet{}
	cfg.TaskCheckInterval = 10 * time.Millisecond
	cfg.DelayedTaskCheckInterval = 20 * time.Millisecond
	cfg.ShutdownTimeout = time.Second
	if cfg.RetryDelayFunc == nil {
		cfg.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	}
	return cfg
}

// queue is a queue of asynq that a single test uses. All tests share one Redis.
type queue struct {
	t         *testing.T
	name      string
	redis     *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
}

var queues atomic.Int64

func newQueue(t *testing.T) *queue {
	t.Helper()
	c := redistest.Shared(t).Client(t)
	name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()) + "-" + strconv.FormatInt(queues.Add(1), 10)
	return &queue{t, name, c, asynq.NewClientFromRedisClient(c), asynq.NewInspectorFromRedisClient(c)}
}

// locker returns a new Locker on the Redis of the test. It stands for the Locker of a separate
// process.
func (q *queue) locker(opts ...locker.SingleOption) *locker.Engine {
	q.t.Helper()
	l, err := locker.New(q.redis, append([]locker.SingleOption{locker.WithPrefix(q.name + ":")}, opts...)...)
	must(q.t, err)
	q.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			q.t.Error(err)
		}
	})
	return l
}

func (q *queue) enqueue(typename, payload string, opts ...asynq.Option) *asynq.TaskInfo {
	q.t.Helper()
	info, err := q.client.EnqueueContext(q.t.Context(), asynq.NewTask(typename, []byte(payload)), append([]asynq.Option{asynq.Queue(q.name)}, opts...)...)
	must(q.t, err)
	return info
}

// state returns the state of a task and the number of its used retries, or "gone" if the task was
// deleted.
func (q *queue) state(id string) string {
	q.t.Helper()
	info, err := q.inspector.GetTaskInfo(q.name, id)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return "gone"
	}
	must(q.t, err)
	return fmt.Sprintf("%v after %d retries", info.State, info.Retried)
}

// serve runs a server until the test ends. If g is nil, the server runs the handler without a
// Guard.
func (q *queue) serve(g *asynqlock.Guard, cfg asynq.Config, handler asynq.Handler) *errorRecorder {
	q.t.Helper()
	see := &errorRecorder{}
	mux := asynq.NewServeMux()
	mux.Use(see.middleware)
	cfg = promptConfig(cfg, q.name)
	if g != nil {
		mux.Use(g.Middleware)
		cfg = g.Configure(cfg)
	}
	q.run(mux, cfg, handler)
	return see
}

func (q *queue) run(mux *asynq.ServeMux, cfg asynq.Config, handler asynq.Handler) {
	q.t.Helper()
	mux.Handle("job", handler)
	s := asynq.NewServerFromRedisClient(q.redis, cfg)
	must(q.t, s.Start(mux))
	q.t.Cleanup(s.Shutdown)
}

// stoppable runs a server with the Guard g, and returns it, so that the test can stop it. Shutdown
// waits for tasks for the given time.
func (q *queue) stoppable(g *asynqlock.Guard, waits time.Duration, handler asynq.Handler) *asynq.Server {
	q.t.Helper()
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.Handle("job", handler)
	cfg := promptConfig(asynq.Config{}, q.name)
	cfg.ShutdownTimeout = waits
	s := asynq.NewServerFromRedisClient(q.redis, g.Configure(cfg))
	must(q.t, s.Start(mux))
	return s
}

// errorRecorder is a middleware outside of the Guard that records the errors that it gets.
type errorRecorder struct {
	mu   sync.Mutex
	errs []error
}

func (s *errorRecorder) middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		err := next.ProcessTask(ctx, t)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errs = append(s.errs, err)
		return err
	})
}

// problems returns the codes and verdicts of the recorded Problems.
func (s *errorRecorder) problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, err := range s.errs {
		if p, ok := errors.AsType[*asynqlock.Problem](err); ok {
			all = append(all, p.Code+" "+string(p.Verdict))
		}
	}
	return all
}

const patience = 30 * time.Second

// await returns when cond returns true. It fails the test if that takes too long. what describes
// the condition.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	awaitFor(t, patience, what, cond)
}

func awaitFor(t *testing.T, patience time.Duration, what string, cond func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}

// guard returns a Guard whose only rule is for "job".
func guard(t testing.TB, l locker.Locker, policies ...asynqlock.Policy) *asynqlock.Guard {
	t.Helper()
	return guardOf(t, l, asynqlock.On("job", asynqlock.Template("account:{payload.account}"), policies...))
}

func guardOf(t testing.TB, l locker.Locker, opts ...asynqlock.Option) *asynqlock.Guard {
	t.Helper()
	g, err := asynqlock.New(l, opts...)
	must(t, err)
	return g
}
