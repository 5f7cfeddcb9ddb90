package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Op names what is done to a lock, in errors and for Observers. Adapters report operations of their
// own: "transact" (package sqllock), "lead" and "overrun" (lead), "update" (optimistic), and "process"
// (asynqlock).
type Op string

const (
	OpAcquire    Op = "acquire"     // from the call to the grant or the refusal, the wait included
	OpHold       Op = "hold"        // from the grant to the release or the loss, for each caller that shares a lease
	OpRelease    Op = "release"     // Release and Complete
	OpExtend     Op = "extend"      // Extend
	OpRenew      Op = "renew"       // the keeper's renewals; not observed one by one
	OpInspect    Op = "inspect"     // Engine.Inspect
	OpRevoke     Op = "revoke"      // Engine.Revoke
	OpRaiseFence Op = "raise fence" // Engine.RaiseFence
	opDrain      Op = "drain"
	opClose      Op = "close"
)

// An Observer is notified when an operation begins and when it ends: package otellock has one for
// traces and metrics. An Observer must be safe for concurrent use, and fast, because it runs on the
// caller's path. A panic of an Observer is logged with slog, and the operation continues. It may also
// be a [WaitObserver], a [RenewalObserver], a [RequestObserver], a [HolderTracer] and a [Warner]. The
// list says which goroutine calls it:
//
//	Begin, Waiting, Traceparent,     the goroutine of the caller that acquires, releases, extends or
//	ends of Waiting and operations   revokes
//	end of OpHold                    the goroutine of the release; after a loss: one of its own, or the
//	                                 goroutine of a Release or Extend that notices the loss first;
//	                                 when Close ends before the hold: the goroutine of Close
//	Renewed                          one of its own
//	Request                          the goroutine of the request
//	Warn                             any goroutine
type Observer interface {
	// Begin is called before the operation. The context that Begin returns replaces ctx for the
	// operation. A span in that context becomes the parent of the operation's calls, and with
	// OpHold the parent of the work under the lock. The function that Begin returns is called once,
	// at the end; it may be nil.
	//
	// The observed operations are OpAcquire, OpHold, OpRelease, OpExtend and OpRevoke, and those
	// that adapters report with [Lease.Observe]. The rule has its defaults filled in.
	Begin(ctx context.Context, op Op, rule Rule) (context.Context, func(Outcome))
}

// A RequestObserver is an Observer that also receives what an adapter, such as package httplock,
// did with each request that it guards, also with one that is refused before any lock is asked for.
type RequestObserver interface {
	Observer
	// Request is called when a request got its lock, when the request was refused, and when the
	// request lost its lock. ctx is the context of the request.
	Request(ctx context.Context, e RequestEvent)
}

// RequestEvent is the outcome of the lock of a request.
type RequestEvent struct {
	Name   string        // Rule.Name
	Result string        // one of a few words of the adapter, such as "acquired" or "invalid_key"
	Waited time.Duration // from the acquire to the grant; 0 when there was no grant
}

// ObserveRequest notifies the Observer, if the Observer is a RequestObserver. This method is for
// adapters.
func (e *Engine) ObserveRequest(ctx context.Context, event RequestEvent) {
	if o, ok := e.cfg.observer.(RequestObserver); ok {
		defer absorb("Request")
		o.Request(ctx, event)
	}
}

// Observe notifies the Observer that the operation op of an adapter begins, outside of any lease:
// see [Lease.Observe], which is for operations under a lease. Observe is for adapters, such as
// package asynqlock.
func (e *Engine) Observe(ctx context.Context, op Op, rule Rule) (context.Context, func(Outcome)) {
	ctx, end := e.cfg.observe(ctx, op, rule)
	return ctx, func(o Outcome) { finish(end, o) }
}

// A Warner is an Observer that also receives warnings about unsafe settings of the server, each at
// most once. Without a Warner, they go to slog.Default, those about a server once for each process.
type Warner interface {
	Warn(Warning)
}

// Result is the outcome of an operation in one word, with few values. The packages of adapters
// document further results.
type Result string

