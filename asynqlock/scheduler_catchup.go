package asynqlock

import (
	"context"
	"crypto/sha256"
	_ "embed" // for the script
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/internal/sleep"
	"github.com/latchkit/latchkit/locker"
)

var (
	//go:embed lua/tick_claim.lua
	claimText   string
	claimScript = redis.NewScript(claimText)
)

const (
	// lookAgain is the pause after which a leader looks again for due slots that its ticks have not
	// enqueued.
	lookAgain = 5 * time.Second
	// tickKept is the shortest time for which the completed task of a tick is kept. The task's ID
	// stays taken during that time, so another leader cannot enqueue the slot again.
	tickKept = time.Minute
	// After an entry was removed from the schedule, its last slot is kept for forgottenAfter plus
	// the window.
	forgottenAfter = 30 * 24 * time.Hour
)

// catchUp enqueues the slots of a schedule one after the other. A slot is a time at which an entry
// is due. It is enqueued even if the tick of the scheduler comes late or never. For each entry, the
// scheduler's Redis keeps a value with the last slot. A slot is enqueued in three steps:
//
//	claim    the value becomes "SLOT?", if it was the previous slot
//	enqueue  under an ID made of entry and slot
//	record   the value becomes "SLOT"
//
// Two leaders cannot both claim a slot. A leader that finds "SLOT?" enqueues the slot once more. If
// the slot's task exists already, its ID is taken, so it is not enqueued twice.
type catchUp struct {
	term   *term
	cron   *cron.Cron
	redis  redis.UniversalClient
	client *asynq.Client

	mu   sync.Mutex
	busy map[string]*sync.Mutex // by entry ID; held while slots of the entry are enqueued
}

// newCatchUp reads the entries and the Redis client of s.
func newCatchUp(t *term, s *asynq.Scheduler) (*catchUp, error) {
	c := &catchUp{term: t, busy: make(map[string]*sync.Mutex)}
	var err error
	if c.cron, err = unexported[*cron.Cron](s, "cron"); err != nil {
		return nil, fmt.Errorf("WithCatchUp: %w", err)
	}
	store, err := unexported[interface{ Client() redis.UniversalClient }](s, "rdb")
	if err != nil {
		return nil, fmt.Errorf("WithCatchUp: %w", err)
	}
	c.redis = store.Client()
	c.client = asynq.NewClientFromRedisClient(c.redis)
	_, err = c.entries()
	return c, err
}

// scheduledEntry is an entry of the schedule.
type scheduledEntry struct {
	id       string // made of the entry's spec, task and options
	task     *asynq.Task
	opts     []asynq.Option
	schedule cron.Schedule
}

// entries returns the scheduler's present entries.
func (c *catchUp) entries() ([]scheduledEntry, error) {
	var all []scheduledEntry
	for _, e := range c.cron.Entries() {
		spec, err1 := unexported[string](e.Job, "cronspec")
		task, err2 := unexported[*asynq.Task](e.Job, "task")
		opts, err3 := unexported[[]asynq.Option](e.Job, "opts")
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("WithCatchUp: %w", err)
		}
		sum := sha256.Sum256([]byte(spec + "\x00" + entryOf(task, opts)))
		all = append(all, scheduledEntry{base64.RawURLEncoding.EncodeToString(sum[:16]), task, opts, e.Schedule})
	}
	return all, nil
}

// run enqueues the due slots of all entries until ctx ends. Ticks enqueue their slots in time; run
// enqueues the slots whose ticks did not come or failed.
func (c *catchUp) run(ctx context.Context) {
	for {
		if err := c.enqueueAll(ctx); err != nil && ctx.Err() == nil {
			c.term.logger.Error("latchkit: asynqlock: ticks of the schedule could not be made up, and are tried again", "schedule", c.term.rule.Key, "error", err)
		}
		if !sleep.For(ctx, lookAgain) {
			return
		}
	}
}

// enqueueAll enqueues the due slots of all entries.
func (c *catchUp) enqueueAll(ctx context.Context) error {
	entries, err := c.entries()
	if err != nil {
		return err
	}
	last, err := c.redis.HGetAll(ctx, c.key()).Result()
	if err != nil {
		return err
	}
	now := time.Now()
	for _, e := range entries {
		value := last[e.id]
		delete(last, e.id)
		if slot, claimed, ok := parseSlot(value); ok && !claimed && c.next(e, slot).After(now) {
			continue // nothing is due: the usual case
		}
		err = errors.Join(err, c.enqueueDue(ctx, e))
	}
	return errors.Join(err, c.forget(ctx, last, now))
}

// tick enqueues the due slots of the entry that has this task.
func (c *catchUp) tick(task *asynq.Task) {
	entries, err := c.entries()
	for _, e := range entries {
		if e.task == task {
			err = c.enqueueDue(c.term.ctx, e)
		}
	}
	if err != nil && c.term.ctx.Err() == nil {
		c.term.logger.Error("latchkit: asynqlock: a tick could not be enqueued, and is tried again", "schedule", c.term.rule.Key, "type", task.Type(), "error", err)
	}
}

