// Package polling makes Lockers on clients of github.com/bsm/redislock. Only programs that import
// this package link redislock.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package polling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// New returns a Locker that locks through a client of bsm/redislock. It is for services that use
// redislock already and need waits, renewals and the detection of losses. It is also for proxies
// and servers that do not support subscriptions. This Locker and redislock itself exclude each
// other on the same key.
//
// The Locker has the abilities of redislock's Obtain, Refresh and Release. The server has no queue,
// so waiting processes ask again after pauses (see [locker.WithBackoff]), in no order. Of the
// callers in one process, only the first asks the server. The fence is 0, so databases cannot check
// it. Rule.OnceFor and Mode Shared are refused with ErrUnsupported, and so are Inspect, Revoke and
// RaiseFence. The remaining time of a holder is unknown, so Error.RetryAfter is a guess. An acquire
// without an answer is undone as soon as the server answers again. But the server may execute that
// acquire after the undo, and the answer to the acquire may be lost as well. Then the key stays
// locked for its TTL without a holder.
//
// Give redislock a Redis client with MaxRetries: -1. Otherwise go-redis repeats a release whose
// answer was lost. The repeated release finds no lock, so Release reports ErrLost although it has
// released the lock. The Engine repeats unanswered calls by itself, and knows which answers a
// repeated call can get. [Retries] turns a RetryStrategy of redislock into a Backoff.
func New(c *redislock.Client, opts ...locker.Option) (*locker.Engine, error) {
	if c == nil {
		return nil, errors.New("latchkit: polling.New: the client is nil; make a client with redislock.New")
	}
	e, err := store.NewEngine(newStore(c), opts)
	if err != nil {
		return nil, err
	}
	return e.(*locker.Engine), nil
}

// Retries turns a RetryStrategy of redislock into a Backoff. A RetryStrategy counts its attempts,
// so strategy must return a new one for each wait:
//
//	locker.WithBackoff(polling.Retries(func() redislock.RetryStrategy {
//		return redislock.LimitRetry(redislock.ExponentialBackoff(16*time.Millisecond, time.Second), 20)
//	}))
func Retries(strategy func() redislock.RetryStrategy) locker.Backoff {
	return func(yield func(time.Duration) bool) {
		for s := strategy(); ; {
			if d := s.NextBackoff(); d < 1 || !yield(d) {
				return
			}
		}
	}
}

// polling is the Store on redislock. Unlike other Stores, it remembers the locks of its owners,
// because redislock can refresh and release only a lock that it has obtained. But the server, and
// not this memory, decides who holds a lock.
type polling struct {
	client *redislock.Client

	mu     sync.Mutex
	held   map[keyOwner]*ownedLock
	undone map[keyOwner]time.Time // the owners that must not get a lock any more, each with the end of this prohibition
	tidyAt int                    // tidy runs when both maps together have this size
}

// keyOwner has a key and one of its owners.
type keyOwner struct{ key, owner string }

// ownedLock is a lock that redislock has obtained.
type ownedLock struct {
	*redislock.Lock
	latestEnd time.Time // the latest time at which the key expires; guarded by the Store's mutex

	renewing sync.Mutex    // locked while the lock is refreshed
	lastTTL  time.Duration // the TTL of the last Obtain or Refresh
}

func newStore(c *redislock.Client) *polling {
	return &polling{client: c, held: make(map[keyOwner]*ownedLock), undone: make(map[keyOwner]time.Time), tidyAt: 64}
}

// Capabilities returns what the Store can do besides its steps.
func (p *polling) Capabilities() store.Capabilities { return store.Capabilities{Validate: p.Validate} }

// Validate refuses claims that redislock cannot serve.
func (p *polling) Validate(c store.Claim) error {
	switch {
	case c.Mode == store.Shared:
		return fmt.Errorf("%w: redislock has no Shared locks", store.ErrUnsupported)
	case c.OnceFor > 0:
		return fmt.Errorf("%w: redislock cannot remember that work is done; leave OnceFor out, or use locker.New", store.ErrUnsupported)
	}
	return nil
}

// Acquire obtains the key. An owner that has the key already gets it again.
func (p *polling) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if err := p.Validate(c); err != nil {
		return store.Grant{}, &store.Refusal{Err: err}
	}
	lock, err := p.obtain(ctx, c)
	switch {
	case errors.Is(err, redislock.ErrNotObtained):
		return store.Grant{State: store.Busy, Holder: store.Holder{Left: -1, Foreign: true}}, nil
	case err != nil:
		return store.Grant{}, redisstore.Refused(err)
	}
	if _, undone := p.addLock(c, lock); undone { // the caller has given up the acquire while the call was under way
		if _, err := p.Release(context.WithoutCancel(ctx), c); err != nil {
			return store.Grant{}, err
		}
		return store.Grant{State: store.Undone}, nil
	}
	return store.Grant{State: store.Granted, FenceCount: 1}, nil
}

// obtain makes one attempt. The library redislock regards an owner as the holder if the holder's
// value begins with the owner's token. So obtain appends a character that occurs in no token. The
// character is not a colon, because another Locker would take such a value for one of its own
// leases.
func (p *polling) obtain(ctx context.Context, c store.Claim) (*redislock.Lock, error) {
	return p.client.Obtain(ctx, c.Key, wholeMillis(c.TTL), &redislock.Options{Token: c.Owner + "|", Metadata: c.Metadata})
}