const (
	ResultAcquired       Result = "acquired"         // acquire: granted
	ResultNested         Result = "nested"           // acquire: the caller's context holds the key already, see NewReentrant
	ResultBusy           Result = "busy"             // acquire: another holder has the key, and the Rule does not wait
	ResultTimeout        Result = "timeout"          // acquire: another holder had the key until Wait, the deadline or the Backoff was over; extend: the deadline was over
	ResultCanceled       Result = "canceled"         // acquire, extend: the caller gave up
	ResultDone           Result = "done"             // acquire: ErrDone
	ResultTooManyWaiters Result = "too_many_waiters" // acquire: ErrTooManyWaiters
	ResultUnavailable    Result = "unavailable"      // any: ErrUnavailable
	ResultReleased       Result = "released"         // hold, release: the lease was released normally
	ResultLost           Result = "lost"             // hold, release, extend: ErrLost
	ResultRevoked        Result = "revoked"          // hold, release, extend: ErrRevoked; revoke: the holder was revoked
	ResultExpired        Result = "expired"          // hold, release, extend: ErrExpired
	ResultExtended       Result = "extended"         // extend: the lease ends later
	ResultGone           Result = "gone"             // revoke: ErrGone
	ResultError          Result = "error"            // any: any other error
)

// Outcome is the outcome of an operation.
type Outcome struct {
	Result Result
	// Err is nil when the operation succeeded.
	Err error
	// Fence is the fence of the lease, 0 when there is none.
	Fence uint64
	// Calls is how many calls of the Store this operation made: 0 for OpHold, for a release that
	// handed the lease over to another caller of this process, and for the acquire that received
	// it. For "transact" it is how many times the transaction was begun, for "update" how many
	// attempts were made.
	Calls int
	// Rounds is how many round trips an acquire on a quorum needed: 1, and more if the nodes must
	// agree on a fence, or if votes were split. Rounds is 0 on one server.
	Rounds int
	// Waited is how long an acquire waited for other holders, of any process. Waited is 0 when
	// the first answer was the grant.
	Waited time.Duration
	// TTL is the TTL that an acquire asked for. For OpHold and OpRelease it is the TTL of the last
	// renewal, which [WithAdaptiveTTL] and Extend change. TTL is 0 for all other operations.
	TTL time.Duration
	// HolderMetadata is the other holder's metadata, as the acquire saw it last. When callers of
	// one process share a lease, it is that of the first of them.
	HolderMetadata string
	// Met is the first holder that the acquire saw. This holder made the acquire wait, or was the
	// reason for its refusal.
	Met Peer
	// ReleasedBy is the holder whose release ended the wait of an acquire. It is zero if the wait
	// ended in another way, or if the acquire had to ask the server again, as on a quorum.
	ReleasedBy Peer
	// Handoff says how a release gave the lock to this acquire, so that the acquire did not need to
	// ask again: "local", inside this process without a call, or "remote", by the server's message.
	Handoff string
	// Streak is the number of successive hand-offs inside this process by which the acquire got the
	// lock: 0 for a lease that came from the server.
	Streak int
	// Cause says in one word why a hold ended without a release; otherwise it is "".
	//
	//	taken      the server names another holder, or none
	//	unrenewed  renewals failed until the lease had run out
	//	paused     it was not renewed in time: this process was paused, or had no answer
	//	revoked    an operator has called Revoke
	//	expired    the lease was not meant to last longer: EndAfter, or WithoutRenewal
	Cause string
}

// Peer is another holder of a key, as a waiter sees it.
type Peer struct {
	Fence       uint64 // 0: unknown
	Traceparent string // the span under which the holder acquired the key, see [HolderTracer]; "": none
}

// observe notifies the Observer, if there is one, that op begins. It returns the context for op,
// and the function end, which must be called when op has ended.
func (c *config) observe(ctx context.Context, op Op, rule Rule) (within context.Context, end func(Outcome)) {
	if c.observer == nil {
		return ctx, nil
	}
	within = ctx // set first, so that ctx is returned also if Begin panics
	defer absorb("Begin")
	return c.observer.Begin(ctx, op, rule)
}

