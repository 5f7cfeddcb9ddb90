package locker

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/store"
)

// Errors for [errors.Is]. They are wrapped in an [*Error], which names the operation and the key.
var (
	// ErrBusy: another holder has the key, and the wait is over. Error.RetryAfter says when to try
	// again.
	ErrBusy = errors.New("another holder has the lock")
	// ErrDone: the Rule has OnceFor, and the work is done already.
	ErrDone = errors.New("the work was done already")
	// ErrTooManyWaiters: WithMaxWaiters is reached for this key in this process.
	ErrTooManyWaiters = errors.New("too many callers wait for the lock")
	// ErrLost: the lease ended before its release. The lease was not renewed in time, or the server
	// names another holder.
	ErrLost = errors.New("the lock was lost")
	// ErrRevoked: an operator called Revoke. errors.Is(err, ErrLost) is true as well.
	ErrRevoked error = &errorOf{ErrLost, "the lock was revoked by an operator"}
	// ErrExpired: the lease reached its EndAfter, or the lease is not renewed and reached the end
	// of its TTL.
	ErrExpired = errors.New("the lease reached its maximum duration")
	// ErrReleased is the cause of a context whose lease was released.
	ErrReleased = errors.New("the lock was released")
	// ErrUnavailable: the lock server cannot be reached or cannot answer now. The text says why, as
	// far as it is known: also if the wait was too short for the client to find out, and an earlier
	// call found out. An error that is ErrUnavailable is never also ErrBusy.
	ErrUnavailable = store.ErrUnavailable
	// ErrQuorum: too few nodes of a quorum agreed. errors.Is(err, ErrUnavailable) is true as well.
	// The error contains the error of each node: see [NodeError].
	ErrQuorum = store.ErrQuorum
	// ErrUnsupported: this Locker does not support the operation or the Rule.
	ErrUnsupported = store.ErrUnsupported
	// ErrSelfDeadlock: the context of the call holds the key already, so the caller would
	// wait for itself. [NewReentrant] permits nested holds, and [Detach] makes a context that is no
	// holder. errors.Is(err, ErrUnsupported) is true as well.
	ErrSelfDeadlock error = &errorOf{ErrUnsupported, "self-deadlock: the caller holds the key already"}
	// ErrGone: Revoke found no holder with the given fence.
	ErrGone = errors.New("the holder with this fence does not hold the lock any more")
	// ErrInvalidKey: the key cannot be locked. The text of the error says which keys are allowed.
	ErrInvalidKey = store.ErrInvalidKey
	// ErrInvalidRule: the Rule contradicts itself or the Locker's limits, or an argument of the
	// call is nil. The text of the error says which values are allowed.
	ErrInvalidRule = errors.New("invalid rule")
	// ErrUnguarded: a function that needs a lease in its context was called without one.
	ErrUnguarded = errors.New("there is no lease in the context")
	// ErrClosed: the Locker is being drained, or was closed.
	ErrClosed = store.ErrClosed
)

// NodeError is the error of one node of a quorum. [ErrQuorum] contains a NodeError for each node
// that failed; [errors.As] finds the first of them.
//
//	Node int    // the node's place in the list of clients, from 0
//	Addr string // the address that the node's client connects to; "" when it is not known
//	Err  error
type NodeError = store.NodeError

// An errorOf is an error that errors.Is also takes for another one, of which it is a case.
type errorOf struct {
	of   error
	text string
}

func (e *errorOf) Error() string        { return e.text }
func (e *errorOf) Is(target error) bool { return target == e.of }

// errPanicked is what an Observer gets when a call ended without a result.
var errPanicked = errors.New("a function or a context of the caller has panicked, or has ended the goroutine")

// isNil reports whether v is nil, or a nil pointer, such as a Locker whose constructor has returned
// an error that nobody has checked.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}

// errNil returns the error for a call of op whose Locker or function is nil. The parameter instead
// says what to give.
func errNil(op Op, key, argument, instead string) error {
	return &Error{Op: op, Key: key, Err: fmt.Errorf("%w: the %s is nil; give %s", ErrInvalidRule, argument, instead)}
}

