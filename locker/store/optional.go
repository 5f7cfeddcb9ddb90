package store

import (
	"context"
	"time"
)

// BatchAcquirer is a Store that can take several keys in one step, for [RunAll].
type BatchAcquirer interface {
	// AcquireAll grants all claims or none. It answers Granted for each of them; or, with nothing
	// taken, Busy, Done, Undone or Revoked for those in the way, and NotOurs for those that could have
	// been granted. Nobody joins a queue or is overtaken: a free key for which somebody may be waiting
	// is Busy, with no time Left of a Holder. An owner that holds its key already is Granted it as it
	// stands, whatever becomes of the others. Keys that cannot be taken in one step are a [*Refusal].
	AcquireAll(ctx context.Context, cs []Claim) ([]Grant, error)
}

// An Inspector is a Store that can say who holds a key.
type Inspector interface {
	Inspect(ctx context.Context, key string) (Info, error)
}

// A Revoker is a Store that can revoke a holder. It answers Released, or NotOurs when no holder has
// that fence.
type Revoker interface {
	Revoke(ctx context.Context, key string, fence uint64, reason string) (Grant, error)
}

// A Fencer is a Store whose fence counter can be raised, after the server lost its data. It never
// lowers it.
type Fencer interface {
	RaiseFence(ctx context.Context, key string, atLeast uint64) error
}

// A Downgrader is a Store with readers: it grants claims with Mode Shared, to many owners at once.
// A phase is the time from the first of them to the last; all of a phase have one fence. Phases are
// fair: after a writer all readers who wait enter together, after the last reader one writer, and
// while a writer waits nobody else enters. Each reader's part runs out by itself.
//
// All steps of an owner are answered by what the owner has on the server, whatever the Mode of the
// Claim: after a Downgrade that was not answered that may be either.
type Downgrader interface {
	// Downgrade makes a writer the first reader of a phase with fence c.Fence, its own, and lets in
	// all readers who wait. It answers Granted, NotOurs or Revoked.
	Downgrade(ctx context.Context, c Claim) (Grant, error)
}

// A ServerChecker is a Store that can report what is unsafe about its server. What cannot be found
// out is left out.
type ServerChecker interface {
	CheckServer(ctx context.Context) []Warning
}

// Info says who holds a key.
type Info struct {
	Held     bool
	Kept     bool // released, but kept by Rule.AtLeast
	Foreign  bool // held by another library or program, so all below but Left is unknown
	Mode     Mode
	Fence    uint64        // what Revoke asks for
	Since    time.Time     // when it was granted, by the server's clock; zero when unknown
	Left     time.Duration // until the lease ends unless renewed; < 0: it has no end
	Waiters  int           // entries in the server's queue
	Readers  int           // with Mode Shared: how many leases share the key; one for each process that reads, mostly
	Metadata string
}

// A Warning says that the server is set up so that locks can be lost.
type Warning struct {
	Code string // low-cardinality: "eviction-policy"
	Text string // what is wrong and what to do
}

// A Joiner is a Store whose leases can be joined by calls in other processes.
type Joiner interface {
	// Delegate registers p.Secret while c.Owner holds c.Key, or has joined who does and may delegate:
	// a first Join must come within that time. It answers Granted or NotOurs.
	Delegate(ctx context.Context, c Claim, p Delegation, within time.Duration) (Grant, error)
	// Join makes c.Owner join the lease for which c.Pass was made, or says whether it is held still.
	// It answers Granted, with the lease's Fence and with how long it lasts, or NotOurs. It never
	// lengthens the lease.
	Join(ctx context.Context, c Claim) (Grant, error)
	// Leave takes c.Owner from those who have joined. It answers Released, or NotOurs when the lease
	// is over.
	Leave(ctx context.Context, c Claim) (Grant, error)
}

// A Closer is a Store that works in the background. [Engine.Close] calls Close once, after the last
// other call, and waits for it: at most until ctx ends, whose error Close returns then. The client
// stays open, it is the caller's.
type Closer interface {
	Close(ctx context.Context) error
}

// A Confirmer is a Store whose grants may need a confirmation. If NeedsConfirmation, a grant that a
// message has brought counts only when Acquire has returned it too, and no acquire is sent along
// with a release. It is called once, by New.
type Confirmer interface {
	NeedsConfirmation() bool
}

// A Validator is a Store that never grants some claims, whatever its server says. Validate returns
// why it would not grant claims with the Mode and the Once of c, such as ErrUnsupported, or nil. It
// sends nothing.
type Validator interface {
	Validate(c Claim) error
}
