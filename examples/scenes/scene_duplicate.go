package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

var duplicate = scene{
	name: "duplicate", title: "Duplicate task",
	text: "A shop queues the task to mail an invoice with asynq, gets no answer in time, and queues it once more. Two workers take both tasks. " +
		"SETNX + DEL only keeps them apart: when the first has finished, the lock is gone, and the second mails the invoice again. " +
		"latchkit remembers with the lock that the work is done (Once), and drops the second task.",
	writes: "mails an invoice", harm: "mails it a second time",
	code: map[string][]string{
		"no lock":     {"scene_duplicate.go#none"},
		"SETNX + DEL": {"scene_duplicate.go#naive", "actor.go#naive"},
		"latchkit":    {"scene_duplicate.go#once"},
	},
	ttl:    time.Second,
	cast:   [][]string{{"worker A"}, {"worker B"}},
	length: 6 * time.Second,
	direct: func(ctx context.Context, s *stage) error {
		for number := 1; ; number++ {
			for _, way := range ways {
				cfg := actorConfig{Scene: s.name, Mode: way.name, Run: s.run}
				client := asynq.NewClientFromRedisClient(s.redis)
				payload, err := json.Marshal(mail{s.run, number})
				if err != nil {
					return err
				}
				for range 2 {
					if _, err := client.EnqueueContext(ctx, asynq.NewTask("invoice:mail", payload), asynq.Queue(cfg.queue()), asynq.MaxRetry(5)); err != nil {
						return err
					}
				}
			}
			if err := sleep(ctx, 1200*time.Millisecond); err != nil {
				return err
			}
		}
	},
	act: workMails,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		sent, invoices, err := s.count(ctx, mode, "sent")
		if err != nil {
			return c, err
		}
		c.Facts = []page.Fact{fact("invoices", invoices, ""), fact("mails sent", sent, ""), fact("sent twice", sent-invoices, "bad")}
		switch {
		case sent > invoices:
			c.Tone, c.Verdict = "bad", fmt.Sprintf("%d customers got their invoice twice.", sent-invoices)
		case sent > 0:
			c.Tone, c.Verdict = "good", "Each customer got one mail."
		}
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "no lock", "sent twice", some, "some"),
			want(cards, "SETNX + DEL", "sent twice", some, "some"),
			want(cards, "latchkit", "mails sent", some, "some"),
			want(cards, "latchkit", "sent twice", zero, "none"),
		)
	},
}

// mail is the payload of a task.
type mail struct {
	Run    string `json:"run"`
	Number int    `json:"number"`
}

// queue is the queue of a mode. Each mode has its own, so that all get the same tasks.
func (c actorConfig) queue() string { return "scenes-" + c.Run + "-" + c.slug() }

// workMails is a worker of asynq, until ctx ends.
func workMails(ctx context.Context, a *actor) error {
	send := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return sendMail(ctx, a, t) })
	var handler asynq.Handler = send
	config := asynq.Config{
		Concurrency: 1, Queues: map[string]int{a.queue(): 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
		TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
	}
	switch a.Mode {
	case "latchkit":
		//show:once
		g, err := asynqlock.New(a.locks, asynqlock.On("invoice:mail", asynqlock.Template("mail:{payload.run}:{payload.number}"),
			asynqlock.Rule(locker.Rule{TTL: a.scene.ttl}), asynqlock.Once(time.Hour), asynqlock.Drop()))
		if err != nil {
			return err
		}
		defer func() { _ = g.Stop(context.Background()) }()
		handler, config = g.Middleware(send), g.Configure(config)
		//show:end
	case "SETNX + DEL":
		//show:naive
		handler = asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			return a.naive(ctx, a.naiveKey()+string(t.Payload()), func(ctx context.Context) error { return send(ctx, t) })
		})
		//show:end
	default:
		handler = asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			a.emit(page.Event{Who: a.name, Kind: page.Stale})
			defer a.emit(page.Event{Who: a.name, Kind: page.Free})
			//show:none
			return send(ctx, t)
			//show:end
		})
	}
	server := asynq.NewServerFromRedisClient(a.redis, config)
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return handler.ProcessTask(context.WithValue(ctx, named{}, a.name), t)
	})); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

// sendMail mails an invoice, which takes a while.
func sendMail(ctx context.Context, a *actor, t *asynq.Task) error {
	var m mail
	if err := json.Unmarshal(t.Payload(), &m); err != nil {
		return err
	}
	if err := sleep(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	// A process that wakes learns a moment later that its lease is over. The clock says it at once.
	if lease, ok := locker.FromContext(ctx); ok && !time.Now().Before(lease.Expires()) {
		return fmt.Errorf("invoice %d: %w", m.Number, locker.ErrLost)
	}
	before, _, err := countResults(ctx, a.db, a.Run, a.Mode, fmt.Sprint("mailed ", m.Number))
	if err != nil {
		return err
	}
	if before > 0 {
		a.emit(page.Event{Who: a.name, Kind: page.Harm, Text: fmt.Sprintf("mails invoice %d for the second time", m.Number)})
	} else {
		a.emit(page.Event{Who: a.name, Kind: page.Write, Text: fmt.Sprintf("mails invoice %d", m.Number)})
	}
	if err := a.result(ctx, m.Number, fmt.Sprint("mailed ", m.Number)); err != nil {
		return err
	}
	return a.result(ctx, m.Number, "sent")
}
