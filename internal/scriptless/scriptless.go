// Package scriptless has the Store for servers that forbid scripts. The Store takes a lease with
// SET NX PX. It renews and releases a lease with WATCH, MULTI and EXEC on one connection.
package scriptless

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// Store is the Store without scripts.
type Store struct {
	client   redis.UniversalClient
	deletion atomic.Int32 // the index in deletions of the command to try
}

// New makes the Store.
func New(c redis.UniversalClient) *Store { return &Store{client: c} }

// Capabilities returns what the Store can do besides its steps.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{Inspect: s.Inspect, Validate: s.Validate}
}

// Validate refuses readers, which need scripts.
func (s *Store) Validate(c store.Claim) error {
	if c.Mode == store.Shared {
		return fmt.Errorf("%w: a Locker without scripts has no Shared locks; use NewReadWrite", store.ErrUnsupported)
	}
	return nil
}

// Acquire sets the key if it is free. The same transaction reads the key, so that an owner finds
// its lease when it asks again.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if err := s.Validate(c); err != nil {
		return store.Grant{}, &store.Refusal{Err: err}
	}
	set := newNoRetryCmd(ctx, "set", c.Key, valueOf(c.Owner, c.Metadata), "px", redisstore.Millis(c.TTL), "nx")
	var value *redis.StringCmd
	var left *redis.DurationCmd
	var undone, done *redis.IntCmd
	cmds, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		_ = p.Process(ctx, set)
		value, left = p.Get(ctx, c.Key), p.PTTL(ctx, c.Key)
		undone, done = p.Exists(ctx, redisstore.TombstoneKey(c.Key, c.Owner)), p.Exists(ctx, redisstore.DoneKey(c.Key))
		return nil
	})
	if err := firstFailure(cmds, err); err != nil {
		return store.Grant{}, refused(err)
	}
	taken := set.Err() == nil
	h := parse(value.Val(), left.Val())
	switch ours := h.owner == c.Owner; {
	case undone.Val() > 0:
		return s.giveBack(ctx, c, ours, store.Undone)
	case c.OnceFor > 0 && done.Val() > 0: // also when the owner asks again, because it must still give back what its first acquire took
		return s.giveBack(ctx, c, ours, store.Done)
	case taken:
		return granted, nil
	case ours: // the owner has repeated its acquire, so the lease must last for the whole TTL again
		return s.renew(ctx, c, store.Grant{State: store.Busy, Holder: store.Holder{Left: time.Millisecond}})
	}
	return store.Grant{State: store.Busy, Holder: h.Holder}, nil
}

// granted is the answer to a holder. The answer has no fence. In a transaction, the increment of a
// fence counter cannot depend on whether the key is free. So every caller would raise the counter,
// even a caller that finds the key busy.
var granted = store.Grant{State: store.Granted, FenceCount: 1}

// giveBack releases the lease that an acquire took but must not keep, and returns a grant with the
// given state. The parameter ours is true if the owner of c holds the lease.
func (s *Store) giveBack(ctx context.Context, c store.Claim, ours bool, state store.State) (store.Grant, error) {
	if ours {
		c.KeepFor, c.Complete, c.TombstoneTTL = 0, false, 0
		if _, err := s.Release(context.WithoutCancel(ctx), c); err != nil {
			return store.Grant{}, err
		}
	}
	return store.Grant{State: state}, nil
}