// enqueueDue enqueues the slots of an entry that are due and not enqueued.
func (c *catchUp) enqueueDue(ctx context.Context, e scheduledEntry) error {
	defer c.lockEntry(e.id)()
	value, err := c.redis.HGet(ctx, c.key(), e.id).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	now := time.Now()
	slot, claimed, ok := parseSlot(value)
	if !ok { // the entry is new
		_, err := c.change(ctx, e, value, formatSlot(now, false))
		return err
	}
	if claimed {
		if err := c.enqueue(ctx, e, slot, true); err != nil {
			return err
		}
		value = formatSlot(slot, false)
	}
	for next := c.next(e, slot); !next.After(now); next = c.next(e, next) {
		if now.Sub(next) > c.term.window {
			continue
		}
		if !c.term.leads() {
			return nil
		}
		taken, err := c.change(ctx, e, value, formatSlot(next, true))
		if err != nil || !taken { // another process leads, or its clock is ahead
			return err
		}
		if err := c.enqueue(ctx, e, next, now.Sub(next) >= lookAgain); err != nil {
			return err
		}
		value = formatSlot(next, false)
	}
	return nil
}

// enqueue enqueues a claimed slot, and records that the slot is enqueued.
func (c *catchUp) enqueue(ctx context.Context, e scheduledEntry, slot time.Time, late bool) error {
	t := c.term
	if !t.leads() {
		return nil
	}
	if t.announce != nil {
		t.announce(e.task, e.opts)
	}
	info, err := c.send(ctx, e, slot)
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict): // the slot was enqueued before
	case errors.Is(err, asynq.ErrDuplicateTask): // a task for the same work is queued
		t.observe(locker.ResultBusy, err)
		t.report(e.task, e.opts, info, err)
	case err != nil:
		t.observe(locker.ResultError, err)
		t.report(e.task, e.opts, info, err)
		return err
	default:
		result := resultEnqueued
		if late {
			result = resultMadeUp
		}
		t.observe(result, nil)
		t.report(e.task, e.opts, info, nil)
		if late {
			t.logger.Info("latchkit: asynqlock: a tick of the schedule is made up", "schedule", t.rule.Key, "type", e.task.Type(), "due", slot)
		}
	}
	_, err = c.change(ctx, e, formatSlot(slot, true), formatSlot(slot, false))
	return err
}

// send enqueues the task of a slot.
func (c *catchUp) send(ctx context.Context, e scheduledEntry, slot time.Time) (*asynq.TaskInfo, error) {
	own, err := optionsOf(e.task)
	if err != nil {
		return nil, err
	}
	kept, named := tickKept, false
	for _, o := range slices.Concat(own, e.opts) {
		switch value := o.Value().(type) {
		case time.Duration:
			if o.Type() == asynq.RetentionOpt {
				kept = max(kept, value)
			}
		case string:
			named = named || o.Type() == asynq.TaskIDOpt
		}
	}
	opts := append(slices.Clone(e.opts), asynq.Retention(kept))
	client := c.term.client
	if unique := client != nil && client.isUnique(e.task); !named && !unique {
		opts = append(opts, asynq.TaskID("tick-"+e.id+"-"+strconv.FormatInt(slot.Unix(), 10)))
	}
	if client != nil {
		return client.EnqueueContext(ctx, e.task, opts...)
	}
	return c.client.EnqueueContext(ctx, e.task, opts...)
}

// change sets the value of the entry e to next, if the value still equals previous. It reports
// whether it has set the value.
func (c *catchUp) change(ctx context.Context, e scheduledEntry, previous, next string) (bool, error) {
	n, err := claimScript.Run(ctx, c.redis, []string{c.key()}, e.id, previous, next, (c.term.window + forgottenAfter).Milliseconds()).Int()
	return n == 1, err
}

// forget deletes the values of the entries in rest, which are no longer in the schedule. It keeps a
// value for some time after its last slot, because leaders with different entries may follow each
// other during a rollout.
func (c *catchUp) forget(ctx context.Context, rest map[string]string, now time.Time) error {
	maps.DeleteFunc(rest, func(_, value string) bool {
		slot, _, ok := parseSlot(value)
		return ok && now.Sub(slot) < c.term.window+forgottenAfter
	})
	if len(rest) == 0 {
		return nil
	}
	return c.redis.HDel(ctx, c.key(), slices.Collect(maps.Keys(rest))...).Err()
}

func (c *catchUp) key() string { return "asynqlock:ticks:{" + braces.Replace(c.term.rule.Key) + "}" }

// next returns the slot of e that follows the given slot.
func (c *catchUp) next(e scheduledEntry, slot time.Time) time.Time {
	next := e.schedule.Next(slot.In(c.cron.Location()))
	if next.IsZero() { // the schedule has no further slot
		return slot.AddDate(1000, 0, 0)
	}
	return next
}

// lockEntry waits until no other goroutine enqueues slots of the entry with this ID. Then it locks
// the entry until leave is called.
func (c *catchUp) lockEntry(id string) (leave func()) {
	c.mu.Lock()
	m := c.busy[id]
	if m == nil {
		m = &sync.Mutex{}
		c.busy[id] = m
	}
	c.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// formatSlot returns the value that stands for slot. A claimed slot is not enqueued yet.
func formatSlot(slot time.Time, claimed bool) string {
	text := strconv.FormatInt(slot.Unix(), 10)
	if claimed {
		text += "?"
	}
	return text
}

// parseSlot reverses formatSlot. ok is false if formatSlot cannot have made value.
func parseSlot(value string) (slot time.Time, claimed, ok bool) {
	number, claimed := strings.CutSuffix(value, "?")
	seconds, err := strconv.ParseInt(number, 10, 64)
	return time.Unix(seconds, 0), claimed, err == nil
}

// optionsOf returns the options that a task was made with. asynq does not export these options.
func optionsOf(t *asynq.Task) ([]asynq.Option, error) {
	return unexported[[]asynq.Option](t, "opts")
}