// wholeMillis returns d, rounded up to whole milliseconds, because redislock rounds down.
func wholeMillis(d time.Duration) time.Duration {
	return time.Duration(redisstore.Millis(d)) * time.Millisecond
}

// Renew refreshes the locks. Several locks are refreshed at the same time. For a lock without an
// answer, it returns the error.
func (p *polling) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	const atOnce = 8
	grants, errs := make([]store.Grant, len(cs)), make([]error, len(cs))
	var wg sync.WaitGroup
	for first := range min(atOnce, len(cs)) {
		wg.Go(func() {
			for i := first; i < len(cs); i += atOnce {
				grants[i], errs[i] = p.renew(ctx, cs[i])
			}
		})
	}
	wg.Wait()
	answered := false
	for i, err := range errs {
		grants[i].Err = err
		answered = answered || err == nil
	}
	if !answered {
		return nil, errors.Join(errs...)
	}
	return grants, nil
}

// renew extends one lock. Refresh sets the remaining time, and so could shorten it. If the new TTL
// is smaller than the last TTL, renew reads the remaining time first. Only one renewal of a lock
// runs at a time.
func (p *polling) renew(ctx context.Context, c store.Claim) (store.Grant, error) {
	o := p.find(c)
	if o == nil {
		return store.Grant{State: store.NotOurs}, nil
	}
	o.renewing.Lock()
	defer o.renewing.Unlock()
	if c.TTL < o.lastTTL {
		left, err := o.TTL(ctx)
		switch {
		case err != nil:
			return store.Grant{}, redisstore.Refused(err)
		case left >= c.TTL:
			return store.Grant{State: store.Granted}, nil
		}
	}
	o.lastTTL = c.TTL
	p.recordEnd(o, c.TTL)
	switch err := o.Refresh(ctx, wholeMillis(c.TTL), nil); {
	case errors.Is(err, redislock.ErrNotObtained):
		p.forget(c)
		return store.Grant{State: store.NotOurs}, nil
	case err != nil:
		return store.Grant{}, redisstore.Refused(err)
	}
	return store.Grant{State: store.Granted}, nil
}

// Release releases the lock, or refreshes it to keep the key for KeepFor. After an acquire without
// an answer, it is unknown whether the owner has the lock. In this state, Release obtains the lock
// for this owner and releases the lock.
func (p *polling) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.TombstoneTTL > 0 {
		p.forbid(c)
	}
	o := p.find(c)
	if o == nil {
		if c.TombstoneTTL == 0 {
			return store.Grant{State: store.NotOurs}, nil
		}
		return store.Grant{State: store.NotOurs}, p.releaseUnknown(ctx, c)
	}
	var err error
	if c.KeepFor > 0 {
		err = o.Refresh(ctx, wholeMillis(c.KeepFor), nil)
	} else {
		err = o.Release(ctx)
	}
	switch {
	case errors.Is(err, redislock.ErrLockNotHeld), errors.Is(err, redislock.ErrNotObtained):
		p.forget(c)
		return store.Grant{State: store.NotOurs}, nil
	case err != nil:
		return store.Grant{}, redisstore.Refused(err)
	}
	p.forget(c)
	return store.Grant{State: store.Released}, nil
}

// releaseUnknown makes sure that the owner of c, whose state is unknown, has no lock.
func (p *polling) releaseUnknown(ctx context.Context, c store.Claim) error {
	lock, err := p.obtain(ctx, c)
	if err == nil {
		err = lock.Release(ctx)
	}
	switch err := redisstore.Refused(err); {
	case err == nil, errors.Is(err, redislock.ErrNotObtained), errors.Is(err, redislock.ErrLockNotHeld),
		errors.Is(err, store.ErrInvalidKey): // the key holds other data, so the owner has no lock
		return nil
	default:
		return err
	}
}

func (p *polling) find(c store.Claim) *ownedLock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[keyOwner{c.Key, c.Owner}]
}

// recordEnd records the end of the lock o, which was obtained or refreshed with the given ttl.
func (p *polling) recordEnd(o *ownedLock, ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(ttl); until.After(o.latestEnd) {
		o.latestEnd = until
	}
}

// forbid records that the owner of c must not get a lock any more.
func (p *polling) forbid(c store.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy()
	p.undone[keyOwner{c.Key, c.Owner}] = time.Now().Add(c.TombstoneTTL)
}

// addLock adds lock as the lock of the owner of c, and reports whether this owner was undone
// meanwhile.
func (p *polling) addLock(c store.Claim, lock *redislock.Lock) (o *ownedLock, undone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy()
	id := keyOwner{c.Key, c.Owner}
	o = &ownedLock{Lock: lock, lastTTL: c.TTL, latestEnd: time.Now().Add(c.TTL)}
	p.held[id] = o
	return o, time.Now().Before(p.undone[id])
}

func (p *polling) forget(c store.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, keyOwner{c.Key, c.Owner})
}

// tidy drops expired entries: locks that expired without a release, and owners that were undone
// long ago. The caller holds p.mu.
func (p *polling) tidy() {
	if len(p.held)+len(p.undone) < p.tidyAt {
		return
	}
	now := time.Now()
	for id, o := range p.held {
		if o.latestEnd.Add(time.Minute).Before(now) {
			delete(p.held, id)
		}
	}
	for id, until := range p.undone {
		if until.Before(now) {
			delete(p.undone, id)
		}
	}
	p.tidyAt = max(64, 2*(len(p.held)+len(p.undone)))
}
