package link

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
)

// Client has the methods of a client that a link needs. A *redis.Client is a Client.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// pipeliner is a Client that can send several commands at once, on one connection to each node.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

// The limits of a link. Each test of internal/link names those that it measures.
const (
	promptWithin = 20 * time.Millisecond // how long an answer may take if the next call is to be on its caller's goroutine
	lookEvery    = 10 * time.Millisecond // how often a link looks at its batches
	sharedFor    = 50 * time.Millisecond // how long batches join the same context
	// aloneFor bounds a call on its caller's goroutine. It ends together with the calls that began
	// up to sharedFor before it, so its caller is back within 250 ms.
	aloneFor      = 200 * time.Millisecond
	askAgainAfter = 250 * time.Millisecond // how often a question without an answer is sent again
	answerFor     = time.Second            // how long a batch may take, without the time for replicas
	// connectFor is how much longer a batch that was given up may last. Over a new connection, a
	// call needs several round trips. If each of them takes a third of a second, the call is given
	// up, but the connection serves the next calls.
	connectFor   = 2 * time.Second
	mostPatience = 5 * time.Second // the longest Patience that has an effect
	// mostAlone is how many calls may be on their callers' goroutines at the same time. When more
	// callers meet, their calls share batches, until two batches in a row have at most half as many.
	// Four callers are a fifth faster alone, and eight with one script for several calls.
	mostAlone = 4
	// With a client that does not end a call with its context, no call is made on its caller's
	// goroutine if the last answer is older than staleAfter, because idle connections may be dead,
	// or if such a call has been under way for stuckAfter.
	staleAfter = 5 * time.Second
	stuckAfter = 250 * time.Millisecond
	// A call without an answer on its caller's goroutine costs a connection, and a slow node is
	// prompt now and then. So after it, probationAnswers answers must come within promptWithin.
	probationAnswers = 32
	mostActive       = 16       // the largest number of batches under way, without those that were given up
	mostHung         = 64       // the largest number of batches that were given up and have not come back
	mostListed       = 1 << 16  // the largest number of calls that wait to be sent
	mostCalls        = 128      // the largest number of calls in a batch
	mostBytes        = 32 << 10 // the approximate largest size of a batch in bytes
	largeCall        = 2 << 10  // the approximate size in bytes of a renewal of 50 leases
	undoCalls        = 16       // the number of calls in each batch that are reserved for undos
)

// link makes all calls to one node through one client.
type link struct {
	owner  *Links
	client Client
	pipe   pipeliner // nil: each batch has only one call
	ends   ending    // how the client ends a call
	most   int       // the largest number of batches that may hang
	chores calls.Chores

	mu        sync.Mutex
	plain     queue                // the calls that need no acknowledgement
	acked     queue                // the calls that replicas must acknowledge
	brief     contexts             // the contexts of calls on their callers' goroutines
	alone     [mostAlone]time.Time // when these calls began; zero: a free place
	sizes     [2]int               // number of calls in the last two batches that have landed
	prompt    bool                 // the last answer came within promptWithin, and no batch hangs
	answered  time.Time            // when the last answer came
	probation int                  // how many answers must be prompt until a call is on its caller's goroutine again
	hung      int                  // number of batches that were given up and have not returned
	failure   error                // why the last call failed; nil: it succeeded
	trip      time.Duration        // the shortest of the last round trips, roughly; 0: none

	separate atomic.Int32 // the number of further batches in which each call is made by itself: see Together
}

// ending is how a client ends a call that has no answer.
type ending uint8

const (
	endsUnknown     ending = iota // perhaps never
	endsByTimeout                 // after the time-outs in its options
	endsWithContext               // with the context, or after at most aloneFor
)

// endingOf returns how a client with the options o ends a call. go-redis has turned a time-out of
// -1 in the options into 0, which is none, and -2 into -1, which also ignores contexts.
func endingOf(o *redis.Options) ending {
	switch {
	case o.ContextTimeoutEnabled && o.ReadTimeout != -1 && o.WriteTimeout != -1:
		return endsWithContext
	case !o.ContextTimeoutEnabled && o.ReadTimeout > 0 && o.WriteTimeout > 0:
		return endsByTimeout
	}
	return endsUnknown
}

func newLink(owner *Links, c Client) *link {
	l := &link{owner: owner, client: c, most: mostHung}
	// Only a client of exactly this type is pipelined: see the package's comment.
	if own, ok := c.(*redis.Client); ok {
		options := own.Options()
		l.pipe, l.ends = own, endingOf(options)
		if options.PoolSize > 0 {
			l.most = max(min(mostHung, options.PoolSize/2), 1) // the user's calls need the other half of the pool
		}
	}
	l.chores = calls.Chores{Warn: owner.options.Warn, One: owner.options.OfQuorum}
	l.brief.life = aloneFor
	if l.plain.init(l, false, l.pipe, answerFor, 2); l.pipe == nil {
		l.plain.usual = math.MaxInt
	}
	if owner.options.Replicas > 0 {
		pipe, _ := c.(pipeliner) // the client has a Pipeline, because the constructor has checked this for WithReplicaAck
		l.acked.init(l, true, pipe, owner.options.Within+answerFor, 8)
	}
	return l
}

