package asynqlock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// RunScheduler runs a scheduler in one of several processes: that which holds the lock of the schedule. Start it in all of them;
// the others wait, and the first of these takes over when the one that leads stops, at once, or dies, after its TTL. build is
// called at the beginning of each term, because a scheduler that was stopped cannot be started again. It must make the scheduler
// with the options that it is given, in which it may set whatever is not set:
//
//	err := asynqlock.RunScheduler(ctx, l, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
//		s := asynq.NewScheduler(redis, opts)
//		_, err := s.Register("0 * * * *", asynq.NewTask("report:hourly", nil))
//		return s, err
//	})
//
// It returns when ctx ends, with nil, or with the error of build, of the scheduler's start, or of a Locker that cannot do that or
// was closed. While the lock server cannot be asked it goes on trying.
//
// No tick comes twice. The options' PreEnqueueFunc lets a tick pass only while the lock is held by this process' own clock, which a
// process that was stopped for too long finds out before its late ticks do harm; and each tick claims its slot, made of the task, its
// options and the second, so that processes whose clocks differ do not both enqueue it when one takes over from the other. Ticks that
// nobody enqueued because there was no leader are not made up for.
func RunScheduler(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunScheduler: build is nil; give a function that makes the scheduler")
	}
	return lead(ctx, l, "RunScheduler", opts, func(o *asynq.SchedulerOpts) (scheduler, error) {
		s, err := build(o)
		switch {
		case err != nil:
			return nil, err
		case s == nil:
			return nil, errors.New("build returned no scheduler")
		case unasked(reflect.ValueOf(s)):
			return nil, errors.New("build made the scheduler without the options that it was given; without them ticks come twice")
		}
		return s, nil
	})
}

// RunPeriodicTaskManager is [RunScheduler] for a scheduler whose entries come from a PeriodicTaskConfigProvider. The options that
// build is given belong into PeriodicTaskManagerOpts.SchedulerOpts.
func RunPeriodicTaskManager(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunPeriodicTaskManager: build is nil; give a function that makes the manager")
	}
	return lead(ctx, l, "RunPeriodicTaskManager", opts, func(o *asynq.SchedulerOpts) (scheduler, error) {
		m, err := build(o)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			return nil, errors.New("build returned no manager")
		case unasked(reflect.ValueOf(m).Elem().FieldByName("s")):
			return nil, errors.New("build made the manager without the SchedulerOpts that it was given; without them ticks come twice")
		}
		return m, nil
	})
}

// unasked says whether a scheduler has no PreEnqueueFunc, so that it was not made with the options given to build.
func unasked(s reflect.Value) bool {
	if s.Kind() != reflect.Pointer || s.IsNil() {
		return false
	}
	hook := s.Elem().FieldByName("preEnqueueFunc")
	return hook.Kind() == reflect.Func && hook.IsNil()
}

// A SchedulerOption sets up [RunScheduler] and [RunPeriodicTaskManager].
type SchedulerOption func(*leadership)

// SchedulerKey sets the key of the schedule's lock: schedules that are led apart need different ones. Default: "asynq-scheduler".
func SchedulerKey(key string) SchedulerOption { return func(ls *leadership) { ls.rule.Key = key } }

// SchedulerTTL sets how long the others wait for a leader that died. Default: 10 s.
func SchedulerTTL(d time.Duration) SchedulerOption { return func(ls *leadership) { ls.rule.TTL = d } }

// SchedulerBase sets the options that build's are made of. Its PreEnqueueFunc is called for the ticks that pass.
func SchedulerBase(base asynq.SchedulerOpts) SchedulerOption {
	return func(ls *leadership) { ls.base = base }
}

// scheduler is a Scheduler or a PeriodicTaskManager.
type scheduler interface {
	Start() error
	Shutdown()
}

// leadership is what RunScheduler was given.
type leadership struct {
	locker locker.Locker
	rule   locker.Rule
	base   asynq.SchedulerOpts
	build  func(*asynq.SchedulerOpts) (scheduler, error)
}