// finish calls end, the function that Observer.Begin returned, with the outcome o. It does nothing
// if end is nil.
func finish(end func(Outcome), o Outcome) {
	if end != nil {
		defer absorb("the function that Begin returned")
		end(o)
	}
}

// absorb is deferred around each call of an Observer. A panic is logged, and the operation continues.
// Otherwise the panic could end an Acquire that has just got a lease, or a goroutine of the Engine, and
// with it the process.
func absorb(method string) {
	if p := recover(); p != nil {
		slog.Error("latchkit: the Observer panicked; the operation continues",
			"method", method, "panic", p, "stack", string(debug.Stack()))
	}
}

// resultOf returns the Result of op for its error err. resultOf cannot decide whether ErrBusy means
// a timeout: only the waiter can, because it knows the rule.
func resultOf(op Op, err error) Result {
	if err == nil {
		return cmp.Or(successes[op], ResultReleased)
	}
	return wordFor(err, results, ResultError)
}

// successes has the Results of the operations that succeed, except for releases.
var successes = map[Op]Result{OpAcquire: ResultAcquired, OpExtend: ResultExtended, OpRevoke: ResultRevoked}

// word is the word for all errors that wrap err.
type word[W ~string] struct {
	err  error
	word W
}

// wordFor returns the first of words that fits err, or other if none does.
func wordFor[W ~string](err error, words []word[W], other W) W {
	for _, w := range words {
		if errors.Is(err, w.err) {
			return w.word
		}
	}
	return other
}

// results has the errors for the end of a lease first, because such an error may also contain the
// error of a cancelled or failed call.
var results = []word[Result]{
	{ErrRevoked, ResultRevoked}, // before ErrLost, because a revocation is also a loss
	{ErrLost, ResultLost},
	{ErrExpired, ResultExpired},
	{ErrReleased, ResultReleased},
	{ErrDone, ResultDone},
	{ErrTooManyWaiters, ResultTooManyWaiters},
	{ErrGone, ResultGone},
	{context.Canceled, ResultCanceled},
	{ErrUnavailable, ResultUnavailable},
	{context.DeadlineExceeded, ResultTimeout},
	{ErrBusy, ResultBusy},
}

// A WaitObserver is an Observer that is also notified when an acquire begins to wait.
type WaitObserver interface {
	Observer
	// Waiting is called at most once for each acquire, when it begins to wait for another holder.
	// ctx is what Begin returned for the acquire. The function that Waiting returns may be nil;
	// otherwise it is called once, before the acquire ends.
	Waiting(ctx context.Context, rule Rule, e WaitEvent) (over func())
}

// WaitEvent has what an acquire knows when it begins to wait.
type WaitEvent struct {
	// Place is the place in the server's queue: 1 is the head. Place is 0 without a queue, and for
	// an acquire that waits behind other callers of this process.
	Place int
	// Met is the holder. Met is zero if the holder is not known.
	Met Peer
}

// A RenewalObserver is an Observer that is also notified of renewals.
type RenewalObserver interface {
	Observer
	// Renewed is called with the answer to each renewal. ctx is the context of the lease's first
	// user, with the additions of Begin for the hold. It may have ended.
	Renewed(ctx context.Context, rule Rule, e RenewalEvent)
}

// RenewalEvent is the answer to one renewal.
type RenewalEvent struct {
	// Margin is how much of the lease was left when the answer came. A small Margin means that the
	// lease was nearly lost.
	Margin time.Duration
	// TTL is the time for which the server had granted the lease before this renewal, of which
	// Margin is left: the TTL of the rule, or 2 s for a lease that was just handed to a waiter.
	TTL time.Duration
	// Err is nil when the server confirmed the renewal. If Err is ErrLost, the lease is lost. After
	// any other error, the lease is still held, and the renewal is repeated.
	Err error
}

