package asynqlock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
)

// term is the time during which one process leads.
type term struct {
	*leadership
	ctx   context.Context
	lease *locker.Lease
	opts  *asynq.SchedulerOpts // the scheduler's options, which build may have changed

	probe  *asynq.Task // a task that shows whether the scheduler calls PreEnqueueFunc
	probed atomic.Bool

	mu     sync.Mutex
	slot   int64                  // the Unix time of the last tick, in seconds
	claims map[string]func() bool // the claims of the slot, by entry; each claim is sent once
}

// options returns the options that build gets.
func (t *term) options() *asynq.SchedulerOpts {
	o := t.base
	after := o.PreEnqueueFunc
	t.probe = asynq.NewTask("asynqlock:probe", nil)
	o.PreEnqueueFunc = func(task *asynq.Task, opts []asynq.Option) {
		switch {
		case task == t.probe:
			t.probed.Store(true)
		case t.mayEnqueue(task, opts):
			if after != nil {
				after(task, opts)
			}
			if t.client == nil {
				t.observe(resultEnqueued, nil)
				return // asynq itself enqueues the tick
			}
			info, err := t.client.EnqueueContext(t.ctx, task, opts...)
			t.observe(resultOf(err), err)
			t.report(task, opts, info, err)
		}
		// When PreEnqueueFunc returns, asynq enqueues the tick. Each tick has its own goroutine, so
		// asynq enqueues nothing if the goroutine ends here.
		runtime.Goexit()
	}
	t.opts = &o
	return &o
}

// The operation that Observers see, and its own result. A tick is also locker.ResultBusy if its
// slot was enqueued before, and locker.ResultLost if this process leads no longer.
const (
	opTick         locker.Op     = "tick"
	resultEnqueued locker.Result = "enqueued"
)

// observe notifies the Locker's Observer of the result of a tick.
func (t *term) observe(result locker.Result, err error) {
	_, end := t.lease.Observe(t.ctx, opTick)
	end(locker.Outcome{Result: result, Err: err})
}

// resultOf returns the result of a tick that this package has tried to enqueue.
func resultOf(err error) locker.Result {
	switch {
	case err == nil:
		return resultEnqueued
	case errors.Is(err, asynq.ErrDuplicateTask):
		return locker.ResultBusy
	}
	return locker.ResultError
}

// report passes the outcome of a tick that this package has enqueued to the functions that asynq
// would have called.
func (t *term) report(task *asynq.Task, opts []asynq.Option, info *asynq.TaskInfo, err error) {
	if t.opts.PostEnqueueFunc != nil {
		t.opts.PostEnqueueFunc(info, err)
	}
	if err != nil && t.opts.EnqueueErrorHandler != nil { //nolint:staticcheck // deprecated, but asynq calls it as well
		t.opts.EnqueueErrorHandler(task, opts, err) //nolint:staticcheck // asynq calls this deprecated function as well
	}
}

const (
	// slotKept is how long a claimed slot stays claimed. The clocks of two leaders may differ by at
	// most this time.
	slotKept = 30 * time.Second
	// slotWithin is the longest time that a tick waits for the answer to its claim.
	slotWithin = 5 * time.Second
)

// mayEnqueue reports whether this process may enqueue a tick of task that is due now.
//
// mayEnqueue checks the lease's deadline first, because the end of the context may come too late.
// When a paused process continues, its ticks and the end of its lease are due at the same moment. A
// tick that passes belongs to this term, even if it reaches asynq later. The ticks of the next term
// are due later, unless the clocks of the two leaders differ. If the clocks differ, the claims of
// slots prevent a second enqueueing of the tick.
func (t *term) mayEnqueue(task *asynq.Task, opts []asynq.Option) bool {
	switch {
	case !t.leads():
	case !t.claimSlot(entryOf(task, opts)):
		t.observe(locker.ResultBusy, nil)
		return false
	case t.leads():
		return true
	}
	t.observe(locker.ResultLost, locker.ErrLost)
	return false
}

// leads reports whether this process holds the lock now.
func (t *term) leads() bool { return t.ctx.Err() == nil && time.Now().Before(t.lease.Expires()) }

// claimSlot takes the entry's slot of this second, and returns true. It returns false if another
// process has taken the slot. Two ticks of this process may claim the same slot, because there are
// two equal entries, or because the previous tick was late. Both ticks get the same result.
func (t *term) claimSlot(entry string) bool {
	t.mu.Lock()
	if slot := time.Now().Unix(); slot != t.slot {
		t.slot = slot
		clear(t.claims)
	}
	claim, ok := t.claims[entry]
	if !ok {
		rule := t.slotRule(entry + ":" + strconv.FormatInt(t.slot, 10))
		claim = sync.OnceValue(func() bool { return t.takeSlot(rule) })
		t.claims[entry] = claim
	}
	t.mu.Unlock()
	return claim()
}

// slotRule returns the Rule of a slot's lock. The slot stays taken for the time slotKept.
func (ls *leadership) slotRule(slot string) locker.Rule {
	return exclusive.Rule(ls.locker, locker.Rule{Key: "asynq-tick:" + ls.rule.Key + ":" + slot, Name: "asynq-tick", Wait: locker.NoWait, KeepFor: slotKept})
}

// takeSlot takes the lock of a slot. It returns false only if another process has taken the slot:
// if there is no answer, the tick passes if this process leads.
func (t *term) takeSlot(slot locker.Rule) bool {
	ctx, cancel := context.WithTimeout(t.ctx, slotWithin)
	defer cancel()
	lease, err := t.locker.Acquire(ctx, slot)
	if err == nil {
		_ = lease.Release(ctx) // KeepFor keeps the slot taken
	}
	return !errors.Is(err, locker.ErrBusy)
}

// entryOf returns the name of a schedule's entry. The name depends on the task and on the options,
// but not on the order of the options.
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
