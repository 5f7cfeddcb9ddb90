package optimistic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

var (
	// ErrConflict means that other clients wrote the keys during each attempt. Nothing was written.
	ErrConflict = errors.New("optimistic: other clients wrote the keys during each attempt")
	// ErrUnknown means that the server did not answer the last step, so the new values may have
	// been written, or may still be written. To find out, read the keys again.
	ErrUnknown = errors.New("optimistic: it is not known whether the new values were written")
)

// Update sets a key to the value that fn computes from the present value, if no other client has
// written the key meanwhile. Otherwise it calls fn again, after a pause. fn gets nil if the key
// does not exist. The function returns nil to delete the key, and the same value to leave the key
// as it is. The function may change old in place. A key that expires keeps its expiry time.
//
//	err := optimistic.Update(ctx, client, "stock:apple", func(ctx context.Context, old []byte) ([]byte, error) { … })
//
// No caller waits for another. A caller that met a conflict 100 times is refused with ErrConflict.
//
// fn runs on the caller's goroutine, perhaps many times, so fn must have no effect except its
// result. If fn returns an error, Update writes nothing and returns the error unchanged. The end of
// ctx ends Update at once, even while a call to the server hangs. If the new value was being
// written at that moment, the error is ErrUnknown.
//
// Besides the error of fn, Update returns ErrConflict, ErrUnknown, ctx.Err(), and errors of the
// client. It returns ErrConflict after the number of attempts that [WithAttempts] sets. After an
// error of the client, nothing was written. The client is a *redis.Client or a
// *redis.ClusterClient.
func Update(ctx context.Context, c redis.UniversalClient, key string, fn func(ctx context.Context, old []byte) ([]byte, error), opts ...Option) error {
	return UpdateAll(ctx, c, []string{key}, func(ctx context.Context, old map[string][]byte) (map[string][]byte, error) {
		value, err := fn(ctx, old[key])
		return map[string][]byte{key: value}, err
	}, opts...)
}

// UpdateAll is [Update] for several keys. The keys are written together or not at all. fn gets the
// values of the keys that exist, and returns the values that it changes. A nil value deletes its
// key. A key that is missing in the result stays as it is. On a Redis Cluster the keys must have
// the same hash tag.
func UpdateAll(ctx context.Context, c redis.UniversalClient, keys []string, fn func(ctx context.Context, old map[string][]byte) (map[string][]byte, error), opts ...Option) error {
	u := &update{client: c, keys: keys, fn: fn, attempts: 100, backoff: locker.Jitter(locker.Exponential(time.Millisecond, 50*time.Millisecond))}
	switch {
	case c == nil:
		return errors.New("optimistic: the client is nil; give a *redis.Client or a *redis.ClusterClient")
	case len(keys) == 0 || slices.Contains(keys, ""):
		return errors.New("optimistic: there is no key, or a key is empty")
	}
	for _, o := range opts {
		o(u)
	}
	if u.attempts < 1 {
		return errors.New("optimistic: WithAttempts needs at least 1; leave it out for the default")
	}
	return u.runObserved(ctx)
}

// An Option sets up [Update] and [UpdateAll].
type Option func(*update)

// WithAttempts sets the largest number of attempts. Default: 100, with jittered pauses of at most 50
// ms, which take about 4 s.
func WithAttempts(n int) Option { return func(u *update) { u.attempts = n } }

// WithObserver notifies o of the update as the Op "update", under the given name. Package otellock
// makes a span "update NAME" of each update. name must have few values.
func WithObserver(o locker.Observer, name string) Option {
	return func(u *update) { u.observer, u.name = o, name }
}

// update is one call of UpdateAll.
type update struct {
	client   redis.UniversalClient
	keys     []string
	fn       func(context.Context, map[string][]byte) (map[string][]byte, error)
	attempts int
	backoff  locker.Backoff
	observer locker.Observer
	name     string

	attemptCount int // the number of attempts
}

// The operation that Observers see, and its own results.
const (
	opUpdate       locker.Op     = "update"   // an update, with its repetitions
	resultUpdated  locker.Result = "updated"  // the new values are written, or there was nothing to write
	resultConflict locker.Result = "conflict" // other clients wrote the keys during each attempt
)

// runObserved runs the update, and notifies the Observer.
func (u *update) runObserved(ctx context.Context) error {
	if u.observer == nil {
		return u.run(ctx)
	}
	ctx, end := u.observer.Begin(ctx, opUpdate, locker.Rule{Key: u.keys[0], Name: u.name})
	err := u.run(ctx)
	if end != nil {
		result := resultUpdated
		switch {
		case errors.Is(err, ErrConflict):
			result = resultConflict
		case errors.Is(err, context.Canceled):
			result = locker.ResultCanceled
		case err != nil:
			result = locker.ResultError
		}
		end(locker.Outcome{Result: result, Err: err, Calls: u.attemptCount})
	}
	return err
}

// run makes attempts until an attempt ends without a conflict.
func (u *update) run(ctx context.Context) error {
	for pause := range u.backoff {
		if err := ctx.Err(); err != nil {
			return err
		}
		u.attemptCount++
		if err := u.attempt(ctx); !errors.Is(err, redis.TxFailedErr) {
			return err
		}
		if u.attemptCount == u.attempts {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), ErrConflict)
		}
	}
	return fmt.Errorf("%w: %d attempts at %s", ErrConflict, u.attemptCount, u.keys[0])
}

// attempt reads the values, calls fn, and writes the values that fn returns. The error is
// redis.TxFailedErr if another client wrote a key meanwhile.
func (u *update) attempt(ctx context.Context) error {
	a := &attempt{update: u, read: make(chan map[string][]byte), write: make(chan map[string][]byte), abandoned: make(chan struct{}), ended: make(chan error, 1)}
	defer close(a.abandoned)
	go func() { a.ended <- a.call(context.WithoutCancel(ctx)) }()
	var old map[string][]byte
	select {
	case old = <-a.read:
	case err := <-a.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	before := make(map[string]string, len(old)) // these are copies, because fn may change the values that it gets
	for key, value := range old {
		before[key] = string(value)
	}
	values, err := u.fn(ctx, old)
	if err != nil {
		return err
	}
	for key, value := range values {
		if !slices.Contains(u.keys, key) {
			return fmt.Errorf("optimistic: the function returned a value for %s, which is not one of the keys of UpdateAll", key)
		}
		if former, existed := before[key]; (value != nil) == existed && string(value) == former {
			delete(values, key)
		}
	}
	select {
	case a.write <- values:
	case err := <-a.ended:
		return err
	}
	select {
	case err := <-a.ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(), ErrUnknown)
	}
}