// Renew lengthens the leases. Several leases are renewed at the same time. For a lease without an
// answer, it returns the error.
func (s *Store) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	const atOnce = 8
	grants, errs := make([]store.Grant, len(cs)), make([]error, len(cs))
	var wg sync.WaitGroup
	for first := range min(atOnce, len(cs)) {
		wg.Go(func() {
			for i := first; i < len(cs); i += atOnce {
				grants[i], errs[i] = s.renew(ctx, cs[i], store.Grant{State: store.NotOurs})
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

// renew lengthens one lease if the lease has less time left than the TTL. If the owner does not
// hold the lease, renew returns notOursGrant.
func (s *Store) renew(ctx context.Context, c store.Claim, notOursGrant store.Grant) (store.Grant, error) {
	ours, err := s.change(ctx, c, func(left time.Duration, p redis.Pipeliner) {
		if left < c.TTL {
			_ = p.Process(ctx, newNoRetryCmd(ctx, "pexpire", c.Key, redisstore.Millis(c.TTL)))
		}
	})
	switch {
	case err != nil:
		return store.Grant{}, err
	case ours:
		return granted, nil
	}
	return notOursGrant, nil
}

// Release deletes the key, or keeps the key for KeepFor without an owner. With a TombstoneTTL, it
// first makes sure that a late Acquire of the owner takes nothing.
func (s *Store) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.TombstoneTTL > 0 {
		if err := s.client.Set(ctx, redisstore.TombstoneKey(c.Key, c.Owner), "undone", wholeMillis(c.TombstoneTTL)).Err(); err != nil {
			return store.Grant{}, refused(err)
		}
	}
	completes := c.Complete && c.OnceFor > 0
	if c.KeepFor <= 0 && !completes {
		if deleted, err := s.deleteLease(ctx, c); deleted {
			return store.Grant{State: store.Released}, nil
		} else if err != nil {
			return store.Grant{}, err
		}
	}
	ours, err := s.change(ctx, c, func(_ time.Duration, p redis.Pipeliner) {
		if c.KeepFor > 0 {
			_ = p.Process(ctx, newNoRetryCmd(ctx, "set", c.Key, valueOf("", ""), "px", redisstore.Millis(c.KeepFor), "xx"))
		} else {
			_ = p.Process(ctx, newNoRetryCmd(ctx, "del", c.Key))
		}
		if completes {
			p.Set(ctx, redisstore.DoneKey(c.Key), "1", wholeMillis(c.OnceFor))
		}
	})
	switch {
	case err != nil:
		return store.Grant{}, err
	case ours:
		return store.Grant{State: store.Released}, nil
	case !completes:
		return store.Grant{State: store.NotOurs}, nil
	}
	n, err := s.client.Exists(ctx, redisstore.DoneKey(c.Key)).Result()
	switch {
	case err != nil:
		return store.Grant{}, refused(err)
	case n > 0:
		return store.Grant{State: store.Done}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}

// Inspect returns the holder of a key.
func (s *Store) Inspect(ctx context.Context, key string) (store.Info, error) {
	var value *redis.StringCmd
	var left *redis.DurationCmd
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		value, left = p.Get(ctx, key), p.PTTL(ctx, key)
		return nil
	})
	switch {
	case errors.Is(err, redis.Nil):
		return store.Info{}, nil
	case err != nil:
		return store.Info{}, refused(err)
	}
	h := parse(value.Val(), left.Val())
	return store.Info{Held: true, Kept: h.Kept, Foreign: h.Foreign, Left: h.Left, Metadata: h.Metadata}, nil
}

// firstFailure returns the first error of a transaction that is not redis.Nil. The error redis.Nil
// is no failure: SET NX has found the key taken, or GET has found no key.
func firstFailure(cmds []redis.Cmder, err error) error {
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// wholeMillis returns d, rounded up to whole milliseconds.
func wholeMillis(d time.Duration) time.Duration {
	return time.Duration(redisstore.Millis(d)) * time.Millisecond
}

// refused does the work of redisstore.Refused for transactions. When a server refuses a command of
// a transaction, the reply to EXEC gives no reason, and the server does nothing.
func refused(err error) error {
	if redis.HasErrorPrefix(err, "EXECABORT") {
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("the server refuses a command of a transaction, because it is out of memory, "+
			"does not take writes now, or forbids the command to this user (%w)", err)}
	}
	return redisstore.Refused(err)
}
