package optimistic

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// attempt is the part of one attempt that calls the server. It runs on a goroutine of its own, so
// that the caller does not wait for a call that hangs: go-redis does not end a call when the
// context of the call ends. The function fn runs on the caller's goroutine.
type attempt struct {
	*update
	read      chan map[string][]byte // the values that fn gets
	write     chan map[string][]byte // the values that fn returns
	abandoned chan struct{}          // closed when the caller does not wait any more
	ended     chan error
}

// call makes the steps WATCH, GET and EXEC. The server executes EXEC only if no key was written
// since WATCH. EXEC is sent only once, because go-redis ends the transaction when its connection
// breaks.
func (a *attempt) call(ctx context.Context) error {
	// sent is true when EXEC was sent. It is needed because a Cluster's client calls the function
	// again after some errors, and EXEC must not be sent twice.
	sent := false
	var written error
	err := a.watch(ctx, func(tx *redis.Tx) error {
		if sent {
			return nil
		}
		executed := false
		defer func() {
			// The connection goes back to the pool, so it must watch no keys. By itself,
			// go-redis sends no UNWATCH for the keys that the method named values has watched.
			if !executed {
				_ = tx.Unwatch(ctx).Err()
			}
		}()
		old, err := a.values(ctx, tx)
		if err != nil {
			return err
		}
		var values map[string][]byte
		select {
		case a.read <- old:
		case <-a.abandoned:
			return context.Canceled
		}
		select {
		case values = <-a.write:
		case <-a.abandoned: // fn failed
			return context.Canceled
		}
		if sent = true; len(values) == 0 {
			return nil
		}
		_, written = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			for key, value := range values {
				if value == nil {
					p.Del(ctx, key)
				} else {
					p.Set(ctx, key, value, redis.KeepTTL)
				}
			}
			return nil
		})
		// The server may have refused MULTI, and then EXEC was not executed.
		executed = written == nil || errors.Is(written, redis.TxFailedErr) || redis.IsExecAbortError(written)
		return nil // the variable written shows how EXEC ended
	})
	var reply redis.Error
	switch {
	case !sent:
		return err
	case written == nil, errors.Is(written, redis.TxFailedErr), errors.As(written, &reply):
		return written
	}
	return fmt.Errorf("%w: %w", ErrUnknown, written)
}

// watch calls fn with one connection. For a client of one server, WATCH is sent together with GET,
// which saves a round trip. Other clients need the keys to find the server, so go-redis sends WATCH
// for them.
func (a *attempt) watch(ctx context.Context, fn func(tx *redis.Tx) error) error {
	if c, ok := a.client.(*redis.Client); ok {
		return c.Watch(ctx, fn)
	}
	return a.client.Watch(ctx, fn, a.keys...)
}

// values makes tx watch the keys, and returns their values.
func (a *attempt) values(ctx context.Context, tx *redis.Tx) (map[string][]byte, error) {
	cmds := make([]*redis.StringCmd, len(a.keys))
	// GET returns an error for data of another type, and nil if there is no data.
	_, err := tx.Pipelined(ctx, func(p redis.Pipeliner) error {
		words := []any{"watch"}
		for _, key := range a.keys {
			words = append(words, key)
		}
		p.Do(ctx, words...)
		for i, key := range a.keys {
			cmds[i] = p.Get(ctx, key)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	old := make(map[string][]byte)
	for i, key := range a.keys {
		value, err := cmds[i].Bytes()
		switch {
		case errors.Is(err, redis.Nil):
		case err != nil:
			return nil, err
		case value == nil:
			old[key] = []byte{}
		default:
			old[key] = value
		}
	}
	return old, nil
}
