// Package otelredislock traces services that use bsm/redislock directly. It is a package of its
// own, so that only these services link redislock.
package otelredislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// New returns a client that locks through c and traces the calls. The client and its locks have the
// same methods as in redislock, so only the constructor and the types of fields change:
//
//	client := redislock.New(redisClient)                         // before
//	client, err := otelredislock.New(redislock.New(redisClient)) // after
//
// The spans and measurements have the same names as with [otellock.New]. They are
// "acquire NAME" for Obtain with all its retries, "extend NAME" for Refresh, and "release NAME".
// With [otellock.WithHoldSpans] there is also "hold NAME", from Obtain to Release. NAME is the key
// up to its first ':', or "lock" when there is none. Each Refresh counts as a renewal. If a lock is
// neither refreshed nor released, the client does not see that it expires, so the lock counts as
// held. There are no links to the holder and no fences, because redislock does not show them. The
// methods return what redislock returns.
func New(c *redislock.Client, opts ...otellock.Option) (*Client, error) {
	if c == nil {
		return nil, errors.New("otelredislock: New: the client is nil; make a client with redislock.New")
	}
	o, err := otellock.New(opts...)
	if err != nil {
		return nil, err
	}
	return &Client{client: c, observer: o.(observer)}, nil
}

// Client is a redislock.Client whose calls are traced. [New] makes a Client; the zero value is not
// usable. A Client is safe for concurrent use.
type Client struct {
	client   *redislock.Client
	observer observer
}

// observer is what [otellock.New] returns.
type observer interface {
	locker.WaitObserver
	locker.RenewalObserver
}

// Obtain is Obtain of redislock, in a span.
func (c *Client) Obtain(ctx context.Context, key string, ttl time.Duration, opt *redislock.Options) (*Lock, error) {
	l := &Lock{client: c, rule: locker.Rule{Key: key, Name: nameOf(key), TTL: ttl}}
	o, retries := redislock.Options{}, &refusalCounter{RetryStrategy: redislock.NoRetry(), lastAttempt: time.Now()}
	if opt != nil {
		o = *opt
	}
	if o.RetryStrategy != nil {
		retries.RetryStrategy = o.RetryStrategy
	} else {
		l.rule.Wait = locker.NoWait
	}
	o.RetryStrategy = retries

	observed, end := c.begin(ctx, locker.OpAcquire, l.rule)
	if l.rule.Wait != locker.NoWait {
		retries.beginWait = func() func() { return c.observer.Waiting(observed, l.rule, locker.WaitEvent{}) }
	}
	lock, err := c.client.Obtain(observed, key, ttl, &o)
	retries.stopWaiting()
	end(retries.outcome(err, l.rule))
	if err != nil {
		return nil, err
	}
	l.Lock = lock
	l.setExpiry(retries.lastAttempt, ttl)
	l.holdCtx, l.endHold = c.begin(ctx, locker.OpHold, l.rule)
	return l, nil
}

// nameOf returns the default of locker.Rule.Name for key.
func nameOf(key string) string {
	if name, _, ok := strings.Cut(key, ":"); ok && name != "" {
		return name
	}
	return "lock"
}

// begin begins the observation of the operation op. It returns the context with the operation's
// span, and a function that ends the observation.
func (c *Client) begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	ctx, end := c.observer.Begin(ctx, op, rule)
	if end == nil {
		end = func(locker.Outcome) {}
	}
	return ctx, end
}

// refusalCounter is a RetryStrategy that counts the refusals. It can count them, because redislock
// asks it for a pause after each refusal.
type refusalCounter struct {
	redislock.RetryStrategy
	refused      int
	firstRefusal time.Time     // the time of the first refusal
	lastAttempt  time.Time     // the last attempt was sent at this time or later
	beginWait    func() func() // reports the begin of the wait to the Observer, and returns the function for endWait; nil: waits are not observed
	endWait      func()        // reports the end of the wait; nil: no wait was reported
}

func (c *refusalCounter) NextBackoff() time.Duration {
	now := time.Now()
	if c.refused++; c.refused == 1 {
		c.firstRefusal = now
	}
	pause := c.RetryStrategy.NextBackoff()
	if c.refused == 1 && pause > 0 && c.beginWait != nil {
		c.endWait = c.beginWait()
	}
	c.lastAttempt = now.Add(max(pause, 0))
	return pause
}

// stopWaiting calls endWait, if a wait was reported.
func (c *refusalCounter) stopWaiting() {
	if c.endWait != nil {
		c.endWait()
	}
}

