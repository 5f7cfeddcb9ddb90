package otellock_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/contrib/cronlock"
	"github.com/latchkit/latchkit/contrib/gocronlock"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"

	otellock "github.com/latchkit/latchkit/otel"
)

// Each schedule has one tick a day, at three o'clock. Of the two processes, only one runs the
// job at this tick.
const (
	atThree   = "0 0 3 * * *"
	tickOf    = "order@" // the beginning of the key, before the time of the tick
	afterThat = 4 * time.Hour
)

// anyToken matches the tokens of both processes.
var anyToken = regexp.MustCompile("[A-Z2-7]{26}")

// schedules run a job in two processes. The two processes have separate Lockers. The job gets
// the key of its tick, and a channel that is closed when its lock is lost. If the job returns
// an error, an adapter that can repeat a tick runs the job again.
var schedules = map[string]struct {
	start func(t *testing.T, l *locker.Engine, logs *records, job func(key string, lost <-chan struct{}) error) (stop func())
	links string // the links that the span of the second process has
	runs  int
}{
	"cronlock": {links: "holder,released_by", runs: 2, start: func(t *testing.T, l *locker.Engine, logs *records, job func(string, <-chan struct{}) error) func() {
		c := cron.New(cron.WithSeconds())
		_, err := cronlock.Once(c, l, atThree, "order", func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			return job(lease.Key(), ctx.Done())
		}, cronlock.WithMakeUp(time.Minute), cronlock.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))))
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		return func() { <-c.Stop().Done() }
	}},
	"gocronlock": {links: "holder", runs: 1, start: func(t *testing.T, l *locker.Engine, logs *records, job func(string, <-chan struct{}) error) func() {
		lost := make(chan struct{})
		each, err := gocronlock.PerTick(l, gocronlock.Round(time.Minute), gocronlock.WithOnLost(func(string, error) { close(lost) }))
		if err != nil {
			t.Fatal(err)
		}
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(each), gocron.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.NewJob(gocron.CronJob(atThree, true), gocron.NewTask(func() error {
			return job(tickOf+time.Now().UTC().Format(time.RFC3339Nano), lost)
		}), gocron.WithName("order"))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		return func() { _ = s.Shutdown() }
	}},
}

// Two processes have the same schedule. At the time of the tick, the second process finds that the
// first one holds the key. During the last run of the job, another owner steals the lock.
func TestATickIsLinkedToTheProcessThatRunsItAndNothingSecretIsExported(t *testing.T) {
	for name, tc := range schedules {
		for key, opts := range map[string][]otellock.Option{"without the key": nil, "with the key": {otellock.WithKey()}} {
			t.Run(name+" "+key, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					backend := &spy{Memory: lockertest.NewMemory()}
					services := [2]*telemetry{}
					ran := make(chan *telemetry, len(services))
					var stops []func()
					for i, memory := range []store.Store{backend, backend.NewProcess()} {
						tel := newTelemetry(t, sdktrace.AlwaysSample(), opts...)
						services[i] = tel
						l := lockertest.NewLocker(t, memory, locker.WithObserver(tel.observer))
						stops = append(stops, tc.start(t, l, tel.logs, func(key string, lost <-chan struct{}) error {
							ran <- tel
							time.Sleep(time.Second / 2) // meanwhile the other process finds that this run holds the key, and plans its next attempt after 1 s
							if len(ran) < tc.runs {
								return errors.New("the printer is out of ink")
							}
							backend.Steal(key)
							<-lost
							return nil
						}))
					}
					time.Sleep(afterThat)
					for _, stop := range stops {
						stop()
					}
					if len(ran) != tc.runs {
						t.Fatalf("the tick ran %d times", len(ran))
					}
					first, second := <-ran, services[0]
					if second == first {
						second = services[1]
					}
					checkTick(t, first, second, tc.links)
					all := exported(t, first) + exported(t, second)
					if found := anyToken.FindString(all); found != "" || !anyToken.MatchString(backend.token()) {
						t.Errorf("the token %q was exported: %s", found, all)
					}
					if !strings.Contains(all, "losses loss.cause=taken mode=exclusive name=order: 1") {
						t.Errorf("the loss was not counted: %s", all)
					}
					if all = measuredAndSeen(t, first, second); strings.Contains(all, tickOf) != (opts != nil) {
						t.Errorf("the key is among the exported, or is not: %s", all)
					}
				})
			})
		}
	}
}

// checkTick checks the links from the acquire's span of the second process to the span of the
// first process.
func checkTick(t *testing.T, first, second *telemetry, want string) {
	t.Helper()
	waiter, holder := second.span(t, "acquire order"), first.span(t, "acquire order").SpanContext()
	if got := roles(waiter); got != want {
		t.Errorf("the second process links to %q, want %q", got, want)
	}
	for _, l := range waiter.Links() {
		if l.SpanContext.SpanID() != holder.SpanID() {
			t.Errorf("a link to %v", l)
		}
	}
}

// measuredAndSeen returns the spans, the metrics, and the logs of latchkit's Observer. It leaves
// out the logs of the adapter and of the scheduler, because these logs contain the job and its
// tick, which are parts of the key.
func measuredAndSeen(t *testing.T, services ...*telemetry) (all string) {
	for _, tel := range services {
		spans, points := tel.everything(t)
		all += spans + points + strings.Join(tel.logs.linesWith("latchkit: a lock"), "")
		if strings.Contains(points, tickOf) {
			t.Error("a metric has the key")
		}
	}
	return all
}
