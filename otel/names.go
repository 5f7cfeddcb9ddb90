package otellock

import (
	"slices"

	semconv "go.opentelemetry.io/otel/semconv/v1.34.0"

	"github.com/latchkit/latchkit/locker"
)

// This file has every name that this package exports to back-ends. OpenTelemetry has no
// conventions for distributed locks, so the names are our own, in the style of OpenTelemetry.

// scopeName is the name of the instrumentation scope.
const scopeName = "github.com/latchkit/latchkit/otel"

// version is the version of the instrumentation scope.
const version = "0.1.0"

const schemaURL = semconv.SchemaURL

// Attributes.
const (
	nameKey     = "latchkit.lock.name"
	modeKey     = "latchkit.lock.mode"
	resultKey   = "latchkit.lock.result"
	fenceKey    = "latchkit.lock.fence"
	ttlKey      = "latchkit.lock.ttl"
	attemptsKey = "latchkit.lock.wait.attempts"
	waitedKey   = "latchkit.lock.wait.duration"
	keyKey      = "latchkit.lock.key"
	beginsKey   = "latchkit.transaction.attempts"
	updatesKey  = "latchkit.update.attempts"

	keyHashKey     = "latchkit.lock.key.hash"
	holderFenceKey = "latchkit.lock.holder.fence"
	holderTextKey  = "latchkit.lock.holder.metadata"
	sameTraceKey   = "latchkit.lock.holder.same_trace"
	streakKey      = "latchkit.lock.handoff.streak"
	roleKey        = "latchkit.link.role"

	contendedKey = "latchkit.lock.contended"
	causeKey     = "latchkit.lock.loss.cause"
	scopeKey     = "latchkit.lock.handoff.scope"

	errorTypeKey = semconv.ErrorTypeKey
)

// other stands for each name after the first maxNames, and for each error that is not in kinds.
const other = "_OTHER"

// The operations and results that adapters report.
const (
	opTransact locker.Op = "transact" // package sqllock
	opLead     locker.Op = "lead"     // package lead
	opOverrun  locker.Op = "overrun"
	opUpdate   locker.Op = "update"  // package optimistic
	opProcess  locker.Op = "process" // package asynqlock

	resultStaleFence     locker.Result = "stale_fence" // package sqllock
	resultFenceRegressed locker.Result = "fence_regressed"
)

// withSpan has the operations that have a span. The operation is the first word of the span's name.
var withSpan = [...]locker.Op{
	locker.OpAcquire, locker.OpHold, locker.OpRelease, locker.OpExtend, locker.OpRevoke,
	opTransact, opLead, opOverrun, opUpdate, opProcess,
}

// placeOf returns the place of op in withSpan, or -1 if op has no span.
func placeOf(op locker.Op) int { return slices.Index(withSpan[:], op) }

// A link to the span of another holder has one of these roles.
const (
	roleHolder     = "holder"      // the holder that the waiter met first
	roleReleasedBy = "released_by" // the holder whose release ended the wait
)

// description describes an instrument: its name, its unit, what it measures, and the bucket
// boundaries of a histogram.
type description struct {
	name, unit, text string
	bounds           []float64
}

// The instruments.
var (
	acquireDuration = description{"latchkit.lock.acquire.duration", "s",
		"How long acquires took, from the call to the grant or the refusal, the wait included.", acquireBounds}
	waitDuration = description{"latchkit.lock.wait.duration", "s",
		"How long acquires waited for other holders. Acquires that met no holder are not counted.", acquireBounds}
	holdDuration    = description{"latchkit.lock.hold.duration", "s", "How long leases were held.", holdBounds}
	releaseDuration = description{"latchkit.lock.release.duration", "s", "How long releases took.", releaseBounds}
	heldActive      = description{"latchkit.lock.held.active", "{lock}", "Leases that this process uses now.", nil}
	waiterActive    = description{"latchkit.lock.waiter.active", "{waiter}", "Callers of this process that wait for a lock now.", nil}
	queueLength     = description{"latchkit.lock.queue.length", "{waiter}",
		"The place in the server's queue at which a wait began. 1 is the head.", queueBounds}
	handoffs        = description{"latchkit.lock.handoffs", "{handoff}", "Leases that a release handed to a waiter, without another call of the waiter.", nil}
	renewals        = description{"latchkit.lock.renewals", "{renewal}", "Renewals, also those that failed and were repeated.", nil}
	renewalMargin   = description{"latchkit.lock.renewal.margin", "s", "How much of the lease was left when a renewal was confirmed.", marginBounds}
	losses          = description{"latchkit.lock.losses", "{lock}", "Leases that ended without a release, by cause.", nil}
	fenceRejections = description{"latchkit.lock.fence.rejections", "{rejection}",
		"Transactions that the database refused because a newer holder has claimed the resource.", nil}
	fenceRegressions = description{"latchkit.lock.fence.regressions", "{regression}",
		"Transactions that were refused because the fence is smaller than the fence in the database: the lock server has lost its counter.", nil}
	requests = description{"latchkit.lock.requests", "{request}",
		"Requests that adapters guarded, by outcome. A request that lost its lock counts twice.", nil}
	replays  = description{"latchkit.idempotency.replays", "{replay}", "Requests that were answered with a stored answer.", nil}
	commits  = description{"latchkit.sql.commits", "{transaction}", "Transactions under a lease, by outcome.", nil}
	nodesOut = description{"latchkit.quorum.nodes.out", "{node}", "Nodes of quorums without a vote, as this process sees them.", nil}
)

// These are the bucket boundaries of the histograms.
var (
	// acquireBounds are the usual boundaries for database calls, with larger boundaries added,
	// because an acquire can be one call or a long wait.
	acquireBounds = []float64{0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60}
	releaseBounds = acquireBounds[:10] // a release takes 2 s at most
	// holdBounds reach from the time of one statement to the time of a nightly job.
	holdBounds   = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 3600}
	marginBounds = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60}
	queueBounds  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
)
