// Package store is the contract between the engine of package locker and the kinds of lock. Package
// storetest has the laws that each [Store] obeys.
//
// A Store makes atomic steps and nothing else. Tokens, deadlines, waiting, renewals and the undo of
// unclear calls are the tasks of the engine. What only some Stores can do is in [Capabilities].
package store

import (
	"context"
)

// A Store makes the atomic steps of one kind of lock. A Store does not wait until a key is
// free, and keeps no state of a lease in this process. Tokens, deadlines, waiting, renewals and
// undos are the tasks of the Engine. A Store may keep a queue of waiters on its server. With a
// queue, a step that frees a key, or finds it free, grants the key to the first waiter.
//
// Each method is atomic for each claim. Each method is idempotent for each Owner: a repeated call
// returns the same answer and the same fence, and changes nothing else. Each call goes to the
// server at most once, because only the Engine knows which attempts were unclear and must be
// repeated. An error that proves that the call had no effect is a [*Refusal]. After any other error
// the call may have run, or may still run.
//
// ctx carries values for tracing, and a deadline of 5 s or less. A Store may end a call when ctx
// ends, but need not. After 5 s without an answer, the Engine gives up the call. It gives up an
// Acquire after 1 s if its caller has had no answer before. The Engine undoes an Acquire that it
// has given up by a Release.
type Store interface {
	// Acquire returns Granted, Busy, Undone, Revoked or Done.
	Acquire(ctx context.Context, c Claim) (Grant, error)
	// Renew makes each lease last at least c.TTL from now. Renew shortens no lease and creates no
	// lease. It returns Granted, NotOurs or Revoked for each claim, in order. A claim without an
	// answer has Grant.Err. There are at most 100 claims.
	Renew(ctx context.Context, cs []Claim) ([]Grant, error)
	// Release frees the key, or keeps it locked without an owner for c.KeepFor. It returns
	// Released, NotOurs or Revoked. It returns Done if the owner has no lease, c.Complete is set
	// and the done mark exists.
	Release(ctx context.Context, c Claim) (Grant, error)
}

// NewEngine returns a *locker.Engine on s. opts is a []locker.Option. Package locker sets
// NewEngine, so that packages which contain Stores and import locker, such as polling and
// lockertest, can make Lockers without a constructor that users see.
var NewEngine func(s Store, opts any) (engine any, err error)
