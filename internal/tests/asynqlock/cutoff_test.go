package asynqlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
)

// remote is an asynq server in a process of its own. Its handler ignores the context of a run, but
// the process prints a line when this context has ended.
var remote = proc.Register("asynq worker behind a proxy", func(args []string) {
	addr, dsn, queue := args[0], args[1], args[2]
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		panic(err)
	}
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.New(c, locker.WithTTL(3*time.Second))
	if err != nil {
		panic(err)
	}
	g, err := asynqlock.New(l, asynqlock.On("withdraw", asynqlock.Template("account:{queue}:{payload.account}"),
		asynqlock.Once(time.Hour), asynqlock.Snooze(time.Second)))
	if err != nil {
		panic(err)
	}
	cfg, mux := prompt(queue), asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("withdraw", func(ctx context.Context, _ *asynq.Task) error {
		if lease, ok := locker.FromContext(ctx); ok {
			defer context.AfterFunc(ctx, func() {
				fmt.Println("ended:", errors.Is(context.Cause(ctx), locker.ErrLost), lease.Expires().UnixNano())
			})()
		}
		return take(ctx, db, true)
	})
	if err := asynq.NewServerFromRedisClient(c, g.Configure(cfg)).Start(mux); err != nil {
		panic(err)
	}
	select {}
})

// outage is a worker that has begun a task and is then cut off from Redis, while all other
// processes still reach Redis.
type outage struct {
	dsn, queue string
	first      *proc.Child
	second     func() *proc.Child // starts another worker, which is not cut off
	lift       func()
}

// cutOff starts a worker that runs a task. Then no data passes any more between the worker and
// Redis. If severed is true, the connections also break; otherwise they hang.
func cutOff(t *testing.T, severed bool) *outage {
	t.Helper()
	server := redistest.Shared(t)
	c := server.Client(t)
	o := &outage{queue: fmt.Sprint("cut", runs.Add(1))}
	o.dsn = prepare(t, sqltest.Shared(t, sqltest.Postgres), o.queue)
	proxy := chaos.NewProxy(t, server.Addr())
	o.first = remote.Start(t, proxy.Addr(), o.dsn, o.queue)
	info, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(), asynq.NewTask("withdraw", []byte(`{"account":1}`)), asynq.Queue(o.queue))
	must(t, err)
	o.first.Expect(t, "runs")
	fault := proxy.BlackHole()
	if severed && proxy.Cut() == 0 {
		t.Fatal("there was no connection to be cut")
	}
	o.lift = fault.Lift
	age(t, c, o.queue, info.ID)
	o.second = func() *proc.Child { return remote.Start(t, server.Addr(), o.dsn, o.queue) }
	return o
}

// When a worker is cut off from Redis, another worker takes its task. But before the second
// worker begins, the first worker detects by its own clock that its lease has ended. So the
// first worker commits nothing, even when its connections work again.
func TestAWorkerThatIsCutOffStopsBeforeItIsOvertaken(t *testing.T) {
	t.Parallel()
	for how, severed := range map[string]bool{"its connections hang": false, "its connections break": true} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			o := cutOff(t, severed)
			second := o.second()
			var lost bool
			var deadline, began int64
			if _, err := fmt.Sscan(o.first.Expect(t, "ended:"), &lost, &deadline); err != nil || !lost {
				t.Errorf("the context of the one that is cut off did not end with ErrLost (%v)", err)
			}
			if _, err := fmt.Sscan(second.Expect(t, "runs"), &began); err != nil || began <= deadline {
				t.Errorf("the second run began %v after the first one's deadline (%v)", time.Duration(began-deadline), err)
			}
			second.Send("write")
			if got := second.Expect(t, "wrote:"); got != "<nil>" {
				t.Errorf("the second worker wrote: %s", got)
			}
			o.lift()
			o.first.Send("write")
			if got := o.first.Expect(t, "wrote:"); !strings.HasPrefix(got, "refused") {
				t.Errorf("the worker that was cut off wrote: %s", got)
			}
			balanced(t, o.dsn, 90)
		})
	}
}
