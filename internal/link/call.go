package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Class is the urgency of a call. The class decides which calls go first when not all calls fit
// into a batch.
type Class uint8

// The classes, the most urgent first. No class starves: there are at most as many renewals and
// releases as holds, and every batch has room for some undos.
const (
	Renewal Class = iota // renewals, confirmations, extensions
	Release              // releases
	Ask                  // acquires and administrative calls
	Undo                 // undos and repeated releases
	classes
)

// Errors of calls that got no answer from a server. Each of these errors except ErrNoAnswer
// proves that the call was not sent.
var (
	ErrNoAnswer = errors.New("no answer in time")
	ErrHangs    = errors.New("too many calls hang at this node; the call was not sent")
	ErrNoState  = errors.New("the state of the cluster cannot be loaded; the call was not sent")
	ErrLeft     = errors.New("the caller left before the call was sent")
)

// A Call is one command for one node. The code that makes a call sets the exported fields, and
// gives the call to [Links] once. The words of a call are never reused, because a hook may keep
// them.
type Call struct {
	Script *Script // the script that Words run; nil: Words are a plain command
	Words  []any
	Key    string // the key by which a Cluster finds the node
	Copy   []any  // memory for the copy of the words that is sent first; may be nil
	Class  Class
	Acked  bool // the caller needs [Call.Acks]

	// Together is the script that makes this call and other calls of the same kind at once, if they
	// travel in one batch. Together is nil if there is no such script.
	Together *Together

	// Repeatable is set if the node may execute the call twice. If such a call has no answer for a
	// quarter of a second, it is sent again over another connection. Repeatable reports whether the
	// answer to the second call is also the answer to both.
	Repeatable func(answer string) bool
	// Patience is for how long an answer is of use, if that is longer than a second; at most 5 s.
	Patience time.Duration

	// Receiver gets the answered call; nil: the answer is dropped.
	Receiver Receiver

	values context.Context // the context whose values the client's hooks see
	valued valuedContext   // the context of the first attempt to send the call
	sent   time.Time       // a time between the start of [Links.Send] and the sending of the call
	hops   int8            // how many times the call was sent on to another node
	asking bool            // ASKING must come first, because the slot is moving to the node
	fate   atomic.Int32

	doubled atomic.Bool // the call was sent again, or is about to be

	text    string
	err     error
	acks    int
	acksErr error
}

// A Receiver receives the answers of calls.
type Receiver interface {
	// Receive gets a call that was answered. It runs on a goroutine of [Links.Pool], or on
	// the goroutine that makes the call, and must not block.
	Receive(c *Call)
}

// OnAnswer is a Receiver that consists of one function.
type OnAnswer func(*Call)

// Receive calls the function.
func (f OnAnswer) Receive(c *Call) { f(c) }

// signal is the Receiver of a caller that waits for one call.
type signal chan struct{}

func (s signal) Receive(*Call) { s <- struct{}{} }

// These are the states (fates) of a call. The goroutine that is first to change the state
// decides what becomes of the call. For example, a caller may leave at the moment when the
// batch starts, or when the answer comes.
const (
	fresh    int32 = iota // not given to Links yet
	listed                // waits for a batch: the caller can take it back
	underWay              // may have been sent
	answered
	left
)

// Answer returns the answer of the node. Answer may be called in Receive.
func (c *Call) Answer() (string, error) { return c.text, c.err }

// Acks returns the number of replicas that have acknowledged the call's writes, or an error when
// that number is unknown.
func (c *Call) Acks() (int, error) { return c.acks, c.acksErr }

// Doubled reports whether the call was sent twice. Then the second call may still arrive at the node
// after the answer to the first one. Doubled may be called in Receive.
func (c *Call) Doubled() bool { return c.doubled.Load() }

// Values returns the context that the call was given with.
func (c *Call) Values() context.Context { return c.values }

