package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// A Policy sets how the tasks of a rule run. One of [Snooze], [Drop] and [Archive] sets what
// happens to a task whose key is busy; the default is Snooze. [Wait] and the other policies can be
// added to any of these three.
type Policy func(*rule)

// Snooze puts a task off for d, and up to a quarter longer. So if several tasks are put off
// together, they do not all come back at the same time. The task uses no retry for this: see
// [Guard.Configure]. asynq stores these times in whole seconds, and looks for due tasks every
// Config.DelayedTaskCheckInterval, by default every 5 s. With [Drop] or [Archive], Snooze applies
// to the tasks that these policies put off. With [WithWaking], the pause decides only when no task
// calls the next one, and d is at most 30 s. Default: the time for which the Locker expects the
// holder to keep the key, from 1 s to 10 s; with WithWaking, 10 s for a task behind others.
func Snooze(d time.Duration) Policy {
	return func(r *rule) { r.snooze = r.atLeast("Snooze", d, time.Second) }
}

// Drop deletes a task whose key is busy: the holder of the key does the same work. A task that has
// run before is put off instead: it is a retry, or asynq delivers it again although its earlier run
// may still hold the key. To recognise such a task, its lease names it. So [New] refuses Drop and
// [Archive] together with a [Rule] that has KeepFor, a Mode, a Limit or Metadata, and with a Locker
// that shows no holders. If Config.IsFailure does not count a retry, this retry can be
// distinguished from a duplicate only while the earlier run keeps the key.
func Drop() Policy { return func(r *rule) { r.whenBusy(Dropped) } }

// Archive moves a task whose key is busy to the archive, where an operator can inspect the task and
// run it by hand. As with [Drop], a task that has run before is put off instead.
func Archive() Policy { return func(r *rule) { r.whenBusy(Archived) } }

// Wait makes a task wait in its worker for its key, for at most d, before the key counts as busy.
// The wait ends before the task's time-out, because asynq would count a time-out as a retry.
// Without a Wait, a call waits as long as its caller's context allows; an adapter that answers a
// client limits the wait to 5 s; a worker does not wait but puts the task off.
func Wait(d time.Duration) Policy {
	return func(r *rule) { r.wait = r.atLeast("Wait", d, time.Millisecond) }
}

// Once drops a task if a task with its key succeeded less than ttl ago. So Once drops duplicates,
// and tasks that asynq delivers again because it could not record the success. The success is
// recorded in the step that releases the lock.
//
// The payload's text is not checked, because a program writes it and not a client. If that program
// passes on what a client wrote, let the key say how ids are spelled, as in "{payload.order|int}":
// otherwise the task of order 42 also runs as 042.
func Once(ttl time.Duration) Policy {
	return func(r *rule) { r.lock.OnceFor = r.atLeast("Once", ttl, time.Millisecond) }
}

// Rule sets fields of the lock's Rule for all tasks of this rule:
//
//	TTL       how long the server keeps the lock after this process dies; default: the Locker's TTL
//	KeepFor   runs of a key begin at least this time after each other
//	EndAfter  the handler's context ends after this time, and another run may overtake the handler
//	Mode      Shared: such tasks of a key run together, and without others. It needs a Locker with
//	          readers
//	Limit     how many tasks of a key may run at once, in all processes together; default: one, on
//	          every Locker. More than one needs a Locker of locker.NewSemaphore
//	Name      the name of the lock in traces and metrics; default: the task's type. Set a Name if
//	          types contain identifiers
//
// The Keys of [On] make the Key, [Wait] sets the Wait, and [Once] sets OnceFor.
func Rule(base locker.Rule) Policy {
	return func(r *rule) {
		if base.Key != "" || base.Wait != 0 || base.OnceFor != 0 {
			r.refuse("the Rule has a Key, a Wait or OnceFor; the Keys make the Key, and the policies Wait and Once set the others")
		}
		if r.based {
			r.refuse("there are two Rules, and the second would replace the first; write their fields into one")
		}
		r.based = true
		base.OnceFor = r.lock.OnceFor
		r.lock = base
	}
}

// Unique lets a [Client] refuse a task as long as another task of the same type and key exists in
// asynq.
func Unique() Policy { return func(r *rule) { r.unique = true } }

// rule holds the arguments of On.
type rule struct {
	pattern string
	keys    Keys
	key     keyOf // compiled

	busy   Verdict // what happens to a task whose key is busy
	snooze time.Duration
	wait   time.Duration
	lock   locker.Rule // the Rule, without Key and Wait
	unique bool
	based  bool // there was a policy Rule

	err error // the first mistake in the rule
}

