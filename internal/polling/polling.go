// Package polling holds the Store on github.com/bsm/redislock.
package polling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// polling is the Store on redislock. Unlike other Stores it remembers what its owners hold:
// redislock can refresh and release only what it has obtained. What it remembers decides nothing,
// the server does.
type polling struct {
	client *redislock.Client

	mu     sync.Mutex
	held   map[owned]*obtained
	undone map[owned]time.Time // owners that must get nothing any more, until when that matters
	sweep  int                 // how many there must be of both before the next look for those that are over
}

// owned is a key and one of its owners.
type owned struct{ key, owner string }

// obtained is a lock as redislock knows it.
type obtained struct {
	*redislock.Lock
	until time.Time // when the server has surely forgotten it; guarded by the Store's mutex

	renewing sync.Mutex    // held while it is refreshed
	asked    time.Duration // for which it was last obtained or refreshed
}

// New makes the Store.
func New(c *redislock.Client) *polling {
	return &polling{client: c, held: make(map[owned]*obtained), undone: make(map[owned]time.Time), sweep: 64}
}

var _ store.Store = (*polling)(nil)

// Validate refuses what redislock cannot do.
func (p *polling) Validate(c store.Claim) error {
	switch {
	case c.Mode == store.Shared:
		return fmt.Errorf("%w: redislock has no Shared locks", store.ErrUnsupported)
	case c.Once > 0:
		return fmt.Errorf("%w: redislock cannot remember that work is done; leave Once out, or use NewSingle", store.ErrUnsupported)
	}
	return nil
}

// Acquire obtains the key. An owner that has it already gets it again.
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
	if _, undone := p.remember(c, lock); undone { // while we waited for the answer, which nobody else does any more
		if _, err := p.Release(context.WithoutCancel(ctx), c); err != nil {
			return store.Grant{}, err
		}
		return store.Grant{State: store.Undone}, nil
	}
	return store.Grant{State: store.Granted, FenceCount: 1}, nil
}

// obtain asks once. Behind the token stands what no owner has, because redislock takes an owner
// whose token begins like the holder's for the holder. It is no colon, so that no Locker takes the
// lock for a lease of its own kind.
func (p *polling) obtain(ctx context.Context, c store.Claim) (*redislock.Lock, error) {
	return p.client.Obtain(ctx, c.Key, whole(c.TTL), &redislock.Options{Token: c.Owner + "|", Metadata: c.Metadata})
}

// whole is a number of milliseconds: redislock cuts the rest off.
func whole(d time.Duration) time.Duration {
	return time.Duration(redisstore.Millis(d)) * time.Millisecond
}

// Renew refreshes one lock after the other, some at a time. Those without an answer are left
// unanswered.
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

// renew lengthens one lock. Refresh sets what is left, to less as well, so that is looked at before
// where it could happen, and no two of them are under way at once.
func (p *polling) renew(ctx context.Context, c store.Claim) (store.Grant, error) {
	o := p.find(c)
	if o == nil {
		return store.Grant{State: store.NotOurs}, nil
	}
	o.renewing.Lock()
	defer o.renewing.Unlock()
	if c.TTL < o.asked {
		left, err := o.TTL(ctx)
		switch {
		case err != nil:
			return store.Grant{}, redisstore.Refused(err)
		case left >= c.TTL:
			return store.Grant{State: store.Granted}, nil
		}
	}
	o.asked = c.TTL
	p.keep(o, c.TTL)
	switch err := o.Refresh(ctx, whole(c.TTL), nil); {
	case errors.Is(err, redislock.ErrNotObtained):
		p.forget(c)
		return store.Grant{State: store.NotOurs}, nil
	case err != nil:
		return store.Grant{}, redisstore.Refused(err)
	}
	return store.Grant{State: store.Granted}, nil
}

// Release releases the lock, or lets it run out to keep the key. Of an owner whose acquire is
// unanswered nobody knows whether it has the lock: it is obtained, which finds it or makes it, and
// released.
func (p *polling) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.TombstoneTTL > 0 {
		p.undo(c)
	}
	o := p.find(c)
	if o == nil {
		if c.TombstoneTTL == 0 {
			return store.Grant{State: store.NotOurs}, nil
		}
		return store.Grant{State: store.NotOurs}, p.clear(ctx, c)
	}
	var err error
	if c.KeepFor > 0 {
		err = o.Refresh(ctx, whole(c.KeepFor), nil)
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

// clear makes sure that an owner of whom nothing is known has nothing.
func (p *polling) clear(ctx context.Context, c store.Claim) error {
	lock, err := p.obtain(ctx, c)
	if err == nil {
		err = lock.Release(ctx)
	}
	switch err := redisstore.Refused(err); {
	case err == nil, errors.Is(err, redislock.ErrNotObtained), errors.Is(err, redislock.ErrLockNotHeld),
		errors.Is(err, store.ErrInvalidKey): // data that is no lock is nobody's
		return nil
	default:
		return err
	}
}

func (p *polling) find(c store.Claim) *obtained {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[owned{c.Key, c.Owner}]
}

// keep notes that the lock is refreshed for that long now.
func (p *polling) keep(o *obtained, ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(ttl); until.After(o.until) {
		o.until = until
	}
}

// undo notes that the owner is to get nothing any more.
func (p *polling) undo(c store.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy()
	p.undone[owned{c.Key, c.Owner}] = time.Now().Add(c.TombstoneTTL)
}

// remember adds a lock, and says whether its owner was undone meanwhile.
func (p *polling) remember(c store.Claim, lock *redislock.Lock) (o *obtained, undone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy()
	id := owned{c.Key, c.Owner}
	o = &obtained{Lock: lock, asked: c.TTL, until: time.Now().Add(c.TTL)}
	p.held[id] = o
	return o, time.Now().Before(p.undone[id])
}

func (p *polling) forget(c store.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, owned{c.Key, c.Owner})
}

// tidy drops what is over: locks that ran out and were never released. p.mu is held.
func (p *polling) tidy() {
	if len(p.held)+len(p.undone) < p.sweep {
		return
	}
	now := time.Now()
	for id, o := range p.held {
		if o.until.Add(time.Minute).Before(now) {
			delete(p.held, id)
		}
	}
	for id, until := range p.undone {
		if until.Before(now) {
			delete(p.undone, id)
		}
	}
	p.sweep = max(64, 2*(len(p.held)+len(p.undone)))
}