// lead serves one term after the other.
func lead(ctx context.Context, l locker.Locker, caller string, opts []SchedulerOption, build func(*asynq.SchedulerOpts) (scheduler, error)) error {
	if isNil(l) {
		return fmt.Errorf("asynqlock: %s: the Locker is nil; make one with locker.NewSingle, and check its error", caller)
	}
	ls := &leadership{locker: l, build: build, rule: locker.Rule{Key: "asynq-scheduler", Name: "asynq-scheduler", TTL: 10 * time.Second}}
	for i, o := range opts {
		if o == nil {
			return fmt.Errorf("asynqlock: %s: option %d is nil; leave it out instead", caller, i+1)
		}
		o(ls)
	}
	for {
		var own error
		err := locker.Run(ctx, l, ls.rule, func(ctx context.Context) error {
			own = ls.serve(ctx)
			return own
		})
		switch {
		case own != nil:
			return fmt.Errorf("asynqlock: %s: %w", caller, own)
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it ends when all is well
		case errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrInvalidKey), errors.Is(err, locker.ErrInvalidRule), errors.Is(err, locker.ErrUnsupported):
			return err
		}
		pause := time.NewTimer(betweenTerms)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// betweenTerms keeps a process that lost the lock, or cannot ask for it, from trying without a pause.
const betweenTerms = 500 * time.Millisecond

// serve runs a scheduler until ctx ends, with the process' wish or with the lock.
func (ls *leadership) serve(ctx context.Context) error {
	lease, _ := locker.FromContext(ctx)
	t := &term{leadership: ls, ctx: ctx, lease: lease, claims: make(map[string]func() bool)}
	if err := t.take("asynq-tick:" + ls.rule.Key); errors.Is(err, locker.ErrInvalidRule) {
		return fmt.Errorf("no tick can be claimed: %w", err)
	}
	s, err := ls.build(t.options())
	if err != nil {
		return err
	}
	if err := s.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	s.Shutdown()
	return nil
}

// term is one leader's time.
type term struct {
	*leadership
	ctx   context.Context
	lease *locker.Lease

	mu     sync.Mutex
	slot   int64                  // the second of the last tick
	claims map[string]func() bool // of the slot, by entry: each asks once
}

func (t *term) options() *asynq.SchedulerOpts {
	o := t.base
	after := o.PreEnqueueFunc
	o.PreEnqueueFunc = func(task *asynq.Task, opts []asynq.Option) {
		if !t.passes(task, opts) {
			// asynq asks nobody whether it may enqueue. The goroutine is the tick's own; when it ends here, its tick does.
			runtime.Goexit()
		}
		if after != nil {
			after(task, opts)
		}
	}
	return &o
}

const (
	// slotKept is how far apart clocks may be for a slot to be found claimed.
	slotKept = 30 * time.Second
	// slotWithin bounds how long a tick waits for the answer to its claim.
	slotWithin = 5 * time.Second
)

// passes says whether this process may enqueue a tick that is due now.
//
// The lease's deadline comes first, because it needs no luck: a process that was stopped finds its ticks and the end of its lease
// due at the same moment, and its context may end after the tick began. Whatever passes here belongs to this term, however long it
// is on its way to asynq, and another term's ticks are due later. That leaves clocks that differ, for which there are the slots.
func (t *term) passes(task *asynq.Task, opts []asynq.Option) bool {
	return t.leads() && t.claim(entryOf(task, opts)) && t.leads()
}

// leads says whether the lock is held now.
func (t *term) leads() bool { return t.ctx.Err() == nil && time.Now().Before(t.lease.Expires()) }

// claim takes the entry's slot of this second, unless another process has. An entry may have two ticks in it, as there is an equal
// entry, or this process was late with the one before. The answer is the same for both.
func (t *term) claim(entry string) bool {
	t.mu.Lock()
	if slot := time.Now().Unix(); slot != t.slot {
		t.slot = slot
		clear(t.claims)
	}
	claim, ok := t.claims[entry]
	if !ok {
		key := "asynq-tick:" + t.rule.Key + ":" + entry + ":" + strconv.FormatInt(t.slot, 10)
		// Without an answer the term decides.
		claim = sync.OnceValue(func() bool { return !errors.Is(t.take(key), locker.ErrBusy) })
		t.claims[entry] = claim
	}
	t.mu.Unlock()
	return claim()
}

// take takes a slot, which stays taken.
func (t *term) take(slot string) error {
	ctx, cancel := context.WithTimeout(t.ctx, slotWithin)
	defer cancel()
	lease, err := t.locker.Acquire(ctx, locker.Rule{Key: slot, Name: "asynq-tick", Wait: locker.NoWait, AtLeast: slotKept})
	if err != nil {
		return err
	}
	_ = lease.Release(ctx) // without an answer as well
	return nil
}

// entryOf names an entry of a schedule: its task and options, in any order.
func entryOf(task *asynq.Task, opts []asynq.Option) string {
	texts := make([]string, len(opts))
	for i, o := range opts {
		texts[i] = o.String()
	}
	slices.Sort(texts)
	h := sha256.New()
	for _, text := range append([]string{task.Type(), string(task.Payload())}, texts...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(text), text) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
