// Package idempotency runs a request once, even if the client sends the request several times. A
// repeated request gets the answer of the first run.
//
// The adapters use this package: see Idempotency in httplock and ginlock. Use it directly for
// requests that arrive in other ways:
//
//	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewRedis(client)}
//	answer, err := keeper.Do(ctx, request, func(ctx context.Context) idempotency.Outcome { … })
//
// # How a request runs
//
//  1. Load: if the answer is already stored, it is returned. No lock is taken.
//  2. The lock on the request's key is acquired. A second request with the same key waits here.
//  3. Begin: a record "in progress" with the fence of the lease is written. If the Store is full or
//     unreachable, the request fails here, before any work is done.
//  4. The work runs. Its context ends with the lock. When the client disconnects, the work
//     continues for a bounded time.
//  5. Save: the answer replaces the record "in progress" of the same fence. A stale holder cannot
//     store its answer.
//
// A process that dies between steps 3 and 5 leaves a record "in progress". The next request with
// the same key runs the work again, and [FromContext] reports the fence of the interrupted run.
//
// # Stores
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

// A State is the progress of a request.
type State uint8

const (
	// InProgress means that a holder has begun the work. The holder may have crashed.
	InProgress State = iota + 1
	// Answered means that the work is done and the Response is stored.
	Answered
	// DoneOnly means that the work is done, and that its Response was not stored. For example,
	// the Response was larger than its limit, or the Store had no room for it.
	DoneOnly
)

// A Record is what a Store keeps of one request.
type Record struct {
	// Fingerprint distinguishes the request from another request with the same key.
	Fingerprint [32]byte
	// Fence is the fence of the lease under which this run of the request began. Fence is 0
	// only if the Locker makes no fences.
	Fence uint64
	State State
	// Response is empty unless State is Answered.
	Response Response
}

// A Response is the stored answer to a request. The adapter that stores a Response decides what the
// fields mean.
type Response struct {
	// Status is an HTTP status or a gRPC code.
	Status int
	// Header and Trailer are HTTP headers or gRPC metadata.
	Header, Trailer map[string][]string
	// Body is the body of an HTTP response or an encoded gRPC message.
	Body []byte
}

// A Store keeps Records. It is safe for concurrent use. Each method returns within a limited time,
// and at the latest when ctx ends.
//
// After an unclear reply, the caller may repeat a call, and a second execution of the same call
// changes nothing. Package storetest checks these rules.
type Store interface {
	// Load returns the Record of key, and whether there is one.
	Load(ctx context.Context, key string) (rec Record, found bool, err error)

	// Begin writes a Record with State InProgress, and keeps it for lifetime. began reports
	// whether Begin has written the new Record. found reports whether the key had a Record
	// before, and earlier is that Record.
	//
	// If there is no Record, Begin writes one. It replaces a Record with State InProgress and the
	// same Fingerprint, unless that Record has a larger Fence. Begin changes no other Record.
	Begin(ctx context.Context, key string, fingerprint [32]byte, fence uint64, lifetime time.Duration) (
		earlier Record, found, began bool, err error)

	// Save keeps rec for lifetime from now. It replaces the Record that Begin has written with the
	// same Fingerprint and Fence. The State of rec is Answered or DoneOnly. If the Record has
	// expired, Save writes rec. If an earlier call has saved rec already, Save returns nil. If
	// key has any other Record, Save changes nothing and returns [ErrOvertaken].
	//
	// A Store without room for the Response stores rec with State DoneOnly if it can, and returns
	// an error.
	Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error

	// Forget removes the Record that Begin has written with this fence. It leaves every other
	// Record unchanged, even a saved Record, and returns nil.
	Forget(ctx context.Context, key string, fence uint64) error
}

// A Transactor is a Store in the database of the work. Transact puts a transaction into the
// context, and Save takes part in this transaction. So the work and its answer are committed
// together or not at all.
type Transactor interface {
	Store

	// Transact begins a transaction, calls work with a context that carries it, and commits when
	// work returns nil. When work returns an error, Transact rolls back and returns this error
	// unchanged. When work panics, Transact rolls back and lets the panic continue. Transact calls
	// work once. Any other error means that the commit failed or is unclear.
	//
	// If Save is called with the context that work gets, the call belongs to the transaction.
	// All other calls are outside the transaction: Load, Begin, Forget, and Save with another
	// context.
	Transact(ctx context.Context, work func(ctx context.Context) error) error
}