// An Error says which operation failed, on which key, and why. Find it with errors.As, and test for
// the reason with errors.Is and one of the errors above, such as [ErrBusy]. An Error never contains
// an owner's token.
type Error struct {
	Op  Op
	Key string
	// RetryAfter is the time after which another try may succeed. If Rule.KeepFor keeps the key, it
	// is the time for which the key is kept. Otherwise it is an estimate of at most 2 s, to which
	// up to a quarter is added as jitter, from how long the holder has held the key, how long
	// leases with this Rule.Name were held in this process, and the place in the queue. RetryAfter
	// is at least 1 ms with ErrBusy and ErrTooManyWaiters, 1 s when Acquire fails with ErrClosed,
	// and 0 with all other errors, but with ErrQuorum the time until enough nodes vote, if it is known.
	RetryAfter time.Duration
	// HolderMetadata is the metadata of the holder that the acquire saw last ([Rule.Metadata] or
	// [WithMetadata]), with ErrBusy, as far as the Locker can read it. Readers have the metadata of
	// the first of them, and the holders of a semaphore have none.
	HolderMetadata string
	Err            error

	// Only Error shows the following fields, because Err may be shown to clients.
	held    string  // another key that the caller holds
	blocked blocked // with ErrBusy and ErrTooManyWaiters
}

// blocked is what a refused acquire knows of the holder, besides its metadata.
type blocked struct {
	holder  store.Holder
	held    time.Duration // how long the holder has held the key; 0: unknown
	ahead   int           // how many callers and other processes wait in front of the caller, as far as it knows
	command string        // the command that shows the holder and the queue; "" if there is none
}

// Error returns, for example, "latchkit: acquire order:42: another holder has the lock:
// report@pod-7f9c:1, fence 1795000000000000, for 2m3s, 5 wait (retry after 1.2s); latchctl show
// order:42", without what the Locker does not know. The text is for operators. To a client that may
// not see the key and the holder, show Err.
func (e *Error) Error() string {
	text := "latchkit: " + string(e.Op)
	if e.Key != "" {
		text += " " + printable(e.Key)
	}
	text += ": " + e.Err.Error()
	if e.held != "" {
		text += " (it already holds " + printable(e.held) + ")"
	}
	if holder := e.blocked.describe(e.HolderMetadata); holder != "" {
		between := "; "
		if strings.HasSuffix(text, ErrBusy.Error()) {
			between = ": "
		} else if e.HolderMetadata != "" {
			between = "; the holder is "
		}
		text += between + holder
	}
	if e.RetryAfter > 0 {
		text += " (retry after " + e.RetryAfter.Round(time.Millisecond).String() + ")"
	}
	if e.blocked.command != "" {
		text += "; " + e.blocked.command
	}
	return text
}

// describe returns what is known of the holder and of the waiters, or "".
func (b *blocked) describe(metadata string) string {
	var known []string
	switch {
	case b.holder.Foreign:
		known = append(known, "another library or program")
	case b.holder.Kept:
		known = append(known, "a released lease, which its KeepFor keeps locked")
	case metadata != "":
		known = append(known, printable(metadata))
	}
	if b.holder.Fence != 0 {
		known = append(known, "fence "+strconv.FormatUint(b.holder.Fence, 10))
	}
	if b.held > 0 {
		known = append(known, "for "+roughly(b.held))
	}
	if b.ahead > 0 {
		known = append(known, strconv.Itoa(b.ahead)+" wait")
	}
	return strings.Join(known, ", ")
}

// roughly returns d in whole seconds, or in whole milliseconds if d is shorter than 10 s.
func roughly(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// showCommand returns the command that shows key, a key on the server. A key may come from a
// client and the command may be pasted into a shell, so an unusual key is quoted, and for a key
// that cannot be pasted the result is "".
func showCommand(key string) string {
	if key == "" || key[0] == '-' || printable(key) != key {
		return ""
	}
	if strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:._/@%+,-") != "" {
		key = "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
	}
	return "latchctl show " + key
}

// mostPrintable is the largest number of bytes of a key in the text of an error.
const mostPrintable = 200

// printable returns key as it appears in the text of an error. Keys may come from clients, so the
// result is one line of limited length. A key with unprintable characters is quoted.
func printable(key string) string {
	text, rest := shorten(key, mostPrintable), ""
	if text != key {
		rest = "… (" + strconv.Itoa(len(key)) + " bytes)"
	}
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(text) + rest
		}
	}
	return text + rest
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }
