package otellock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/hibiken/asynq"
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	_ "modernc.org/sqlite"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

// secret is the key of all work in this file. It must not appear in the telemetry.
const secret = "order:canary"

// guards has a function for each adapter. This function lets the adapter take a lock whose key
// is the constant secret, and calls work under the lock. The adapters for other SQL libraries
// share the code of sqllock.
var guards = map[string]func(t *testing.T, l *locker.Engine, work func(ctx context.Context)){
	"httplock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		h := httplock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { work(r.Context()) }))
		h.ServeHTTP(httptest.NewRecorder(), posted(t))
	},
	"ginlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		r := gin.New()
		r.POST("/", ginlock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute)), func(c *gin.Context) { work(c.Request.Context()) })
		r.ServeHTTP(httptest.NewRecorder(), posted(t))
	},
	"grpclock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "order:{req.order_id}", Wait: time.Minute}})
		unary, err := grpclock.UnaryServerInterceptor(l, rules)
		if err != nil {
			t.Error(err)
			return
		}
		client := place(t, rules, grpc.UnaryInterceptor(unary), &orders{place: func(ctx context.Context) error { work(ctx); return nil }})
		_, _ = client.Place(t.Context(), &shop.Order{OrderId: "canary"})
	},
	"echolock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		e := echo.New()
		lock := echolock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		e.POST("/", func(c echo.Context) error { work(c.Request().Context()); return nil }, lock)
		e.ServeHTTP(httptest.NewRecorder(), posted(t))
	},
	"fiberlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		app := fiber.New()
		lock := fiberlock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		app.Post("/", lock, func(c fiber.Ctx) error { work(c.Context()); return nil })
		reply, err := app.Test(posted(t), fiber.TestConfig{Timeout: 0})
		if err != nil {
			t.Error(err)
			return
		}
		_ = reply.Body.Close()
	},
	"asynqlock": runTask,
	"sqllock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "canary.db")+"?_pragma=busy_timeout(1000)")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close() }()
		h, err := sqllock.New(l, db)
		if err == nil {
			err = h.Migrate(t.Context())
		}
		if err == nil {
			err = h.Do(t.Context(), locker.Rule{Key: secret, Wait: time.Minute}, func(ctx context.Context, _ *sqllock.Tx) error { work(ctx); return nil })
		}
		if err != nil && !errors.Is(err, locker.ErrLost) {
			t.Error(err)
		}
	},
}

func posted(t *testing.T) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	r.Header.Set("X-Order", "canary")
	return r
}

// runTask does the work in a task of asynq, which asynqlock guards.
func runTask(t *testing.T, l *locker.Engine, work func(context.Context)) {
	c := redistest.Shared(t).Client(t)
	g, err := asynqlock.New(l, asynqlock.On("order", asynqlock.Template("order:{payload.order}"), asynqlock.Wait(time.Minute)))
	if err != nil {
		t.Error(err)
		return
	}
	queue := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())
	ran := make(chan struct{})
	over := sync.OnceFunc(func() { close(ran) })
	mux := asynq.NewServeMux()
	mux.Use(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			defer over()
			return next.ProcessTask(ctx, task)
		})
	}, g.Middleware)
	mux.HandleFunc("order", func(ctx context.Context, _ *asynq.Task) error { work(ctx); return nil })
	worker := asynq.NewServerFromRedisClient(c, g.Configure(asynq.Config{
		Queues: map[string]int{queue: 1}, Logger: silent{}, TaskCheckInterval: 10 * time.Millisecond,
	}))
	if err := worker.Start(mux); err != nil {
		t.Error(err)
		return
	}
	defer worker.Shutdown()
	task := asynq.NewTask("order", []byte(`{"order":"canary"}`))
	if _, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(), task, asynq.Queue(queue), asynq.MaxRetry(0)); err != nil {
		t.Error(err)
		return
	}
	<-ran
}

