// Package idempotency runs a request once, even if the client sends the request several times. A
// repeated request gets the answer of the first run.
//
// The adapters use this package: see NewIdempotency in httplock and ginlock. Use it directly for
// requests that arrive in other ways:
//
//	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewRedis(client)}
//	answer, err := keeper.Do(ctx, request, func(ctx context.Context) idempotency.Outcome { … })
//
// # How a request runs
//
//  1. Load: if the answer is already stored, it is returned. No lock is taken.
//  2. The lock on the request's key is acquired. A second request with the same key waits here.
//  3. Begin: a Record "in progress" with the fence of the lease is written. If the Store is full or
//     unreachable, the request fails here, before any work is done.
//  4. The work runs. Its context ends with the lock. When the client disconnects, the work
//     continues for a bounded time.
//  5. Save: the answer replaces the Record "in progress" of the same run. A stale holder cannot
//     store its answer.
//
// A process that dies between steps 3 and 5 leaves a Record "in progress". The next request with
// the same key runs the work again, and [FromContext] reports the fence of the interrupted run.
//
// # Stores
//
// A [Store] keeps a Record for each key, and replaces it only if it is the Record that the caller
// expects. The Keeper knows all other rules, so every Store has the same ones.
//
// [NewRedis] keeps answers in Redis, for all processes. [NewMemory] keeps them in this process. A
// [Store] that is also a [Transactor] saves the answer in the database transaction of the work.
// With a Transactor the work is done exactly once, even if a process dies between the work and its
// commit.
//
// Keep answers in a Redis server of their own. Answers are large and live for a day, but locks are
// small and live for seconds. A server that is full of answers cannot grant a lock.
package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// ErrReused means that an earlier, different request had the same key.
var ErrReused = errors.New("the idempotency key belongs to a different request")

// ErrOvertaken means that a later holder of the lock has begun the same request. errors.Is(err,
// locker.ErrLost) is true as well.
var ErrOvertaken = fmt.Errorf("a later holder has begun the same request: %w", locker.ErrLost)

// ErrStore means that the Store has failed, so the work was not called. The Locker is not the
// reason. errors.Is(err, locker.ErrUnavailable) is true as well.
var ErrStore error = storeFailed{}

type storeFailed struct{}

func (storeFailed) Error() string        { return "the store of answers is unavailable" }
func (storeFailed) Is(target error) bool { return target == locker.ErrUnavailable }

// A Record is what a Store keeps of one request. Only a [Keeper] knows what the text and the bytes
// mean. The zero Record stands for no Record.
type Record struct {
	// Run names the run of the work that has written the Record. Two runs never have the same name.
	Run string
	// Open means that the work is in progress, or that its process has died.
	Open bool
	// Answer is the stored answer. Nobody changes its bytes. Answer is nil while the Record is
	// Open, and when only the fact that the work is done is stored.
	Answer []byte
}

// A Response is the stored answer to a request. The adapter that stores a Response decides what the
// fields mean.
type Response struct {
	// Status is an HTTP status.
	Status int
	// Header has HTTP headers.
	Header map[string][]string
	// Body is the body of an HTTP response.
	Body []byte
}

// A Store keeps Records. It is safe for concurrent use. Each method returns within a limited time,
// and at the latest when ctx ends. Package storetest checks these rules.
type Store interface {
	// Load returns the Record of key.
	Load(ctx context.Context, key string) (Record, error)

	// Swap replaces the Record old of key by next, in one step, and keeps next for lifetime from
	// now. If next is the zero Record, Swap removes old. If key does not have old, Swap changes
	// nothing. A Record is recognized by Run and Open, and old.Answer does not count.
	//
	// Swap returns the Record that key then has: next, or the Record that was there instead of old.
	// So after an unclear reply, the caller may repeat a Swap: the second execution changes nothing
	// and returns next. The Answer of a result that is next may be missing.
	//
	// A Store without room for next returns an error and changes nothing. If old and next have the
	// same Run, it keeps next without its Answer if it can.
	Swap(ctx context.Context, key string, old, next Record, lifetime time.Duration) (Record, error)
}

// A Transactor is a Store in the database of the work. Transact puts a transaction into the
// context, and Swap takes part in this transaction. So the work and its answer are committed
// together or not at all.
type Transactor interface {
	Store

	// Transact begins a transaction, calls work with a context that carries it, and commits when
	// work returns nil. When work returns an error, Transact rolls back and returns this error
	// unchanged. When work panics, Transact rolls back and lets the panic continue. Transact calls
	// work once. Any other error means that the commit failed or is unclear.
	//
	// If Swap is called with the context that work gets, the call belongs to the transaction. All
	// other calls are outside the transaction.
	Transact(ctx context.Context, work func(ctx context.Context) error) error
}

// Remove removes the Record of key, whatever it is. Remove is for operators who want a request to
// run again.
func Remove(ctx context.Context, s Store, key string) error {
	rec, err := s.Load(ctx, key)
	for err == nil && rec.Run != "" {
		rec, err = s.Swap(ctx, key, rec, Record{}, 0)
	}
	return err
}