// outcome returns the Outcome of an Obtain that ended with err. rule describes the lock.
func (c *refusalCounter) outcome(err error, rule locker.Rule) locker.Outcome {
	out := c.result(err, rule)
	if c.refused > 0 {
		out.Waited = max(time.Since(c.firstRefusal), 1) // at least 1, because 0 would mean that the caller has met no other holder
	}
	return out
}

func (c *refusalCounter) result(err error, rule locker.Rule) locker.Outcome {
	busy := errors.Is(err, redislock.ErrNotObtained)
	switch {
	case err == nil:
		return locker.Outcome{Result: locker.ResultAcquired, Calls: c.refused + 1}
	case busy && rule.Wait == locker.NoWait:
		return locker.Outcome{Result: locker.ResultBusy, Err: joined(locker.ErrBusy, err), Calls: c.refused}
	case busy, c.refused > 0 && errors.Is(err, context.DeadlineExceeded):
		return locker.Outcome{Result: locker.ResultTimeout, Err: joined(locker.ErrBusy, err), Calls: c.refused}
	case errors.Is(err, context.Canceled):
		return locker.Outcome{Result: locker.ResultCanceled, Err: err, Calls: c.refused}
	}
	return locker.Outcome{Result: locker.ResultUnavailable, Err: joined(locker.ErrUnavailable, err), Calls: c.refused + 1}
}

// joined returns the error kind of package locker, with err as its reason.
func joined(kind, err error) error { return fmt.Errorf("%w: %w", kind, err) }

// Lock is a redislock.Lock whose calls are traced. Key, Token, Metadata and TTL are
// redislock's own.
type Lock struct {
	*redislock.Lock

	client  *Client
	rule    locker.Rule
	holdCtx context.Context // the context with the span of the hold
	endHold func(locker.Outcome)
	endOnce sync.Once // calls endHold

	expiry atomic.Pointer[time.Time] // the lock lasts at least until then, by the local clock
}

// setExpiry records that the lock lasts for ttl from the time sent, at which the call was sent.
func (l *Lock) setExpiry(sent time.Time, ttl time.Duration) {
	expiry := sent.Add(ttl)
	l.expiry.Store(&expiry)
}

// Obtain calls Obtain of the client that obtained this lock. A redislock.Lock has this method too.
func (l *Lock) Obtain(ctx context.Context, key string, ttl time.Duration, opt *redislock.Options) (*Lock, error) {
	return l.client.Obtain(ctx, key, ttl, opt)
}

// Refresh is Refresh of redislock, in a span.
func (l *Lock) Refresh(ctx context.Context, ttl time.Duration, opt *redislock.Options) error {
	ctx, end := l.client.begin(ctx, locker.OpExtend, l.rule)
	asked := time.Now()
	err := l.Lock.Refresh(ctx, ttl, opt)
	out := l.outcome(locker.ResultExtended, redislock.ErrNotObtained, err)
	l.client.observer.Renewed(l.holdCtx, l.rule, locker.RenewalEvent{Margin: time.Until(*l.expiry.Load()), TTL: l.rule.TTL, Err: out.Err})
	if err == nil {
		l.setExpiry(asked, ttl)
	}
	end(out)
	return err
}

// Release is Release of redislock, in a span.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return redislock.ErrLockNotHeld // the result of redislock for a nil lock
	}
	ctx, end := l.client.begin(ctx, locker.OpRelease, l.rule)
	err := l.Lock.Release(ctx)
	out := l.outcome(locker.ResultReleased, redislock.ErrLockNotHeld, err)
	l.endOnce.Do(func() { l.endHold(out) })
	end(out)
	return err
}

// outcome returns the Outcome of a call that ended with err. success is the result without an
// error. notHeld is the error with which redislock reports that the lock is not held any more:
// after this error, outcome also ends the hold.
func (l *Lock) outcome(success locker.Result, notHeld, err error) locker.Outcome {
	out := locker.Outcome{Result: success, Calls: 1}
	switch {
	case err == nil:
	case errors.Is(err, notHeld):
		out.Result, out.Err = locker.ResultLost, joined(locker.ErrLost, err)
		out.Cause = "taken"
		l.endOnce.Do(func() { l.endHold(out) })
	case errors.Is(err, context.Canceled):
		out.Result, out.Err = locker.ResultCanceled, err
	default:
		out.Result, out.Err = locker.ResultUnavailable, joined(locker.ErrUnavailable, err)
	}
	return out
}
