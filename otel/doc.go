// Package otellock traces and measures locks with OpenTelemetry.
//
// Give the Observer to a Locker. Then the trace of a request shows each wait for a lock:
//
//	observer, err := otellock.New() // the global providers
//	…
//	l, err := locker.New(client, locker.WithObserver(observer))
//
// The spans are "acquire NAME", which covers the wait, "release NAME", "extend NAME" and "revoke
// NAME". With [WithHoldSpans] there is also "hold NAME", from the grant to the release or the loss.
// It ends with released when its holder gave the lease back; "release NAME" says what the server
// answered. The spans of the work under the lock are children of "hold NAME". Packages on top of the locks
// have spans too: "transact NAME" for a transaction of package sqllock, with the database's own
// spans inside; "lead NAME" for a term of package lead; "overrun NAME" for a leader's function that
// still runs after its term; "update NAME" for an update of package optimistic; and "process NAME"
// around the locks and the work of a task of package asynqlock, unless another instrumentation has
// begun a span of the task. NAME is the Rule's Name, never its key.
//
// The span of an acquire that met another holder has two links. The link with the role "holder"
// leads to the span in which that holder acquired the lock. The link with the role "released_by"
// leads to the acquire span of the holder whose release ended the wait. If the holder's span is
// sampled, a link can also lead into another process and another trace. See [WithoutLinks].
//
// These are the instruments. Times are measured in seconds. Each instrument has latchkit.lock.name
// and the listed attributes:
//
//	latchkit.lock.acquire.duration   histogram: mode, result, contended, error.type
//	latchkit.lock.wait.duration      histogram: mode, result; acquires that met another holder
//	latchkit.lock.hold.duration      histogram: mode, result
//	latchkit.lock.release.duration   histogram: mode, result, error.type
//	latchkit.lock.held.active        present number: mode
//	latchkit.lock.waiter.active      present number: mode
//	latchkit.lock.queue.length       histogram: mode; the place at which a wait began
//	latchkit.lock.handoffs           counter: mode, handoff.scope (local, remote)
//	latchkit.lock.renewals           counter: mode, error.type
//	latchkit.lock.renewal.margin     histogram: mode; what was left of the lease at the renewal
//	latchkit.lock.losses             counter: mode, loss.cause (taken, unrenewed, paused, revoked,
//	                                 expired)
//	latchkit.lock.requests           counter: result; requests that adapters guarded
//	latchkit.lock.fence.rejections   counter: transactions refused because a newer holder came
//	latchkit.lock.fence.regressions  counter: transactions refused because the fence went back
//	latchkit.sql.commits             counter: result
//	latchkit.idempotency.replays     counter
//	latchkit.quorum.nodes.out        present number, without a name: nodes without a vote
//
// Exemplars connect the values in a histogram with the spans.
//
// The adapters for HTTP and gRPC also report requests. The counter latchkit.lock.requests counts
// these requests by name and result. The span around the request, usually the server's, gets the
// attributes latchkit.lock.name, latchkit.lock.result and latchkit.lock.wait.duration. The result
// is acquired; replayed, if a stored answer was sent; or unguarded, if the request ran without a
// lock because the adapter fails open. Otherwise the result is the reason why the request was refused
// or lost its lock. The reasons are lock_busy, invalid_key, body_too_large, unsupported_media_type,
// idempotency_key_reused and the other codes of httplock and reasons of grpclock, in lower case. Of
// several locks, the span shows the last one, or the one that the request waited for.
//
// These are the attributes:
//
//	latchkit.lock.name           the Rule's Name; _OTHER for every name after the first 256
//	latchkit.lock.mode           exclusive or shared
//	latchkit.lock.result         the locker.Result: acquired, nested, busy, timeout, released,
//	                             lost, revoked, expired, …;
//	                             committed, rolled_back, stale_fence,
//	                             fence_regressed, commit_unknown; enqueued; processed, failed,
//	                             snoozed, dropped, archived
//	latchkit.lock.contended      metrics only: whether the acquire met another holder
//	latchkit.lock.fence          spans and links only: the lease's fence
//	latchkit.lock.ttl            spans only: the Rule's TTL in seconds
//	latchkit.lock.wait.duration  acquire spans that met another holder: the wait in seconds
//	latchkit.lock.wait.attempts  acquire spans only: calls to the server; 0 for a lease that was
//	                             handed over inside this process
//	latchkit.lock.holder.fence   acquire spans only: the fence of the holder that blocked the caller;
//	                             of a semaphore: the first fence since the key was free
//	latchkit.lock.holder.metadata
//	                             acquire spans only: the name that the last holder seen gave itself,
//	                             see locker.WithMetadata; of a semaphore: none
//	latchkit.lock.holder.same_trace
//	                             acquire spans only: this holder belongs to the same trace, so the
//	                             caller may be waiting for itself
//	latchkit.lock.handoff.streak acquire spans only: how often the lease had been handed over
//	                             inside this process
//	latchkit.lock.key.hash       acquire and hold spans: a salted hash of the key, see WithKeySalt
//	latchkit.lock.key            spans and logs, and only with WithKey
//	latchkit.transaction.attempts
//	                             transact spans only: how often the transaction was begun
//	latchkit.update.attempts     update spans only: how often the value was read; more than 1 after
//	                             a conflict
//	latchkit.link.role           links only: holder, released_by
//	server.address, server.port  the lock server, with WithServer
//	error.type                   with the status Error: the kind of error, in one word
//
// A refusal that the caller asked for (busy with locker.NoWait, done with Rule.OnceFor) is a result
// and not an error, and so is the rollback of an idempotent request that failed. There are no span events. Losses, late or failed renewals, excluded nodes of a
// quorum and warnings about the server are log records: see [WithLogger]. Owners' tokens are never
// exported, keys only with [WithKey], and error texts only in logs.
//
// # The name
//
// The directory is otel, because users look for that name. The package is otellock, because a
// package named otel would clash with go.opentelemetry.io/otel in every file that uses both
// packages.
package otellock