// A HolderTracer is an Observer that helps a waiter to find the span of the holder. The result of
// Traceparent is stored with the lease, where each reader of the server's keys can see it. Waiters
// receive it as Outcome.Met.
type HolderTracer interface {
	Observer
	// Traceparent returns the span in ctx, in the format of the header traceparent of W3C's Trace
	// Context. It returns "" when waiters should not see the span. ctx is what Begin returned for
	// the acquire.
	Traceparent(ctx context.Context) string
}

// waitRecord is what an acquire reports to the Observer about the other holders that it has seen.
type waitRecord struct {
	met, freed Peer
	handoff    string
	streak     int
	end        func() // ends the wait
	waiting    bool
}

// ensureRecord returns the waitRecord of the acquire, or nil if there is no Observer.
func (w *waiter) ensureRecord() *waitRecord {
	if w.engine.cfg.observer == nil {
		return nil
	}
	if w.record == nil {
		w.record = new(waitRecord)
	}
	return w.record
}

// noteMet records p, the first holder for which the acquire waits.
func (w *waiter) noteMet(p Peer) {
	if s := w.ensureRecord(); s != nil && s.met == (Peer{}) {
		s.met = p
	}
}

// noteWait notifies the Observer that the acquire begins to wait at this place in the queue.
func (w *waiter) noteWait(place int) {
	s := w.ensureRecord()
	if s == nil || s.waiting {
		return
	}
	s.waiting = true
	if o, ok := w.engine.cfg.observer.(WaitObserver); ok {
		defer absorb("Waiting")
		s.end = o.Waiting(w.observed, w.rule, WaitEvent{Place: place, Met: s.met})
	}
}

// noteHandoff records the hand-off by which the acquire gets the lock from p, and its number in the
// streak.
func (w *waiter) noteHandoff(p Peer, kind string, streak int) {
	if s := w.ensureRecord(); s != nil {
		s.freed, s.handoff, s.streak = p, kind, streak
		w.noteMet(p)
	}
}

// endWait ends the wait for the Observer, if the acquire has waited.
func (w *waiter) endWait() {
	if s := w.record; s != nil && s.end != nil {
		over := s.end
		s.end = nil
		defer absorb("the function that Waiting returned")
		over()
	}
}

// copyTo copies the record into the Outcome o.
func (s *waitRecord) copyTo(o *Outcome) {
	if s != nil {
		o.Met, o.ReleasedBy, o.Handoff, o.Streak = s.met, s.freed, s.handoff, s.streak
	}
}

// sign returns the metadata signed: with the holder's traceparent, which is the one of ctx, in
// front (store.Sign), if the Observer has one. Nothing is authenticated.
func (c *config) sign(ctx context.Context, metadata string) string {
	if t, ok := c.observer.(HolderTracer); ok {
		return store.Sign(traceparent(ctx, t), metadata)
	}
	return metadata
}

// traceparent returns the span that t finds in ctx, or "" if t panics.
func traceparent(ctx context.Context, t HolderTracer) string {
	defer absorb("Traceparent")
	return t.Traceparent(ctx)
}

// unsigned returns the metadata in signed, without a traceparent.
func unsigned(signed string) string {
	_, metadata := store.Signature(signed)
	return metadata
}

// peer returns a Peer of a holder with the given fence and signed metadata.
func peer(fence uint64, signed string) Peer {
	trace, _ := store.Signature(signed)
	return Peer{Fence: fence, Traceparent: trace}
}

// These errors are the reasons for which a lease is lost without a revocation.
var (
	errTaken     = fmt.Errorf("%w: the server names another holder, or none", ErrLost)
	errUnrenewed = fmt.Errorf("%w: no renewal succeeded before the lease ran out", ErrLost)
	errPaused    = fmt.Errorf("%w: it was not renewed in time, because this process was paused or the server did not answer", ErrLost)
)

// losses has the Outcome.Cause of each error with which a hold ends, the most precise first.
var losses = []word[string]{
	{ErrRevoked, "revoked"},
	{errUnrenewed, "unrenewed"},
	{errPaused, "paused"},
	{ErrLost, "taken"},
	{ErrExpired, "expired"},
}
