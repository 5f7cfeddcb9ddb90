package locker

import (
	"context"
	"time"
)

// Op names what is done to a lock, in errors and for Observers.
type Op uint8

const (
	OpAcquire    Op = iota + 1 // from the call to the grant or the refusal, the wait included
	OpHold                     // from the grant to the release or the loss, for each caller who shares a lease
	OpRelease                  // Release and Complete
	OpExtend                   // Extend
	OpRenew                    // the renewals of the keeper; not observed one by one
	OpInspect                  // Engine.Inspect
	OpRevoke                   // Engine.Revoke
	OpRaiseFence               // Engine.RaiseFence
	OpClose                    // Engine.Close
	OpDowngrade                // Downgrade
	OpDelegate                 // Lease.Delegate; not observed
	OpJoin                     // the Store's step of Engine.Join, which is observed as OpAcquire
	OpTransact                 // a database transaction under the lease, its repetitions included: package sqllock
)

var opNames = [...]string{
	"", "acquire", "hold", "release", "extend", "renew", "inspect", "revoke", "raise fence", "close", "downgrade", "delegate", "join",
	"transact",
}

// String returns the operation's name, such as "acquire".
func (o Op) String() string {
	if int(o) < len(opNames) && o > 0 {
		return opNames[o]
	}
	return "unknown"
}

// An Observer is told when an operation begins and when it ends. It is the seam for tracing and metrics: package
// otellock is one. It must be safe for concurrent use, and fast: it is called on the caller's path.
type Observer interface {
	// Begin is called before the operation. The context that it returns replaces ctx for what follows, so a span put
	// into it becomes the parent of the operation's calls, and with OpHold of the work under the lock. The function
	// that it returns is called once, at the end; it may be nil.
	//
	// OpAcquire, OpHold, OpRelease, OpExtend, OpDowngrade and OpBreak are observed, and what adapters tell with
	// [Lease.Observe]. The rule is complete: defaults are filled in.
	Begin(ctx context.Context, op Op, rule Rule) (context.Context, func(Outcome))
}

// A RequestObserver is an Observer that is also notified of requests: what an adapter, such as
// package httplock, did with a request that it guards. So requests are seen for which no lock was
// asked, because they had no valid key.
type RequestObserver interface {
	Observer
	// Request is called when a request got its lock, when it was refused, and when it lost its
	// lock. ctx is that of the request. It must be fast, as [Observer] says.
	Request(ctx context.Context, e RequestEvent)
}

// RequestEvent says what became of the lock of a request.
type RequestEvent struct {
	Name   string        // Rule.Name
	Result string        // in one word of the adapter, such as "acquired" or "invalid_key"; there are few
	Waited time.Duration // from the question for the lock to the grant; 0 for other results
}

// ObserveRequest notifies the Observer, if it is a RequestObserver. It is for adapters.
func (e *Engine) ObserveRequest(ctx context.Context, event RequestEvent) {
	if o, ok := e.cfg.observer.(RequestObserver); ok {
		o.Request(ctx, event)
	}
}

// A Warner is an Observer that also wants to hear what is unsafe about the server. Without one, warnings go to
// slog.Default. Each warning is given at most once per Engine.
type Warner interface {
	Warn(Warning)
}

// Result is the outcome of an operation in one word, fit for a metric's attribute.
type Result string

const (
	ResultAcquired       Result = "acquired"         // acquire: granted
	ResultNested         Result = "nested"           // acquire: the caller's context holds the key already, see NewReentrant
	ResultBusy           Result = "busy"             // acquire: held by somebody else, and not waited for
	ResultTimeout        Result = "timeout"          // acquire: held by somebody else until Wait, the deadline or the Backoff was over; extend: the deadline was over
	ResultCanceled       Result = "canceled"         // acquire, extend: the caller gave up
	ResultDone           Result = "done"             // acquire: ErrDone
	ResultTooManyWaiters Result = "too_many_waiters" // acquire: ErrTooManyWaiters
	ResultUnavailable    Result = "unavailable"      // any: ErrUnavailable
	ResultReleased       Result = "released"         // hold, release: in the ordinary way
	ResultLost           Result = "lost"             // hold, release, extend: ErrLost
	ResultRevoked        Result = "revoked"          // hold, release, extend: ErrRevoked; revoke: the holder was revoked
	ResultExpired        Result = "expired"          // hold, release, extend: ErrExpired
	ResultExtended       Result = "extended"         // extend: the lease lives longer
	ResultDowngraded     Result = "downgraded"       // downgrade: the lease is shared
	ResultGone           Result = "gone"             // break: ErrGone
	ResultCommitted      Result = "committed"        // transact: the transaction is there
	ResultRolledBack     Result = "rolled_back"      // transact: it is not, because of its work, its database or its lease
	ResultStaleFence     Result = "stale_fence"      // transact: it is not, because a newer holder has claimed the resource
	ResultFenceRegressed Result = "fence_regressed"  // transact: it is not, because the fence is older than the database's
	ResultCommitUnknown  Result = "commit_unknown"   // transact: nobody knows yet
	ResultError          Result = "error"            // any: everything else
)

// Outcome says how an operation ended.
type Outcome struct {
	Result Result
	// Err is nil when the operation did what was asked.
	Err error
	// Fence of the lease, 0 when there is none.
	Fence uint64
	// Calls is how many times the Store was asked by this operation. 0 for OpHold, for a release that passed the lease on to
	// another caller of this process, and for an acquire that got it so. For OpTransact how often the transaction was begun.
	Calls int
	// Rounds is how many round trips an acquire on a quorum needed: 1 for each call where the nodes agreed at once, more where
	// their fences had to be brought together or votes were split. 0 where there is one server.
	Rounds int
	// Waited is how long an acquire was held up by another holder, of any process; 0 when the first answer was the grant.
	Waited time.Duration
	// Expected is how long an acquire would have to wait, estimated at the first answer of busy from the place in the queue
	// and from how long leases of the same Rule.Name were held in this process. 0 when fewer than 10 were, and for who waited
	// behind others of this process and never asked.
	Expected time.Duration
	// TTL is what an acquire asked for; for OpHold and OpRelease what renewals ask for at the end, which [WithAdaptiveTTL] and
	// Extend change; 0 for the others.
	TTL time.Duration
	// HolderMetadata is what the other holder's [WithMetadata] wrote into its lease, as last seen by an acquire. Callers of
	// one process who share a lease find there what the first of them wrote.
	HolderMetadata string
}

// observe tells the observer, if there is one.
func (c *config) observe(ctx context.Context, op Op, rule Rule) (context.Context, func(Outcome)) {
	if c.observer == nil {
		return ctx, nil
	}
	return c.observer.Begin(ctx, op, rule)
}

// finish ends what begin began.
func finish(end func(Outcome), o Outcome) {
	if end != nil {
		end(o)
	}
}
