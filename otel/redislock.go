package otellock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/locker"
)

// Redislock returns a client that locks through c and traces it: for services that use
// bsm/redislock by itself. It has the methods of redislock's client, and so have its locks, so the
// constructor is all that changes:
//
//	client := redislock.New(redisClient)                          // before
//	client, err := otellock.Redislock(redislock.New(redisClient)) // after
//
// The spans and measurements are those of [New], with the same names: "acquire NAME" for Obtain
// with all its retries, "extend NAME" for Refresh, "release NAME", and with [WithHoldSpans] "hold
// NAME" from Obtain to Release. NAME is the key up to its first ':', "lock" when there is none.
// What the methods return is what redislock returns.
func Redislock(c *redislock.Client, opts ...Option) (*RedislockClient, error) {
	if c == nil {
		return nil, errors.New("otellock: Redislock: the client is nil; give one of redislock.New")
	}
	o, err := New(opts...)
	if err != nil {
		return nil, err
	}
	return &RedislockClient{client: c, observer: o}, nil
}

// RedislockClient is a redislock.Client whose calls are traced. [Redislock] makes one; its zero
// value is not usable. It is safe for concurrent use.
type RedislockClient struct {
	client   *redislock.Client
	observer locker.Observer
}

// Obtain is redislock's Obtain, in a span.
func (c *RedislockClient) Obtain(ctx context.Context, key string, ttl time.Duration, opt *redislock.Options) (*RedislockLock, error) {
	l := &RedislockLock{client: c, rule: locker.Rule{Key: key, Name: nameOf(key), TTL: ttl}}
	o, retries := redislock.Options{}, &counted{RetryStrategy: redislock.NoRetry()}
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
	lock, err := c.client.Obtain(observed, key, ttl, &o)
	end(retries.outcome(err, l.rule))
	if err != nil {
		return nil, err
	}
	l.Lock = lock
	_, l.endHold = c.begin(ctx, locker.OpHold, l.rule)
	return l, nil
}

// nameOf is the default of locker.Rule.Name.
func nameOf(key string) string {
	if name, _, ok := strings.Cut(key, ":"); ok && name != "" {
		return name
	}
	return "lock"
}

// begin begins an observation, which end ends.
func (c *RedislockClient) begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	ctx, end := c.observer.Begin(ctx, op, rule)
	if end == nil {
		end = func(locker.Outcome) {}
	}
	return ctx, end
}

// counted counts the refusals: redislock asks for a pause after each.
type counted struct {
	redislock.RetryStrategy
	refused int
}

func (c *counted) NextBackoff() time.Duration {
	c.refused++
	return c.RetryStrategy.NextBackoff()
}

// outcome returns the Outcome of an Obtain.
func (c *counted) outcome(err error, rule locker.Rule) locker.Outcome {
	waited := c.refused > 0
	switch {
	case err == nil:
		return locker.Outcome{Result: locker.ResultAcquired, Calls: c.refused + 1}
	case errors.Is(err, redislock.ErrNotObtained) && rule.Wait == locker.NoWait:
		return locker.Outcome{Result: locker.ResultBusy, Err: busy(err), Calls: c.refused}
	case errors.Is(err, redislock.ErrNotObtained):
		return locker.Outcome{Result: locker.ResultTimeout, Err: busy(err), Calls: c.refused}
	case waited && errors.Is(err, context.DeadlineExceeded):
		return locker.Outcome{Result: locker.ResultTimeout, Err: busy(err), Calls: c.refused}
	case errors.Is(err, context.Canceled):
		return locker.Outcome{Result: locker.ResultCanceled, Err: err, Calls: c.refused}
	}
	return locker.Outcome{Result: locker.ResultUnavailable, Err: unavailable(err), Calls: c.refused + 1}
}

func busy(err error) error        { return fmt.Errorf("%w: %w", locker.ErrBusy, err) }
func lost(err error) error        { return fmt.Errorf("%w: %w", locker.ErrLost, err) }
func unavailable(err error) error { return fmt.Errorf("%w: %w", locker.ErrUnavailable, err) }

// RedislockLock is a redislock.Lock whose calls are traced. Key, Token, Metadata and TTL are
// redislock's own.
type RedislockLock struct {
	*redislock.Lock

	client  *RedislockClient
	rule    locker.Rule
	endHold func(locker.Outcome)
	ended   sync.Once // the hold was
}

// Obtain is the Obtain of the client that this lock was obtained with: redislock's locks have it
// too.
func (l *RedislockLock) Obtain(ctx context.Context, key string, ttl time.Duration, opt *redislock.Options) (*RedislockLock, error) {
	return l.client.Obtain(ctx, key, ttl, opt)
}

// Refresh is redislock's Refresh, in a span.
func (l *RedislockLock) Refresh(ctx context.Context, ttl time.Duration, opt *redislock.Options) error {
	ctx, end := l.client.begin(ctx, locker.OpExtend, l.rule)
	err := l.Lock.Refresh(ctx, ttl, opt)
	end(l.outcome(locker.ResultExtended, redislock.ErrNotObtained, err))
	return err
}

// Release is redislock's Release, in a span.
func (l *RedislockLock) Release(ctx context.Context) error {
	if l == nil {
		return redislock.ErrLockNotHeld // redislock returns the same
	}
	ctx, end := l.client.begin(ctx, locker.OpRelease, l.rule)
	err := l.Lock.Release(ctx)
	out := l.outcome(locker.ResultReleased, redislock.ErrLockNotHeld, err)
	l.ended.Do(func() { l.endHold(out) })
	end(out)
	return err
}

// outcome returns the Outcome of a call. If the lock is not held any more, it ends the hold.
func (l *RedislockLock) outcome(done locker.Result, notHeld, err error) locker.Outcome {
	out := locker.Outcome{Result: done, Calls: 1}
	switch {
	case err == nil:
	case errors.Is(err, notHeld):
		out.Result, out.Err = locker.ResultLost, lost(err)
		l.ended.Do(func() { l.endHold(out) })
	case errors.Is(err, context.Canceled):
		out.Result, out.Err = locker.ResultCanceled, err
	default:
		out.Result, out.Err = locker.ResultUnavailable, unavailable(err)
	}
	return out
}