// Leave is for a caller that does not wait any more. Answer must not be used after Leave. The
// result sent is true when the call may have been sent. A call that was still in the queue will
// never be sent.
func (c *Call) Leave() (sent bool) {
	for {
		switch fate := c.fate.Load(); fate {
		case listed, underWay:
			if c.fate.CompareAndSwap(fate, left) {
				return fate == underWay || c.doubled.Load()
			}
		default:
			return true
		}
	}
}

// within returns a context that ends with ctx and has the values of the call's context. Each attempt
// to send the call has its own, because a hook may keep it.
func (c *Call) within(ctx context.Context) context.Context {
	if c.values == context.Background() {
		return ctx
	}
	v := &c.valued
	if v.Context != nil {
		v = new(valuedContext)
	}
	*v = valuedContext{ctx, c.values}
	return v
}

// markListed turns a fresh call into a listed call, with the values of ctx and the time now.
func (c *Call) markListed(ctx context.Context, now time.Time) {
	c.values, c.sent = ctx, now
	c.fate.Store(listed)
}

// markUnderWay marks a listed call as under way. It returns false when the call must not be sent,
// because its caller has left.
func (c *Call) markUnderWay() bool { return c.fate.CompareAndSwap(listed, underWay) }

// markRelisted turns a call under way, which was provably not executed, back into a listed call. It
// returns false when the caller has left.
func (c *Call) markRelisted() bool { return c.fate.CompareAndSwap(underWay, listed) }

// end ends a call that is under way, with the reply text or the error err. If the caller has
// left, the answer is dropped.
func (c *Call) end(text string, err error) {
	if c.fate.CompareAndSwap(underWay, answered) {
		c.deliver(text, err)
	}
}

// refuse ends a call that was not sent, with the error err.
func (c *Call) refuse(err error) {
	if c.fate.CompareAndSwap(listed, answered) {
		c.deliver("", err)
	}
}

func (c *Call) deliver(text string, err error) {
	if err != nil && c.doubled.Load() && !errors.Is(err, ErrNoAnswer) {
		err = fmt.Errorf("%w; one of two calls ended with: %v", ErrNoAnswer, err) //nolint:errorlint // the error of one call proves nothing about the other
	}
	c.text, c.err = text, err
	if c.Receiver != nil {
		c.Receiver.Receive(c)
	}
}

// command returns the command to send. With inFull, the command carries the script's text. Each
// command has its own copy of the words. A hook may change the words, for example put a prefix
// before all keys, but the next attempt must begin with the original words.
func (c *Call) command(ctx context.Context, inFull bool) noRetryCmd {
	words := append(c.Copy, c.Words...)
	if c.Copy = nil; inFull {
		words[0], words[1] = "eval", c.Script.text
	}
	return noRetryCmd{redis.NewStringCmd(ctx, words...)}
}

// resultOf returns the answer of the command cmd. The parameter err is the error that sending the
// command has returned.
func resultOf(cmd noRetryCmd, err error) (string, error) {
	text, own := cmd.Result()
	if own == nil && err != nil && text == "" { // a hook has returned the error without setting it in the command
		return "", err
	}
	return text, own
}

// lacksScript reports whether err, the call's answer, shows that the node does not have the call's
// script, or refuses EVALSHA. Then the call is sent again with the script's text.
func (c *Call) lacksScript(err error) bool {
	return err != nil && c.Script != nil && (redis.HasErrorPrefix(err, "NOSCRIPT") || refusesEvalSHA(err))
}

// refusesEvalSHA reports whether the node knows no EVALSHA, or its ACL forbids it.
func refusesEvalSHA(err error) bool {
	return (redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "NOPERM")) &&
		strings.Contains(strings.ToLower(err.Error()), "evalsha")
}

// isReply reports whether err shows that the node has answered: err is nil or an error reply.
func isReply(err error) bool {
	_, reply := errors.AsType[redis.Error](err)
	return err == nil || reply
}
