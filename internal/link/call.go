package link

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Class says which calls go first when there are more than a flight takes.
type Class uint8

// The classes, the most urgent first. No class starves: there are as many renewals and releases as
// holds, and every flight has room for some undos.
const (
	Renewal Class = iota // renewals, confirmations, extensions, and the questions of those who joined
	Release              // releases
	Step                 // acquires and administrative calls
	Undo                 // undos and repeated releases
	classes
)

// Errors of calls that have no answer of a server. All but ErrNoAnswer prove that nothing was sent.
var (
	ErrNoAnswer = errors.New("no answer in time")
	ErrHangs    = errors.New("too many calls hang at this node; the call was not sent")
	ErrNoState  = errors.New("the state of the cluster cannot be loaded; the call was not sent")
	ErrLeft     = errors.New("the caller left before the call was sent")
)

// A Call is one command for one node. Its maker fills in the exported fields and hands the call to
// [Links] once. The words of a call are never used again, because a hook may keep them.
type Call struct {
	Script *Script // that Words run; nil: Words are a plain command
	Words  []any
	Key    string // by which a Cluster finds the node
	Class  Class
	Acked  bool // [Call.Acks] is wanted

	// Told is called with the answer, on a goroutine of the link: it must not wait for anything.
	// With nil, Done is signalled.
	Told func(*Call)

	values context.Context // whose values hooks see
	sent   time.Time
	hops   int  // how often it was sent to another node
	asking bool // the slot is on its way to the node
	done   chan struct{}
	fate   atomic.Int32

	text    string
	err     error
	acks    int
	acksErr error
}

// What becomes of a call. The first to swap the fate decides: a caller may leave in the instant of
// the flight's start, or of the answer.
const (
	fresh    int32 = iota // not handed over yet
	listed                // waits for a flight: the caller can take it back
	underWay              // was perhaps sent
	answered
	left
)

// Done is signalled when the answer is there, for one receiver.
func (c *Call) Done() <-chan struct{} { return c.done }

// Answer is what the node said. It is there after Done, and for Told.
func (c *Call) Answer() (string, error) { return c.text, c.err }

// Acks is how many replicas have acknowledged what the call has written, or why that is not known.
func (c *Call) Acks() (int, error) { return c.acks, c.acksErr }

// Sent is no later than when the call went out, and no earlier than when it was handed over.
func (c *Call) Sent() time.Time { return c.sent }

// Leave is for a caller that does not wait any more; Answer must not be used after it. It says
// whether the call was perhaps sent: one that was still in the list never will be.
func (c *Call) Leave() (sent bool) {
	for {
		switch fate := c.fate.Load(); fate {
		case listed, underWay:
			if c.fate.CompareAndSwap(fate, left) {
				return fate == underWay
			}
		default:
			return true
		}
	}
}

// Recall takes back a call that was not sent, which is never sent or answered then. It is false
// when the call was perhaps sent.
func (c *Call) Recall() bool { return c.fate.CompareAndSwap(listed, left) }

// hand makes a fresh call one that is listed.
func (c *Call) hand(ctx context.Context, now time.Time) {
	c.values, c.sent = ctx, now
	c.fate.Store(listed)
}

// expect makes the channel by which the caller learns of an answer that another goroutine hands
// out. It comes before the call may be told.
func (c *Call) expect() {
	if c.Told == nil && c.done == nil {
		c.done = make(chan struct{}, 1)
	}
}

// there is the channel of a call that its caller's goroutine has answered.
var there = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// take is true for whoever may send the call: its caller has not left.
func (c *Call) take() bool { return c.fate.CompareAndSwap(listed, underWay) }

// relist makes a call that was provably not executed one that waits again. It is false when its
// caller has left meanwhile.
func (c *Call) relist() bool { return c.fate.CompareAndSwap(underWay, listed) }

// answer ends a call that is under way. Whoever has abandoned it hears nothing.
func (c *Call) answer(text string, err error) {
	if c.fate.CompareAndSwap(underWay, answered) {
		c.tell(text, err)
	}
}

// refuse ends a call that was not sent.
func (c *Call) refuse(err error) {
	if c.fate.CompareAndSwap(listed, answered) {
		c.tell("", err)
	}
}

func (c *Call) tell(text string, err error) {
	c.text, c.err = text, err
	if c.Told != nil {
		c.Told(c)
		return
	}
	if c.done == nil { // a direct call: its caller is here
		c.done = there
		return
	}
	c.done <- struct{}{}
}

// command is what is sent; in full it carries the script's text.
func (c *Call) command(ctx context.Context, inFull bool) once {
	words := c.Words
	if inFull {
		words = c.Script.inFull(words)
	}
	return once{redis.NewStringCmd(ctx, words...)}
}

// result reads the answer of a command, whose sending has returned err.
func result(cmd once, err error) (string, error) {
	text, own := cmd.Result()
	if own == nil && err != nil && text == "" { // a hook has objected
		return "", err
	}
	return text, own
}

// unknown says whether the node does not know the script of a call by its name.
func (c *Call) unknown(err error) bool {
	return err != nil && c.Script != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// replied says whether a node has answered, be it with an error.
func replied(err error) bool {
	if err == nil {
		return true
	}
	var reply redis.Error
	return errors.As(err, &reply)
}
