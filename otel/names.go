package otellock

import (
	semconv "go.opentelemetry.io/otel/semconv/v1.34.0"

	"github.com/latchkit/latchkit/locker"
)

// Every name that leaves this package stands in this file. OpenTelemetry has no conventions for
// distributed locks, so the names are our own, in its style.

// ScopeName is the name of the instrumentation scope.
const ScopeName = "github.com/latchkit/latchkit/otel"

// Version is the version of the instrumentation scope.
const Version = "0.1.0"

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

	errorTypeKey = semconv.ErrorTypeKey
)

// other stands for a name or an error that would be one too many.
const other = "_OTHER"

// verbs begin the names of spans. What is not in here has no span.
var verbs = [...]string{
	locker.OpAcquire: "acquire",
	locker.OpHold:    "hold",
	locker.OpRelease: "release",
	locker.OpExtend:  "extend",
	locker.OpRevoke:  "revoke",

	locker.OpTransact: "transact",
	locker.OpLead:     "lead",
	locker.OpOverrun:  "overrun",
}

// The instruments.
const (
	requestsName        = "latchkit.lock.requests"
	requestsUnit        = "{request}"
	requestsDescription = "Requests that adapters guarded, by what became of them. One that lost its lock counts twice."

	durationName        = "latchkit.lock.acquire.duration"
	durationUnit        = "s"
	durationDescription = "How long acquires took, from the call to the grant or the refusal, the wait included."
)

// durationBounds are those of database calls with a tail, because an acquire is one call or a long
// wait.
var durationBounds = []float64{0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60}
