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

// remote is an asynq server in a process of its own. The asynq server and its Locker reach Redis
// through separate proxies. Its handler ignores the context of a run, but the process prints a
// line when this context has ended. It also prints each Problem of its guard.
var remote = proc.Register("asynq worker with two ways to Redis", func(args []string) {
	asynqs, lockers, dsn, queue, way := args[0], args[1], args[2], args[3], args[4]
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		panic(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: lockers}), locker.WithTTL(3*time.Second))
	if err != nil {
		panic(err)
	}
	g, err := asynqlock.New(l, asynqlock.On("withdraw", asynqlock.Template("account:{queue}:{payload.account}"),
		asynqlock.Once(time.Hour), asynqlock.Snooze(time.Second)))
	if err != nil {
		panic(err)
	}
	cfg, mux := prompt(queue), asynq.NewServeMux()
	if way == "guarded" {
		mux.Use(tellProblems, g.Middleware)
		cfg = g.Configure(cfg)
	}
	mux.HandleFunc("withdraw", func(ctx context.Context, _ *asynq.Task) error {
		if lease, ok := locker.FromContext(ctx); ok {
			defer context.AfterFunc(ctx, func() {
				fmt.Println("ended:", errors.Is(context.Cause(ctx), locker.ErrLost), lease.Expires().UnixNano())
			})()
		}
		return take(ctx, db, way == "guarded")
	})
	if err := asynq.NewServerFromRedisClient(redis.NewClient(&redis.Options{Addr: asynqs}), cfg).Start(mux); err != nil {
		panic(err)
	}
	select {}
})

func tellProblems(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		err := next.ProcessTask(ctx, t)
		if p, ok := errors.AsType[*asynqlock.Problem](err); ok {
			fmt.Println("problem:", p.Code, p.Verdict)
		}
		return err
	})
}

// outage is a worker that has begun a task and is then cut off from Redis, while all other
// processes still reach Redis.
type outage struct {
	dsn, queue string
	first      *proc.Child
	second     func() *proc.Child // starts another worker, which is not cut off
	lift       func()
}

// cutOff starts a worker that runs a task. Then no data passes any more between the worker's
// asynq and Redis. If locks is true, the worker's Locker is cut off in the same way. If severed
// is true, the connections also break; otherwise they hang.
func cutOff(t *testing.T, way string, severed, locks bool) *outage {
	t.Helper()
	server := redistest.Shared(t)
	c := server.Client(t)
	o := &outage{queue: fmt.Sprint("cut", runs.Add(1))}
	o.dsn = prepare(t, sqltest.Shared(t, sqltest.Postgres), o.queue)
	asynqs, lockers := chaos.NewProxy(t, server.Addr()), chaos.NewProxy(t, server.Addr())
	o.first = remote.Start(t, asynqs.Addr(), lockers.Addr(), o.dsn, o.queue, way)
	info, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(), asynq.NewTask("withdraw", []byte(`{"account":1}`)), asynq.Queue(o.queue))
	if err != nil {
		t.Fatal(err)
	}
	o.first.Expect(t, "runs")
	cut := []*chaos.Proxy{asynqs}
	if locks {
		cut = append(cut, lockers)
	}
	var faults []*chaos.Fault
	for _, p := range cut {
		faults = append(faults, p.BlackHole())
		if severed && p.Cut() == 0 {
			t.Fatal("there was no connection to be cut")
		}
	}
	o.lift = func() {
		for _, f := range faults {
			f.Lift()
		}
	}
	age(t, c, o.queue, info.ID)
	o.second = func() *proc.Child { return remote.Start(t, server.Addr(), server.Addr(), o.dsn, o.queue, way) }
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
			o := cutOff(t, "guarded", severed, true)
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

// If only asynq is cut off, another server starts the task as well. But the first worker still
// holds the lock, so the other server's handler does not run before the first run has ended.
// The guard has the option Once, so this handler does not run after the first run either.
func TestATaskWhoseLockIsHeldIsNotRunElsewhereWhenAsynqIsCutOff(t *testing.T) {
	t.Parallel()
	o := cutOff(t, "guarded", true, false)
	second := o.second()
	for range 3 { // each of three attempts of the second worker is refused
		if got := second.Expect(t, ""); got != "problem: lock-busy snoozed" {
			t.Errorf("while the first one is at work the second says %q", got)
		}
	}
	o.first.Send("write")
	if got := o.first.Expect(t, "wrote:"); got != "<nil>" {
		t.Errorf("the holder of the lock wrote: %s", got)
	}
	for got := ""; got != "problem: already-done dropped"; {
		if got = second.Expect(t, ""); !strings.HasPrefix(got, "problem:") {
			t.Errorf("when the first one is done the second says %q", got)
		}
	}
	balanced(t, o.dsn, 90)
}

// Without a guard, the worker that is cut off and the worker that takes its task both do the
// work. So the guard is necessary.
func TestWithoutAGuardAWorkerThatIsCutOffDoesTheWorkToo(t *testing.T) {
	t.Parallel()
	o := cutOff(t, "not guarded", true, false)
	second := o.second()
	second.Expect(t, "runs") // the first worker has not written yet
	for _, worker := range []*proc.Child{second, o.first} {
		worker.Send("write")
		if got := worker.Expect(t, "wrote:"); got != "<nil>" {
			t.Errorf("a worker wrote: %s", got)
		}
	}
	balanced(t, o.dsn, 80)
}
