package asynqlock_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func job(account string) *asynq.Task {
	return asynq.NewTask("job", []byte(`{"account":"`+account+`"}`))
}

func TestAUniqueTaskIsThereOnceWhileItExists(t *testing.T) {
	t.Parallel()
	q, begun, end := newQueue(t), make(chan string, 100), make(chan struct{}, 100)
	g := guardOf(t, q.locker(),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Unique()),
		asynqlock.On("job:other", asynqlock.Template("account:{payload.account}"), asynqlock.Unique()))
	c := g.Client(q.client)
	enqueue := func(task *asynq.Task, opts ...asynq.Option) (string, error) {
		info, err := c.EnqueueContext(t.Context(), task, append(opts, asynq.Queue(q.name))...)
		if err != nil {
			return "", err
		}
		return info.ID, nil
	}
	refused := func(state string) {
		t.Helper()
		if _, err := enqueue(job("42")); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("while the first one is %s: %v, want a duplicate", state, err)
		}
	}
	id, err := enqueue(job("42"), asynq.ProcessIn(time.Hour), asynq.MaxRetry(0))
	must(t, err)
	refused("scheduled")
	_, err = enqueue(job("43"))
	must(t, err)
	_, err = enqueue(asynq.NewTask("job:other", []byte(`{"account":"42"}`)))
	must(t, err)
	must(t, q.inspector.RunTask(q.name, id))
	refused("pending")
	q.serve(g, asynq.Config{}, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		begun <- id
		<-end
		return errors.New("it fails")
	}))
	t.Cleanup(func() { close(end) }) // ends later runs too, because the tasks are retried again and again
	for <-begun != id {
		end <- struct{}{}
	}
	refused("active")
	for range 3 {
		end <- struct{}{}
	}
	await(t, "it is archived", func() bool { return strings.HasPrefix(q.state(id), "archived") })
	refused("archived")
	must(t, q.inspector.DeleteTask(q.name, id))
	_, err = enqueue(job("42"), asynq.ProcessIn(time.Hour))
	must(t, err)
}

func TestWhatAClientCannotEnqueueIsRefused(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	c := guard(t, lockertest.NewLocker(t, lockertest.NewMemory()), asynqlock.Unique()).Client(q.client)
	for says, enqueue := range map[string]func() (*asynq.TaskInfo, error){
		"remove asynq.Unique": func() (*asynq.TaskInfo, error) {
			return c.EnqueueContext(t.Context(), job("42"), asynq.Unique(time.Hour))
		},
		"leave asynq.TaskID out": func() (*asynq.TaskInfo, error) {
			return c.EnqueueContext(t.Context(), job("42"), asynq.TaskID("mine"))
		},
		"has no key": func() (*asynq.TaskInfo, error) { return c.EnqueueContext(t.Context(), asynq.NewTask("job", nil)) },
	} {
		if _, err := enqueue(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// asynqVersion is the version of asynq whose struct Task has been read for task_options.go. For
// another version, read it again: the field opts may have another meaning, or asynq may export it.
const asynqVersion = "v0.26.0"

func TestTheFieldOptsOfATaskIsThatOfAKnownVersionOfAsynq(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../go.mod")
	must(t, err)
	if !strings.Contains(string(text), "github.com/hibiken/asynq "+asynqVersion+"\n") {
		t.Errorf("go.mod has another version of asynq than %s: look whether asynqlock/task_options.go is right for it", asynqVersion)
	}
}

// asynq does not export the options that NewTask was given. The Client uses these options
// nevertheless. The options of EnqueueContext override the options of NewTask.
func TestATaskKeepsTheOptionsThatItWasMadeWith(t *testing.T) {
	t.Parallel()
	for name, policies := range map[string][]asynqlock.Policy{"unique": {asynqlock.Unique()}, "not unique": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			g := guardOf(t, lockertest.NewLocker(t, lockertest.NewMemory()), asynqlock.WithPropagator(shout{}),
				asynqlock.On("job", asynqlock.Template("account:{payload.account}"), policies...))
			c := g.Client(q.client)
			task := asynq.NewTask("job", []byte(`{"account":"42"}`), asynq.Queue(q.name), asynq.MaxRetry(7), asynq.ProcessIn(time.Hour), asynq.Retention(time.Minute))
			info, err := c.EnqueueContext(context.WithValue(t.Context(), shoutKey{}, "hello"), task, asynq.Retention(time.Hour))
			must(t, err)
			if info.Queue != q.name || info.MaxRetry != 7 || info.State != asynq.TaskStateScheduled || info.Retention != time.Hour || info.Headers["shout"] != "hello" {
				t.Errorf("the options are gone: %+v", info)
			}
		})
	}
}

// shout is a Propagator with a single value.
type shout struct{}

type shoutKey struct{}

func (shout) Inject(ctx context.Context, headers map[string]string) {
	headers["shout"], _ = ctx.Value(shoutKey{}).(string)
}

func (shout) Extract(ctx context.Context, headers map[string]string) context.Context {
	return context.WithValue(ctx, shoutKey{}, headers["shout"])
}

// A task that is enqueued under a lease takes the lease's fence and the trace with it.
func TestFencesAndTraceTravelWithATask(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	l := q.locker()
	g := guardOf(t, l, asynqlock.On("other", asynqlock.ByTaskID()), asynqlock.WithPropagator(shout{}))
	c := g.Client(q.client)
	type arrival struct {
		fences []asynqlock.Fence
		own    string
		shout  any
	}
	arrived := make(chan arrival, 1)
	q.serve(g, asynq.Config{}, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		arrived <- arrival{asynqlock.Fences(t), t.Headers()["own"], ctx.Value(shoutKey{})}
		return nil
	}))
	var want []asynqlock.Fence
	task := asynq.NewTaskWithHeaders("job", nil, map[string]string{"own": "header"})
	err := locker.Run(context.WithValue(t.Context(), shoutKey{}, "ho"), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		return locker.Run(ctx, l, locker.Rule{Key: "item:7"}, func(ctx context.Context) error {
			for _, lease := range locker.LeasesFromContext(ctx) {
				want = append(want, asynqlock.Fence{Key: lease.Key(), Fence: lease.Fence()})
			}
			_, err := c.EnqueueContext(ctx, task, asynq.Queue(q.name))
			return err
		})
	})
	must(t, err)
	got := <-arrived
	if len(got.fences) != 2 || got.fences[0] != want[0] || got.fences[1] != want[1] || got.fences[0].Key != "item:7" || got.fences[0].Fence == 0 {
		t.Errorf("%v, want %v", got.fences, want)
	}
	if got.own != "header" || got.shout != "ho" || len(task.Headers()) != 1 {
		t.Errorf("%+v; the headers of the caller's task are now %v", got, task.Headers())
	}
	if f := asynqlock.Fences(asynq.NewTaskWithHeaders("job", nil, map[string]string{"latchkit-fences": "nonsense"})); f != nil {
		t.Errorf("%v", f)
	}
}
