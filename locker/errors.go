package locker

import (
	"errors"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Errors for [errors.Is]. They are wrapped in an [*Error], which names the operation and the key.
var (
	// ErrBusy: another holder has the key, and the wait is over. Error.RetryAfter is when to try again.
	ErrBusy = errors.New("somebody else holds the lock")
	// ErrDone: the Rule has Once, and the work is done already.
	ErrDone = errors.New("the work was done already")
	// ErrTooManyWaiters: WithMaxWaiters is reached for this key in this process.
	ErrTooManyWaiters = errors.New("too many callers wait for the lock")
	// ErrLost: the lease ended before its release: it was not renewed in time, or the server names
	// another holder.
	ErrLost = errors.New("the lock was lost")
	// ErrRevoked: somebody called Revoke. errors.Is(err, ErrLost) holds as well.
	ErrRevoked error = revoked{}
	// ErrExpired: the lease reached its AtMost, or the end of its TTL where it is never renewed.
	ErrExpired = errors.New("the lease reached its maximum duration")
	// ErrReleased is the cause of a context whose lease was released.
	ErrReleased = errors.New("the lock was released")
	// ErrUnavailable: the server cannot be asked now. It is never reported as busy.
	ErrUnavailable = store.ErrUnavailable
	// ErrQuorum: too few nodes of a quorum agreed. errors.Is(err, ErrUnavailable) holds as well; what each node said is inside,
	// see [NodeError].
	ErrQuorum = store.ErrQuorum
	// ErrUnsupported: this Locker cannot do that.
	ErrUnsupported = store.ErrUnsupported
	// ErrGone: Revoke found no holder with that fence.
	ErrGone = errors.New("that holder does not hold the lock any more")
	// ErrRefused: Join was shown a Delegation that lets nobody in: the lease is over, or it was never made for this key.
	ErrRefused = errors.New("the lease cannot be joined: it is over, or was not delegated")
	// ErrInvalidKey: the key cannot be locked; the text says what is allowed.
	ErrInvalidKey = store.ErrInvalidKey
	// ErrInvalidRule: the Rule contradicts itself or the Locker's limits; the text says what is allowed.
	ErrInvalidRule = errors.New("invalid rule")
	// ErrUnguarded: a function that needs a lease in its context was called without one.
	ErrUnguarded = errors.New("there is no lease in the context")
	// ErrClosed: the Locker was closed.
	ErrClosed = store.ErrClosed
)

type revoked struct{}

func (revoked) Error() string        { return "the lock was revoked by an operator" }
func (revoked) Is(target error) bool { return target == ErrLost }

// An Error says which operation failed, on which key, and why. Like fs.PathError it is found with errors.As; the reason
// is asked for with errors.Is and the sentinels above. It never holds an owner's token.
type Error struct {
	Op  Op
	Key string
	// RetryAfter estimates when another try may succeed, at least 1 ms and with jitter: see
	// [WithMaxRetryAfter]. Set with ErrBusy and ErrTooManyWaiters, 0 otherwise.
	RetryAfter time.Duration
	// HolderMetadata is the metadata of the holder that an acquire saw last: its [Rule.Metadata] or [WithMetadata]. Set with
	// ErrBusy where the holder has any and the Locker can read it.
	HolderMetadata string
	Err            error
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