// guardedWork calls guard, the function of an adapter in guards, twice. In the first run, the
// adapter waits for a holder in another process. In the second run, another owner steals the
// lock, and the work waits until its context ends.
func guardedWork(t *testing.T, guard func(*testing.T, *locker.Engine, func(context.Context))) (here, there *telemetry, token string) {
	here, there = newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans()), newTelemetry(t, sdktrace.AlwaysSample())
	backend := &spy{Memory: lockertest.NewMemory()}
	l := lockertest.NewLocker(t, backend, locker.WithObserver(here.observer), locker.WithTTL(time.Second))
	other := lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(there.observer))
	held, err := other.Acquire(t.Context(), locker.Rule{Key: secret})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		waits := func() bool {
			info, err := other.Inspect(context.Background(), secret)
			return err == nil && info.Waiters == 1 && slices.ContainsFunc(here.measured(t), func(line string) bool {
				return strings.HasPrefix(line, "waiter.active") && strings.Contains(line, "name=order") && strings.HasSuffix(line, ": 1")
			})
		}
		for !waits() {
			time.Sleep(time.Millisecond)
		}
		_ = held.Release(context.Background())
	}()
	guard(t, l, func(context.Context) {})
	guard(t, l, func(ctx context.Context) { backend.Steal(secret); <-ctx.Done() })
	return here, there, backend.token()
}

// token returns the owner of the last claim that the Store has received. This owner is a token,
// and so it is secret.
func (s *spy) token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner
}

func TestEveryAdaptersWaitIsLinkedAndNothingSecretIsExported(t *testing.T) {
	gin.SetMode(gin.TestMode)
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			here, there, token := guardedWork(t, guard)
			holder := there.span(t, "acquire order").SpanContext().SpanID()
			roles := ""
			for _, s := range here.spans.Ended() {
				for _, l := range s.Links() {
					if s.Name() != "acquire order" || l.SpanContext.SpanID() != holder {
						t.Errorf("%q links to %v", s.Name(), l)
					}
					roles += l.Attributes[0].Value.AsString() + " "
				}
			}
			if roles != "holder released_by " {
				t.Errorf("the waiter links to %q", roles)
			}
			await(t, "the loss is measured and logged", func() bool {
				return strings.Contains(strings.Join(here.measured(t), "\n"), "losses loss.cause=taken mode=exclusive name=order: 1") &&
					len(here.logs.linesWith("lost while it was in use")) == 1
			})
			all := exported(t, here) + exported(t, there)
			for _, s := range []string{"canary", token} {
				if strings.Contains(all, s) {
					t.Errorf("%q was exported", s)
				}
			}
			switch name {
			case "asynqlock":
			case "sqllock":
				if !strings.Contains(all, "sql.commits name=order result=committed: 1") {
					t.Errorf("the commit was not counted: %s", strings.Join(here.measured(t), "\n"))
				}
			default:
				if counts := here.requests(t); counts["order acquired"] == 0 || counts["order lock_lost"] == 0 {
					t.Errorf("counted are %v", counts)
				}
			}
		})
	}
}

// exported returns all telemetry of a process: spans, metrics and logs.
func exported(t *testing.T, tel *telemetry) string {
	t.Helper()
	return fmt.Sprintf("%+v", tracetest.SpanStubsFromReadOnlySpans(tel.spans.Ended())) + strings.Join(tel.measured(t), "\n") +
		strings.Join(tel.logs.linesWith(), "\n")
}

// The transaction of an idempotent request that replies 409 is rolled back. The reply was the handler's
// wish, so the span of the transaction is no error.
func TestTheRollbackOfARequestThatFailedIsNoError(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(tel.observer))
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(1000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	db, err := sqllock.New(l, pool)
	if err == nil {
		err = db.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	answers, err := sqllock.NewAnswers(db)
	if err != nil {
		t.Fatal(err)
	}
	h := httplock.MustIdempotency(l, answers, "shop")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the order is paid", http.StatusConflict)
	}))
	r := posted(t)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	span := tel.span(t, "transact idempotency")
	if got := text(span.Attributes()); w.Code != http.StatusConflict || span.Status().Code != codes.Unset || !strings.Contains(got, "result=rolled_back") {
		t.Errorf("%d, the span has %v and %s", w.Code, span.Status(), got)
	}
}