// enlist adds c to the calls that wait for the next batch, which usually begins at once.
func (l *link) enlist(c *Call) {
	q := &l.plain
	if c.Acked {
		q = &l.acked
	}
	l.mu.Lock()
	if l.hung < l.mostFor(c.Class) && q.n < mostListed {
		q.add(c)
		l.mu.Unlock()
		return
	}
	err := l.unanswered(ErrHangs)
	l.mu.Unlock()
	c.refuse(err)
}

// mostFor returns how many batches may hang when a call of the class is sent. A renewal may still
// save its lease, so it is refused later than new calls.
func (l *link) mostFor(class Class) int {
	if class == Renewal {
		return l.most + (l.most+1)/2
	}
	return l.most
}

// makeRoom is called when batches were given up. It begins the batches that may begin now. When too
// many batches hang, it returns the calls that wait, which must be refused.
func (l *link) makeRoom() (refused []*Call) {
	for _, q := range []*queue{&l.plain, &l.acked} {
		for class := range q.waiting {
			if l.hung >= l.mostFor(Class(class)) {
				refused = append(refused, q.waiting[class]...)
				q.drop(class, len(q.waiting[class]))
			}
		}
		for range min(q.n, q.usual-q.active) {
			q.begin()
		}
	}
	return refused
}

// runAlone makes the call on its caller's goroutine, if it may. The result is false when the call
// must wait for a batch.
func (l *link) runAlone(c *Call) bool {
	if l.ends == endsUnknown || c.Acked || c.asking || c.Class == Undo {
		return false
	}
	l.mu.Lock()
	place := l.placeFor(c)
	if place < 0 {
		l.mu.Unlock()
		return false
	}
	l.alone[place] = c.sent
	b := batch{queue: &l.plain, ctx: l.brief.join(c.sent)}
	l.mu.Unlock()
	c.fate.Store(underWay) // no other goroutine knows the call yet
	gotReply := false
	defer func() { // deferred, because a hook may panic
		l.mu.Lock()
		l.alone[place] = time.Time{}
		b.ctx.leave()
		if l.record(time.Since(c.sent), gotReply, b.failure); !gotReply {
			l.probation = probationAnswers
		}
		l.mu.Unlock()
		if !gotReply {
			l.owner.reloadState()
		}
	}()
	gotReply = b.transmit([]*Call{c})
	return true
}

// placeFor returns a free place for a call on its caller's goroutine, or -1 if the call must wait
// for a batch. The caller holds l.mu.
func (l *link) placeFor(c *Call) int {
	if !l.prompt || l.probation > 0 || l.sizes[0]+l.sizes[1] > mostAlone/2 || l.plain.n > 0 || len(l.plain.running) > 0 {
		return -1
	}
	free := -1
	for i, began := range l.alone {
		if began.IsZero() {
			free = i
		} else if l.ends == endsByTimeout && c.sent.Sub(began) >= stuckAfter {
			return -1
		}
	}
	if free < 0 {
		l.sizes = [2]int{mostAlone, mostAlone} // from now on batches, until few calls meet
	}
	if l.ends == endsByTimeout && c.sent.Sub(l.answered) >= staleAfter {
		return -1
	}
	return free
}

// record records what is known after a round trip that took the given time, and whether the node
// has replied. If it has not, failure says why. The caller holds l.mu.
func (l *link) record(took time.Duration, gotReply bool, failure error) {
	l.noteFailure(failure)
	if l.prompt = gotReply && took < promptWithin && l.hung == 0; l.prompt && l.probation > 0 {
		l.probation--
	}
	if !gotReply {
		return
	}
	if l.answered = time.Now(); l.pipe != nil {
		// A longer trip counts little, because it may have been delayed here.
		if l.trip = min(l.trip+l.trip/64, took); l.trip == 0 {
			l.trip = max(took, 1)
		}
		// If a round trip takes almost no time, two batches are best: one at the server, while the
		// callers of the other one run.
		l.plain.usual = int(min(max(l.trip/(100*time.Microsecond), 2), 8))
	}
}

// noteFailure remembers why a call failed, until a call succeeds. It remembers an error reply too,
// which may come when its caller has left: a server that is loading is slow. That the time is over
// does not say why.
func (l *link) noteFailure(err error) {
	switch {
	case err == nil:
		l.failure = nil
	case !errors.Is(err, context.DeadlineExceeded) && (l.failure == nil || !errors.Is(err, os.ErrDeadlineExceeded)):
		l.failure = err
	}
}

// unanswered returns err, the error of calls without an answer, together with the failure that the
// link knows. The failure is only a text, because it may be that of other calls, and then proves
// nothing about these calls. The caller holds l.mu.
func (l *link) unanswered(err error) error {
	if isReply(l.failure) { // or there is none
		return err
	}
	return fmt.Errorf("%w; the last error was: %v", err, l.failure) //nolint:errorlint // see above
}

// isIdle reports whether the link has nothing to do. While calls wait, a batch is active.
func (l *link) isIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alone == [mostAlone]time.Time{} && l.hung+l.plain.active+l.acked.active == 0 && l.chores.Idle()
}

// stop stops the timers of the link.
func (l *link) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plain.stop()
	l.acked.stop()
	l.brief.close()
}
