// Package locker provides locks between processes and machines, on Redis.
//
// A [Rule] says what to guard. A [Locker] turns a Rule into a [Lease]. [Run] holds the lease around
// a function. The context of that function ends, with a cause, as soon as the lease ends:
//
//	l, err := locker.Open("redis://localhost:6379")
//	…
//	err = locker.Run(ctx, l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx ends if the lock is lost
//	})
//
// A lease is renewed while it is held. A grant carries a fence ([Lease.Fence]), a number that
// only grows. With the fence, a database can refuse the writes of a holder that was paused for too
// long. Without this check, a lease on Redis saves duplicate work, and does not prove exclusion.
//
// Waiters queue on the server, and each is notified when its turn comes. A lock is a plain key on
// Redis, so it excludes other programs that set the same key with SET NX, and they exclude it.
//
// # Which constructor
//
//   - [Open]: a URL or options of go-redis; the choice for a service.
//   - [New]: a client that you own and that serves locks only; set its ContextTimeoutEnabled.
//   - [NewReadWrite]: many readers, or one writer; see Rule.Mode.
//   - [NewSemaphore]: at most n holders of a key.
//   - [NewRedlock]: several independent servers, when a dead server must never let two hold.
//   - [NewScriptless]: a server that forbids scripts; without a queue and fences.
//   - [NewReentrant]: around another Locker; a holder, known by its context, may enter again.
//   - [NewStriped]: around another Locker; n locks for all keys.
//
// Open, New, NewReadWrite and NewSemaphore take one server, a Sentinel set or a Cluster. [RunAll]
// takes several keys, all or none. Package lead elects leaders, optimistic changes a value without
// a lock, and lockertest has a lock server in memory for tests.
//
// # Defaults
//
//   - TTL: 30 s ([WithTTL], Rule.TTL). A lease is renewed after a third of it. When a holder
//     crashes, the others wait until it is over.
//   - Wait: until the caller's context ends. [NoWait] waits for no holder.
//   - Waiters: no limit; see [WithMaxWaiters].
//   - Order: processes take turns; in a turn, at most 64 callers of one process use a lease one
//     after the other, for 10 ms. [WithFair] orders all callers.
//   - The name of a holder, for errors and operators: program@host:pid; see [WithMetadata].
//
// # Errors
//
// An error is an [*Error] with the key. Ask with errors.Is:
//
//   - context.Canceled, context.DeadlineExceeded: ctx ended while the call waited; the error is also
//     that of the wait, such as ErrBusy, so ask for these first.
//   - [ErrBusy]: another holder has the lock, and nothing was done. Error.RetryAfter estimates when
//     to come again.
//   - [ErrTooManyWaiters]: nothing was done; see WithMaxWaiters.
//   - [ErrDone]: with Rule.OnceFor, the work was done before.
//   - [ErrUnavailable]: the server did not answer, and nothing was done. With Rule.OnceFor it can
//     also mean that the work was done, and perhaps not marked.
//   - [ErrLost]: the lease ended while the work ran, which may be half done. [ErrRevoked], which is
//     also ErrLost: an operator ended it. [ErrExpired]: Rule.EndAfter was over.
//   - [ErrSelfDeadlock]: ctx holds this key already; use its lease, or NewReentrant.
//   - [ErrClosed]: the Locker drains or was closed.
//   - [ErrInvalidKey], [ErrInvalidRule], [ErrUnsupported]: the Rule can never be granted; [Check]
//     says so when a program starts.
//
// # Shutdown
//
// [Drain] refuses waiters and newcomers, with a time to come again, and lets holders finish.
// [Engine.Close] ends the contexts of all leases, and waits for the functions of Run. A program
// that ends without Close leaves its keys locked until their TTL is over.
//
// docs/deployment.md has the order for each kind of server, docs/guarantees.md what holds under
// which fault, and docs/options.md the options.
package locker
