package calls

import (
	"context"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// Cleaner finishes, in the background, the releases whose answer nobody waits for any more: grants
// that came too late, acquires that were abandoned in flight, releases without an answer. It
// repeats each until it is answered, or until the server has forgotten the lease by itself. One
// goroutine, which exists only while there is work. An Engine has one, and so has each node of a
// quorum.
type Cleaner struct {
	Calls      *Pool
	Release    func(context.Context, store.Claim) (store.Grant, error)
	Background context.Context // of the calls
	Closing    <-chan struct{} // closed when stop is near
	One        bool            // of several servers: when all is about to close, one that is down is not waited for
	work       Tasks           // what is not confirmed yet

	mu      sync.Mutex
	queue   []Chore
	running bool
	hurry   chan struct{} // closed by stop's end: no more pauses
}

// Chore is one release to be confirmed.
type Chore struct {
	Claim   store.Claim
	Keep    time.Time // Rule.AtLeast holds until then; zero: no AtLeast
	Useless time.Time // from then on there is nothing left to release
}

// At is the claim when it is sent at that time.
func (ch *Chore) At(now time.Time) store.Claim {
	claim := ch.Claim
	if !ch.Keep.IsZero() {
		claim.KeepFor = max(0, ch.Keep.Sub(now))
	}
	return claim
}

// Init makes the Cleaner ready for use.
func (c *Cleaner) Init() {
	c.hurry = make(chan struct{})
}

// Add hands over a release. After Close it is dropped: the key runs out by its TTL.
func (c *Cleaner) Add(ch Chore) {
	if !c.work.Enter() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, ch)
	if !c.running {
		c.running = true
		go c.run()
	}
}

// run works off the queue. A server that does not answer one release will not answer the others
// either, so it pauses before it goes on.
func (c *Cleaner) run() {
	for {
		for pause := range BetweenRepeats {
			ch, ok := c.first()
			if !ok {
				return
			}
			if !c.try(ch) {
				select {
				case <-time.After(pause):
				case <-c.hurry:
				}
				continue
			}
			break // the server answers: the next failure pauses shortly again
		}
	}
}

// try makes one call. True: this chore is done with, one way or the other.
func (c *Cleaner) try(ch Chore) bool {
	select {
	case <-c.hurry:
		c.done()
		return true
	default:
	}
	if time.Now().After(ch.Useless) {
		c.done()
		return true
	}
	claim := ch.At(time.Now())
	ctx, cancel := context.WithTimeout(c.Background, Timeout)
	defer cancel()
	select {
	case r := <-Ask(c.Calls, func() (store.Grant, error) { return c.Release(ctx, claim) }):
		if r.Err != nil {
			c.failed(r.Err)
			return false
		}
	case <-ctx.Done():
		c.failed(ctx.Err())
		return false
	}
	c.done()
	return true
}

// first looks at the oldest chore, and ends the goroutine when there is none.
func (c *Cleaner) first() (Chore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.queue, c.running = nil, false
		return Chore{}, false
	}
	return c.queue[0], true
}

// failed puts the oldest chore behind the others, one of which may be answered. When all is about
// to close, what the server refuses for good is not worth waiting for; nor is one of several
// servers that is down, and has forgotten it or will find it run out.
func (c *Cleaner) failed(err error) {
	if no, ok := errtype.As[*store.Refusal](err); ok && (c.One || !no.Temporary) {
		select {
		case <-c.Closing:
			c.done()
			return
		default:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue[1:], c.queue[0])
}

// done takes the oldest chore off.
func (c *Cleaner) done() {
	c.mu.Lock()
	c.queue = c.queue[1:]
	c.mu.Unlock()
	c.work.Leave()
}

// Stop waits until all is confirmed, at most until ctx ends, and then drops the rest.
func (c *Cleaner) Stop(ctx context.Context) error {
	c.work.Close()
	err := c.work.Wait(ctx)
	close(c.hurry)
	return err
}
