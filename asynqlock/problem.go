package asynqlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// These are the values of [Problem.Code].
const (
	CodeBusy           = "lock-busy"
	CodeRunning        = "already-running"
	CodeDone           = "already-done"
	CodeTooManyWaiters = "too-many-waiters"
	CodeInvalidKey     = "invalid-key"
	CodeUnavailable    = "lock-unavailable"
	CodeClosed         = "lock-closed"
	CodeMisconfigured  = "lock-misconfigured"
	CodeLost           = "lock-lost"
)

// A Verdict says what happens to a task that has a [Problem].
type Verdict string

// These are the values of [Problem.Verdict].
const (
	Snoozed  Verdict = "snoozed"  // the task comes again, without using a retry
	Dropped  Verdict = "dropped"  // the task is deleted
	Archived Verdict = "archived" // the task is in the archive
	Failed   Verdict = "failed"   // the task is retried as after any other error
)

// A Problem is the error that the middleware returns for a task that did not get its lock, or lost
// it. A Problem contains the reason, and what happens to the task. asynq shows the text of a
// Problem beside the task, so the text does not contain the key. errors.Is and errors.As find the
// Locker's error in a Problem.
type Problem struct {
	Code       string
	Verdict    Verdict
	RetryAfter time.Duration // when a Snoozed task comes again
	Type       string        // the task's type

	err  error // the Locker's error
	note string
}

// Error returns, for example, "asynqlock: lock-busy: acquire: another holder has the lock (snoozed
// for 10s)".
func (p *Problem) Error() string {
	text := p.err
	op := ""
	if e, ok := errors.AsType[*locker.Error](p.err); ok { // the text of e contains the key
		text, op = e.Err, string(e.Op)+": "
	}
	fate := string(p.Verdict)
	if p.Verdict == Snoozed {
		fate = fmt.Sprintf("%s for %v", fate, p.RetryAfter.Round(time.Millisecond))
	}
	return fmt.Sprintf("asynqlock: %s: %s%v (%s%s)", p.Code, op, text, fate, p.note)
}

// Unwrap returns the Locker's error, and what makes asynq delete or archive the task.
func (p *Problem) Unwrap() []error {
	switch p.Verdict {
	case Dropped:
		return []error{p.err, asynq.RevokeTask}
	case Archived:
		return []error{p.err, asynq.SkipRetry}
	default:
		return []error{p.err}
	}
}

// ErrorType returns the value that instrumentation may use for error.type.
func (p *Problem) ErrorType() string { return p.Code }

// ruling states what happens to the tasks with one kind of error.
type ruling struct {
	sentinel error
	code     string
	verdict  Verdict
}

// rulings are for tasks that did not run; the first ruling that matches the error counts. A task
// with a temporary error is put off, so that the task is not lost in an outage or by a wrong
// configuration.
var rulings = []ruling{
	{errStopped, CodeClosed, Snoozed},
	{locker.ErrDone, CodeDone, Dropped},
	{locker.ErrTooManyWaiters, CodeTooManyWaiters, Snoozed},
	{locker.ErrClosed, CodeClosed, Snoozed},
	{locker.ErrInvalidKey, CodeInvalidKey, Archived},
	{locker.ErrInvalidRule, CodeMisconfigured, Snoozed},
	{locker.ErrUnsupported, CodeMisconfigured, Snoozed},
	{locker.ErrUnavailable, CodeUnavailable, Snoozed},
	{locker.ErrBusy, CodeBusy, Snoozed}, // Drop or Archive of the rule can change this verdict
}

// problem returns the Problem of a task that did not run.
func (j *job) problem(err error) *Problem {
	found := ruling{code: CodeUnavailable, verdict: Snoozed}
	if i := slices.IndexFunc(rulings, func(r ruling) bool { return errors.Is(err, r.sentinel) }); i >= 0 {
		found = rulings[i]
	}
	switch {
	case j.overlaps && errors.Is(err, locker.ErrBusy):
		found = ruling{code: CodeRunning, verdict: Snoozed}
	case found.code == CodeBusy && !j.ranBefore:
		found.verdict = j.rule.busy
	}
	return found.problem(j, err)
}

func (r ruling) problem(j *job, err error) *Problem {
	p := &Problem{Code: r.code, Verdict: r.verdict, Type: j.task.Type(), err: err}
	if p.Verdict != Snoozed {
		return p
	}
	p.RetryAfter = j.rule.pause(err)
	switch r.code {
	case CodeBusy, CodeRunning, CodeTooManyWaiters:
	case CodeClosed:
		p.RetryAfter = time.Second // another process can run the task
	default: // the time of Snooze is not used, because it is for a busy key, and an outage may be over sooner
		p.RetryAfter = min(p.RetryAfter, defaultPause+rand.N(time.Second))
	}
	return p
}

// pause returns how long a task with the error err is put off.
func (r *rule) pause(err error) time.Duration {
	d := r.snooze
	if d == 0 {
		e, ok := errors.AsType[*locker.Error](err)
		if !ok || e.RetryAfter == 0 {
			d = defaultPause
		} else {
			d = min(max(e.RetryAfter, time.Second), 10*time.Second)
		}
	}
	return d + rand.N(d/4+1)
}

// defaultPause is the pause before another attempt, if neither the rule nor the error sets a pause.
const defaultPause = 5 * time.Second
