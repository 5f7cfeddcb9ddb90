package locker

import (
	"errors"
	"strings"
	"time"
)

// What callers ask of an error, with [errors.Is]. They arrive inside an [*Error], which names the operation and the key.
var (
	// ErrBusy: somebody else holds the key, and the wait is over. Error.RetryAfter says when to try again.
	ErrBusy = errors.New("somebody else holds the lock")
	// ErrDone: Rule.Once is asked for and the work was done already.
	ErrDone = errors.New("the work was done already")
	// ErrTooManyWaiters: WithMaxWaiters is reached for this key in this process.
	ErrTooManyWaiters = errors.New("too many callers wait for the lock")
	// ErrLost: the lease ended before its time: its deadline passed unrenewed, or the server says that it is not ours.
	ErrLost = errors.New("the lock was lost")
	// ErrRevoked: somebody called Break. errors.Is(err, ErrLost) holds as well.
	ErrRevoked error = revoked{}
	// ErrExpired: the lease reached its AtMost, or the end of its TTL where it is never renewed.
	ErrExpired = errors.New("the lock reached the longest time it was asked for")
	// ErrReleased is the cause of a context whose lease was released in the ordinary way.
	ErrReleased = errors.New("the lock was released")
	// ErrUnavailable: the server cannot be asked now. It is never reported as busy.
	ErrUnavailable = errors.New("the lock server cannot be asked now")
	// ErrQuorum: too few nodes of a quorum agreed. errors.Is(err, ErrUnavailable) holds as well; what each node said is inside,
	// see [NodeError].
	ErrQuorum error = noQuorum{}
	// ErrUnsupported: this Locker cannot do that.
	ErrUnsupported = errors.New("this Locker cannot do that")
	// ErrGone: Break found that the holder it was told to break does not hold any more.
	ErrGone = errors.New("that holder does not hold the lock any more")
	// ErrRefused: Join was shown a Pass that lets nobody in: the lease is over, or it was never made for this key.
	ErrRefused = errors.New("the lease cannot be joined: it is over, or was not delegated")
	// ErrInvalidKey: the key cannot be locked; the text says what is allowed.
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidRule: the Rule contradicts itself or the Locker's limits; the text says what is allowed.
	ErrInvalidRule = errors.New("invalid rule")
	// ErrUnguarded: something that works under a lease was called without one.
	ErrUnguarded = errors.New("there is no lease in the context")
	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("the Locker was closed")
)

type revoked struct{}

func (revoked) Error() string        { return "the lock was revoked by an operator" }
func (revoked) Is(target error) bool { return target == ErrLost }

type noQuorum struct{}

func (noQuorum) Error() string        { return "too few nodes agreed" }
func (noQuorum) Is(target error) bool { return target == ErrUnavailable }

// An Error says which operation failed, on which key, and why. Like fs.PathError it is found with errors.As; the reason
// is asked for with errors.Is and the sentinels above. It never holds an owner's token.
type Error struct {
	Op  Op
	Key string
	// RetryAfter is when another try may succeed, at least 1 ms: what the holder has left if it does not renew, or what those
	// ahead need if they hold for as long as others of the same Rule.Name did, whichever is shorter. Set with ErrBusy and
	// ErrTooManyWaiters, 0 otherwise.
	RetryAfter time.Duration
	Err        error
}

// Error returns for example "latchkit: acquire order:42: somebody else holds the lock (retry after 1.2s)".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("latchkit: ")
	b.WriteString(e.Op.String())
	if e.Key != "" {
		b.WriteByte(' ')
		b.WriteString(e.Key)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if e.RetryAfter > 0 {
		b.WriteString(" (retry after ")
		b.WriteString(e.RetryAfter.Round(time.Millisecond).String())
		b.WriteByte(')')
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// A Refusal is what a [Store] returns when the server's answer, or its absence, proves that the call had no effect.
// Every other error of a Store counts as unclear: the call may have run, or may still run.
type Refusal struct {
	// Temporary: the same call may succeed soon (a server that loads, fails over, or cannot be dialled).
	Temporary bool
	Err       error
}

// Error returns the text of the server's answer.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the server's answer.
func (r *Refusal) Unwrap() error { return r.Err }
