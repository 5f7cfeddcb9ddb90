package recipes_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/internal/redistest"
)

// Two pods have the same schedule, with a tick each second. asynq gets one task for each tick, and
// the payload is the planned time. One pod stops, and the other one misses no tick.
func TestEachTickIsEnqueuedOnceByAnyPod(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	inspector := asynq.NewInspectorFromRedisClient(c)
	began := time.Now()
	var crons [2]*cron.Cron
	for i := range crons {
		crons[i] = cron.New(cron.WithSeconds())
		if err := recipes.EnqueueTicks(crons[i], asynq.NewClientFromRedisClient(c), "report", "* * * * * *"); err != nil {
			t.Fatal(err)
		}
		crons[i].Start()
		defer func() { <-crons[i].Stop().Done() }()
	}
	ticks := func() (planned []string) {
		tasks, err := inspector.ListPendingTasks("default", asynq.PageSize(1000))
		if err != nil {
			return nil // asynq does not know the queue before the first tick
		}
		for _, task := range tasks {
			planned = append(planned, string(task.Payload))
		}
		slices.Sort(planned)
		return planned
	}
	eventually(t, "two ticks", func() bool { return len(ticks()) >= 2 })
	crons[0].Stop()
	so := len(ticks())
	eventually(t, "two more ticks", func() bool { return len(ticks()) >= so+2 })
	all := ticks()
	first, err := time.Parse(time.RFC3339, all[0])
	if err != nil || first.Sub(began) > 2*time.Second || first.Before(began.Truncate(time.Second)) {
		t.Errorf("the first tick is %v, %v", all[0], err)
	}
	for i, planned := range all {
		if want := first.Add(time.Duration(i) * time.Second).Format(time.RFC3339); planned != want {
			t.Fatalf("tick %d of %v: want each second once", i, all)
		}
	}
}

// Two pods lead in turn. The tick of the next minute is enqueued once, by the pod that leads then.
// Its payload is the planned time.
func TestTheLeaderEnqueuesTheTick(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	planned := time.Now().UTC().Add(5 * time.Second).Truncate(time.Minute).Add(time.Minute)
	plan := recipes.Plan{Job: "report", Spec: fmt.Sprintf("%d %d * * *", planned.Minute(), planned.Hour())}
	pods := newPods(t)
	var ends [2]chan error
	var stops [2]context.CancelFunc
	for i, p := range pods {
		var ctx context.Context
		ctx, stops[i] = context.WithCancel(t.Context())
		ends[i] = make(chan error, 1)
		go func() { ends[i] <- recipes.LeadTicks(ctx, p.l, asynq.RedisClientOpt{Addr: server.Addr()}, plan) }()
		defer stops[i]()
		if i == 0 {
			eventually(t, "it leads", func() bool {
				info, err := p.l.Inspect(t.Context(), "schedule:report")
				return err == nil && info.Held
			})
		}
	}
	stops[0]()
	if err := <-ends[0]; err != nil {
		t.Error(err)
	}
	inspector := asynq.NewInspectorFromRedisClient(c)
	deadline := planned.Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if tasks, err := inspector.ListPendingTasks("default"); err == nil && len(tasks) > 0 {
			if want := planned.Format(time.RFC3339); len(tasks) != 1 || string(tasks[0].Payload) != want || tasks[0].ID != "report@"+want {
				t.Errorf("asynq has %d tasks, the first with the payload %s", len(tasks), tasks[0].Payload)
			}
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Error("the tick is not enqueued")
}
