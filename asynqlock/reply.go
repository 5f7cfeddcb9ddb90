package asynqlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// The values of [Problem.Code].
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

// A Verdict says what becomes of a task that has a [Problem].
type Verdict string

// The values of [Problem.Verdict].
const (
	Snoozed  Verdict = "snoozed"  // it comes again; no retry is used
	Dropped  Verdict = "dropped"  // it is deleted
	Archived Verdict = "archived" // it is in the archive
	Failed   Verdict = "failed"   // it is retried like after any other error
)

// A Problem says why a task did not get its lock, or lost it, and what becomes of it. It is the
// error that the middleware returns; asynq shows its text beside the task, so the key is not in it.
// errors.Is and errors.As find the Locker's error in it.
type Problem struct {
	Code       string
	Verdict    Verdict
	RetryAfter time.Duration // when a Snoozed one comes again
	Type       string        // the task's

	err   error // the Locker's
	asynq error // what asynq is to do: RevokeTask, SkipRetry or nil
	note  string
}

// Error returns for example "asynqlock: lock-busy: acquire: somebody else holds the lock (snoozed
// for 10s)".
func (p *Problem) Error() string {
	text := p.err
	op := ""
	if e, ok := errtype.As[*locker.Error](p.err); ok { // whose own text has the key
		text, op = e.Err, e.Op.String()+": "
	}
	fate := string(p.Verdict)
	if p.Verdict == Snoozed {
		fate = fmt.Sprintf("%s for %v", fate, p.RetryAfter.Round(time.Millisecond))
	}
	return fmt.Sprintf("asynqlock: %s: %s%v (%s%s)", p.Code, op, text, fate, p.note)
}

// Unwrap returns the Locker's error, and what asynq is told to do.
func (p *Problem) Unwrap() []error {
	if p.asynq == nil {
		return []error{p.err}
	}
	return []error{p.err, p.asynq}
}

// ErrorType is what instrumentation may take for error.type.
func (p *Problem) ErrorType() string { return p.Code }

// quiet says that nobody has to be told: two tasks met, which is what locks are for.
func (p *Problem) quiet() bool {
	switch p.Code {
	case CodeBusy, CodeRunning, CodeDone:
		return p.Verdict == Snoozed || p.Verdict == Dropped
	default:
		return false
	}
}

// reply is what becomes of the tasks with one kind of error.
type reply struct {
	is      error
	code    string
	verdict Verdict
}

// replies are for tasks that were not run, by what the error is; the first that fits. What may pass
// is put off, for nothing was done: neither an outage nor a mistake in the set-up may cost the
// task.
var replies = []reply{
	{locker.ErrDone, CodeDone, Dropped},
	{locker.ErrTooManyWaiters, CodeTooManyWaiters, Snoozed},
	{locker.ErrClosed, CodeClosed, Snoozed},
	{locker.ErrInvalidKey, CodeInvalidKey, Archived},
	{locker.ErrInvalidRule, CodeMisconfigured, Snoozed},
	{locker.ErrUnsupported, CodeMisconfigured, Snoozed},
	{locker.ErrUnavailable, CodeUnavailable, Snoozed},
	{locker.ErrBusy, CodeBusy, Snoozed}, // or what the rule says
}

// lost is for tasks whose lock ended before their handler did.
var lost = reply{code: CodeLost, verdict: Failed}

// problem finds out what becomes of a task that was not run.
func (j *job) problem(err error) *Problem {
	answer := reply{code: CodeUnavailable, verdict: Snoozed}
	if _, ok := errtype.As[*running](err); ok {
		answer.code = CodeRunning
	} else if errors.Is(err, errStopped) {
		answer.code = CodeClosed
	} else if _, ok := errtype.As[*key.Error](err); ok {
		answer = reply{code: CodeInvalidKey, verdict: Archived}
	} else {
		for _, r := range replies {
			if errors.Is(err, r.is) {
				answer = r
				break
			}
		}
	}
	if answer.code == CodeBusy && !j.before {
		answer.verdict = j.rule.busy
	}
	return answer.problem(j, err)
}

func (r reply) problem(j *job, err error) *Problem {
	p := &Problem{Code: r.code, Verdict: r.verdict, Type: j.task.Type(), err: err}
	switch p.Verdict {
	case Dropped:
		p.asynq = asynq.RevokeTask
	case Archived:
		p.asynq = asynq.SkipRetry
	case Snoozed:
		p.RetryAfter = j.rule.pause(err)
		switch r.code {
		case CodeBusy, CodeRunning, CodeTooManyWaiters:
		case CodeClosed:
			p.RetryAfter = time.Second // another process is there
		default: // Snooze is about a busy key, and an outage may be over soon
			p.RetryAfter = min(p.RetryAfter, soon+rand.N(time.Second))
		}
	case Failed:
	}
	return p
}

// pause is how long a task is put off.
func (r *rule) pause(err error) time.Duration {
	d := r.snooze
	if d == 0 {
		e, ok := errtype.As[*locker.Error](err)
		if !ok || e.RetryAfter == 0 {
			d = soon
		} else {
			d = min(max(e.RetryAfter, time.Second), 10*time.Second)
		}
	}
	return d + rand.N(d/4+1)
}

// soon is when to try again where nobody knows better.
const soon = 5 * time.Second
