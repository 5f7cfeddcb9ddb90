// Package otellock traces and measures locks with OpenTelemetry.
//
// Give the Observer to a Locker, and every wait for a lock shows up in the trace of the request
// that waited:
//
//	observer, err := otellock.New() // the global providers
//	…
//	l, err := locker.NewSingle(client, locker.WithObserver(observer))
//
// The spans are "acquire NAME", which covers the wait, "release NAME", "extend NAME" and "revoke
// NAME"; with [WithHoldSpans] also "hold NAME", from the grant to the release or the loss, which
// has the work under the lock as its children. A transaction of package sqllock is "transact NAME",
// with the database's own spans inside. NAME is the Rule's Name, never its key. The histogram
// latchkit.lock.acquire.duration counts and times the acquires by name, mode and result; its
// exemplars lead back to the spans.
//
// The adapters for HTTP and gRPC also report requests: the counter latchkit.lock.requests counts
// them by name and result, and the span around the request, mostly the server's, gets the
// attributes latchkit.lock.name, latchkit.lock.result and latchkit.lock.wait.duration. The results
// are acquired; replayed, for an answer that was stored; unguarded, for a request that ran without
// a lock because the adapter fails open; and why a request was refused or lost its lock: lock_busy,
// invalid_key, body_too_large, unsupported_media_type, idempotency_key_reused, delegation_refused
// and the other codes of httplock and reasons of grpclock, in lower case.
//
// What the attributes say, and when a span is an error:
//
//	latchkit.lock.name           the Rule's Name; _OTHER from the 257th on
//	latchkit.lock.mode           exclusive or shared
//	latchkit.lock.result         the locker.Result: acquired, nested, busy, timeout, released,
//	                             lost, revoked, expired, …;
//	                             committed, rolled_back, stale_fence,
//	                             fence_regressed, commit_unknown
//	latchkit.lock.fence          spans only: the lease's fence
//	latchkit.lock.ttl            spans only: the Rule's TTL in seconds
//	latchkit.lock.wait.duration  acquire spans that met another holder: the wait in seconds
//	latchkit.lock.wait.attempts  acquire spans only: calls to the server; 0 for a lease that was
//	                             handed over inside this process
//	latchkit.lock.key            spans only, and only with WithKey
//	latchkit.transaction.attempts
//	                             transact spans only: how often the transaction was begun
//	error.type                   with the status Error: what the error is, in one word
//
// A refusal that the caller asked for (busy with locker.NoWait, done with Rule.Once) is a result
// and not an error. There are no span events. Owners' tokens and error texts are never exported,
// keys only with [WithKey].
//
// # The name
//
// The directory is otel, because that is what one looks for. The package is otellock, because a
// package named otel would clash with go.opentelemetry.io/otel in every file that uses both, and
// those are the files that need this one.
package otellock
