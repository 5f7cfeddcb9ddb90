package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// show asynq:KEY shows the tasks that wait for a key. When a task is deleted while no process of
// the service runs, the task is shown as gone, and --repair removes it.
func TestShowOfALineOfTasks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes, c := []string{"redis://" + server.Addr()}, server.Client(t)
	l := locktest.Single(t, c)
	holder := locktest.Acquire(t, l, locker.Rule{Key: "order:7"})
	defer locktest.Release(t, holder)
	g, err := asynqlock.New(l, asynqlock.WithWaking(c), asynqlock.WithPrefix("app:"),
		asynqlock.On("ship", asynqlock.Template("order:{payload.id}")))
	if err != nil {
		t.Fatal(err)
	}
	cfg := g.Configure(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, ShutdownTimeout: 100 * time.Millisecond})
	worker := asynq.NewServer(asynq.RedisClientOpt{Addr: server.Addr()}, cfg)
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("ship", func(context.Context, *asynq.Task) error { return nil })
	if err := worker.Start(mux); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		if _, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(), asynq.NewTask("ship", []byte(`{"id":7}`)), asynq.TaskID(id)); err != nil {
			t.Fatal(err)
		}
	}
	show := func(flags ...string) string {
		return exits(t, 0, nodes, append([]string{"show", "asynq:order:7", "--prefix", "app:"}, flags...)...).out
	}
	locktest.Eventually(t, "both tasks are in the line", func() bool {
		text := show()
		return strings.Contains(text, "one") && strings.Contains(text, "two")
	})
	checkContains(t, show(), "PLACE", "\n1 ", "ship", "default")
	if err := g.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	worker.Shutdown()
	if err := asynq.NewInspectorFromRedisClient(c).DeleteTask("default", "one"); err != nil {
		t.Fatal(err)
	}
	checkContains(t, show(), "gone")
	checkContains(t, show("--repair"), "removed 1 tasks", "two")
	var line struct {
		Line []struct {
			ID      string
			Arrived time.Time
		}
	}
	if err := json.Unmarshal([]byte(show("--json")), &line); err != nil || len(line.Line) != 1 || line.Line[0].ID != "two" || time.Since(line.Line[0].Arrived).Abs() > time.Minute {
		t.Errorf("the line is %+v, %v", line, err)
	}
	checkContains(t, exits(t, 0, nodes, "show", "asynq:order:8").out, "no task waits for order:8")
	checkContains(t, exits(t, 64, append(nodes, nodes...), "show", "asynq:order:8").err, "one --node")
}