func newRule(pattern string, keys Keys, policies []Policy) *rule {
	r := &rule{pattern: pattern, keys: keys, busy: Snoozed, wait: locker.NoWait}
	for _, p := range policies {
		p(r)
	}
	return r
}

// refuse records a mistake in the rule. Only the first mistake is kept.
func (r *rule) refuse(format string, args ...any) {
	r.err = cmp.Or(r.err, fmt.Errorf("asynqlock: On(%q): %w", r.pattern, fmt.Errorf(format, args...)))
}

// whenBusy sets what happens to a task whose key is busy. It records a mistake if this contradicts
// an earlier policy.
func (r *rule) whenBusy(v Verdict) {
	if r.busy != Snoozed && r.busy != v {
		r.refuse("Drop and Archive contradict each other for a busy key; give only one of the two")
	}
	r.busy = v
}

// atLeast returns d, the argument of the policy. It records a mistake in the rule if d is less than
// the parameter least.
func (r *rule) atLeast(policy string, d, least time.Duration) time.Duration {
	if d < least {
		r.refuse("%s(%v); give at least %v, or leave it out", policy, d, least)
	}
	return d
}

// compile checks r, and compiles its keys.
func (r *rule) compile(c *config) (err error) {
	switch {
	case strings.TrimSpace(r.pattern) == "" || strings.Contains(r.typePrefix(), "*"):
		r.refuse("write the type of a task, or the beginning of several types and a '*'")
	case r.keys.compile == nil:
		r.refuse("the Keys are empty; make them with Template, KeyFunc or ByTaskID")
	case r.keys.perTask && r.busy != Snoozed:
		r.refuse("each task has an ID of its own, so Drop and Archive would discard a task that has no duplicate; leave them out")
	case r.keys.perTask && r.unique:
		r.refuse("each task has an ID of its own, so Unique would never find two tasks with the same key; leave it out")
	case c.wakes && r.snooze > longestPause:
		r.refuse("Snooze(%v) together with WithWaking; give at most %v: a task is called when its key is free, "+
			"and Snooze is how long it waits if nobody calls it", r.snooze, longestPause)
	case r.err == nil:
		if r.key, err = r.keys.compile(c); err != nil {
			r.refuse("%w", err)
		}
	}
	return r.err
}

// typePrefix returns the text with which all types that r guards begin.
func (r *rule) typePrefix() string { return strings.TrimSuffix(r.pattern, "*") }

// rules has the rules sorted by pattern, the longest first.
type rules []*rule

// match finds the rule of a type as asynq.ServeMux finds a handler. The result is the rule whose
// pattern equals the type, or otherwise the rule with the longest pattern with which the type
// begins.
func (rs rules) match(typename string) *rule {
	for _, r := range rs {
		if strings.HasPrefix(typename, r.typePrefix()) {
			return r
		}
	}
	return nil
}

func (rs rules) compile(c *config) error {
	slices.SortStableFunc(rs, func(a, b *rule) int { return cmp.Compare(len(b.typePrefix()), len(a.typePrefix())) })
	seen := make(map[string]bool)
	for _, r := range rs {
		if err := r.compile(c); err != nil {
			return err
		}
		if seen[r.typePrefix()] {
			return fmt.Errorf("asynqlock: there are two rules for %q; a pattern is a beginning of types, with or without '*'", r.pattern)
		}
		seen[r.typePrefix()] = true
	}
	if len(rs) == 0 {
		return errors.New("asynqlock: New: there is no rule, so no task would be guarded; add a rule with On")
	}
	return nil
}

// derive makes the Rule of the task's lock.
func (j *job) derive(ctx context.Context) error {
	text, err := j.rule.key(ctx, &j.message)
	if err != nil {
		return err
	}
	j.lock = j.rule.lock
	j.lock.Key, j.lock.Wait = text, shortenWait(ctx, j.wait)
	j.lock.Name = cmp.Or(j.lock.Name, j.task.Type())
	return nil
}

// shortenWait returns wait, or less so that the wait ends before ctx: earlier by a tenth of the
// time that ctx has left, but at most by a second. If ctx ended first, asynq would count a retry of
// the task. A wait of 0 means: as long as ctx allows.
func shortenWait(ctx context.Context, wait time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || wait == locker.NoWait {
		return wait
	}
	left := time.Until(deadline)
	left -= min(left/10, time.Second)
	switch {
	case left < time.Millisecond:
		return locker.NoWait
	case wait == 0:
		return left
	default:
		return min(wait, left)
	}
}
