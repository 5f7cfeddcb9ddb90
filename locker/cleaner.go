package locker

import (
	"context"
	"errors"
	"sync"
	"time"
)

// cleaner finishes, in the background, the releases whose answer nobody waits for any more: grants that came too late,
// acquires that were abandoned in flight, releases without an answer. It repeats each until it is answered, or until the
// server has forgotten the lease by itself. One goroutine, which exists only while there is work. An Engine has one, and so
// has each node of a quorum.
type cleaner struct {
	calls      *callers
	release    func(context.Context, Claim) (Grant, error)
	background context.Context // of the calls
	closing    <-chan struct{} // closed when stop is near
	one        bool            // of several servers: when all is about to close, one that is down is not waited for
	work       tasks           // what is not confirmed yet

	mu      sync.Mutex
	queue   []chore
	running bool
	hurry   chan struct{} // closed by stop's end: no more pauses
}

// chore is one release to be confirmed.
type chore struct {
	claim   Claim
	keep    time.Time // Rule.AtLeast holds until then; zero: no AtLeast
	useless time.Time // from then on there is nothing left to release
}

// at is the claim when it is sent at that time.
func (ch *chore) at(now time.Time) Claim {
	claim := ch.claim
	if !ch.keep.IsZero() {
		claim.Keep = max(0, ch.keep.Sub(now))
	}
	return claim
}

func (c *cleaner) init() {
	c.hurry = make(chan struct{})
}

// add hands over a release. After Close it is dropped: the key runs out by its TTL.
func (c *cleaner) add(ch chore) {
	if !c.work.enter() {
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

// run works off the queue. A server that does not answer one release will not answer the others either, so it pauses
// before it goes on.
func (c *cleaner) run() {
	for {
		for pause := range betweenRepeats {
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
func (c *cleaner) try(ch chore) bool {
	select {
	case <-c.hurry:
		c.done()
		return true
	default:
	}
	if time.Now().After(ch.useless) {
		c.done()
		return true
	}
	claim := ch.at(time.Now())
	ctx, cancel := context.WithTimeout(c.background, callTimeout)
	defer cancel()
	select {
	case r := <-ask(c.calls, func() (Grant, error) { return c.release(ctx, claim) }):
		if r.err != nil {
			c.failed(r.err)
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
func (c *cleaner) first() (chore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.queue, c.running = nil, false
		return chore{}, false
	}
	return c.queue[0], true
}

// failed puts the oldest chore behind the others, one of which may be answered. When all is about to close, what the server
// refuses for good is not worth waiting for; nor is one of several servers that is down, and has forgotten it or will find it
// run out.
func (c *cleaner) failed(err error) {
	if no, ok := errors.AsType[*Refusal](err); ok && (c.one || !no.Temporary) {
		select {
		case <-c.closing:
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
func (c *cleaner) done() {
	c.mu.Lock()
	c.queue = c.queue[1:]
	c.mu.Unlock()
	c.work.leave()
}

// stop waits until all is confirmed, at most until ctx ends, and then drops the rest.
func (c *cleaner) stop(ctx context.Context) error {
	c.work.close()
	err := c.work.wait(ctx)
	close(c.hurry)
	return err
}
