package store

import (
	"context"
	"time"
)

// Capabilities is what a Store can do besides its three steps. A Store that can do more has the
// method Capabilities() Capabilities, which the Engine calls once, before all other methods. A
// Store cannot do what a field with the value nil or false stands for.
type Capabilities struct {
	// Notifier notifies the waiters of this process. Without a Notifier, waiters poll with the
	// pauses of their Backoff.
	Notifier Notifier

	// NeedsConfirmation: a grant by message counts only after an Acquire has returned the grant
	// too.
	NeedsConfirmation bool

	// Readers: the Store grants claims with Mode Shared to many owners at once. A phase lasts from
	// the first of these owners to the last. All owners of a phase have one fence. Phases are fair.
	// After a writer, all waiting readers enter together. After the last reader, one writer enters.
	// While a writer waits, no newcomer enters. The lease of each reader expires independently of
	// the leases of other readers.
	Readers bool

	// Permits: the Store is a semaphore, which grants claims with a Limit to many owners at once. A
	// new permit is granted only if the sum of all units, with the new ones, exceeds neither its
	// own Limit nor the Limit of any held permit. So if owners have different Limits, the smallest
	// Limit counts.
	//
	// The queue is strict: no waiter is granted units before the waiters ahead of it. Each permit
	// expires independently of other permits, and has a fence of its own, which is larger than all
	// earlier fences. A claim without a Limit excludes all permits.
	Permits bool

	// Looked is called before each look at a context that has not ended and whose innermost lease is
	// of this Store. It may take the lease away. It is for a Store of tests.
	Looked func()

	// Validate refuses some claims without asking the server. If the Store refuses claims with the
	// Mode and the OnceFor of c, Validate returns the reason, such as ErrUnsupported.
	Validate func(c Claim) error

	// Inspect returns the holder of a key.
	Inspect func(ctx context.Context, key string) (Info, error)

	// Keys returns the keys that match pattern, a glob-style pattern of Redis, and that have a
	// holder or a waiter or are kept by Rule.KeepFor. Each key appears once, and the keys are
	// sorted. Keys looks at all keys of the server, in steps that do not block the server. A
	// key that is locked or freed during the call may be missing. If only another library holds
	// a key, the key is listed only while a waiter of latchkit waits for it.
	Keys func(ctx context.Context, pattern string) ([]string, error)

	// Queue returns the entries of the queue of a key, the next waiter first. No entry contains a
	// secret.
	Queue func(ctx context.Context, key string) ([]Waiter, error)

	// Revoke revokes the lease of the holder with this fence. It returns Released, or NotOurs when
	// no holder has that fence.
	Revoke func(ctx context.Context, key string, fence uint64, reason string) (Grant, error)

	// RaiseFence raises the fence counter after the server lost its data. It never lowers the
	// counter.
	RaiseFence func(ctx context.Context, key string, atLeast uint64) error

	// CheckServer reports unsafe settings of the server. It reports no setting that it cannot read.
	CheckServer func(ctx context.Context) []Warning

	// Nodes is for a Store of several nodes, some of which may have no vote for a while. It asks
	// all nodes for their state. It also takes the steps by which a node without a vote gets its
	// vote back.
	Nodes func(ctx context.Context) ([]Node, error)

	// Watch makes the Store report what it notices between its steps: when a node stops voting,
	// when the node votes again, and when the messages of a Notifier do not arrive. The Engine
	// calls Watch once, before all other methods.
	Watch func(report func(Warning))

	// Explain returns why the last calls for the key have no answer, or nil when no reason is
	// known. The Engine calls Explain when the wait of an acquire ends before an answer has come.
	Explain func(key string) error

	// Close ends what the Store does in the background. [Engine.Close] calls Close once, after the
	// last other call, and waits until it returns, at most until ctx ends. If ctx ends first, Close
	// returns the error of ctx. The client belongs to the caller and stays open.
	Close func(ctx context.Context) error
}

// CapabilitiesOf returns the Capabilities of s.
func CapabilitiesOf(s Store) Capabilities {
	if c, ok := s.(interface{ Capabilities() Capabilities }); ok {
		return c.Capabilities()
	}
	return Capabilities{}
}

// A Waiter is an entry in the queue of a key. Callers of one process that wait for a key on equal
// terms usually share one entry.
type Waiter struct {
	Mode     Mode
	Since    time.Time // when the waiter began to wait, by the server's clock; zero when unknown
	Handed   bool      // the key was handed to the waiter, and the waiter has not confirmed yet
	Gone     bool      // the waiter's process does not listen any more, so its turn passes to the next waiter
	Process  int       // the number of the waiter's process in this answer, from 1; 0: the waiter polls, without an inbox
	Metadata string    // "" if the Store keeps no metadata of waiters

	Weight int // how many units of a semaphore the waiter needs; 0: it waits for a lock
	Limit  int // how many units may be held at once, by the waiter's Rule
}

// Info describes the holder of a key.
type Info struct {
	Held     bool
	Kept     bool // the lease was released, but Rule.KeepFor keeps the key
	Foreign  bool // another library or program holds the key; below, only Left is known
	Mode     Mode
	Fence    uint64        // the fence that Revoke needs
	Since    time.Time     // when the lease was granted, by the server's clock; zero when unknown
	Left     time.Duration // the time until the lease ends unless renewed; < 0: it has no end
	Waiters  int           // the number of entries in the server's queue
	Readers  int           // with Mode Shared: how many leases share the key, usually one for each process that reads
	Metadata string

	// Traceparent is the span under which the holder took the key, in the format of the header
	// traceparent, if the holder's Observer has stored it; "" when it is not known. Engine.Inspect
	// takes it out of Metadata (Signature), and a Store leaves it empty.
	Traceparent string

	// Reading are the leases of the readers, with Mode Shared, in the order in which they run out.
	// The fields Metadata and Since above belong to the first reader of the phase. The server
	// stores neither value for later readers.
	Reading []Reader

	// Permits are the permits of a semaphore, in the order in which they run out. Fence, above, is
	// the fence of the first permit since the key was free. All other fields above are about the
	// permit that runs out first.
	Permits []Permit
	Used    int // how many units of a semaphore are held
	Limit   int // the smallest Limit of the permits that are held
}

// A Reader is one of the leases that share a key.
type Reader struct {
	Left    time.Duration // the time until the lease runs out unless renewed
	Process int           // readers with the same number are in one process; 0: a reader that no message reaches
}

// A Permit is one holder's units of a semaphore.
type Permit struct {
	Fence    uint64        // the fence that Revoke needs
	Weight   int           // how many units the permit holds
	Limit    int           // how many units may be held at once, by the Rule of the permit's holder
	Since    time.Time     // when the permit was granted, by the server's clock; zero when unknown
	Left     time.Duration // the time until the permit ends unless renewed
	Kept     bool          // the permit was released, but Rule.KeepFor keeps its units
	Metadata string

	Traceparent string // as in Info
}

// A Warning reports a setting of the server that can lose locks.
type Warning struct {
	Code string // a code with few values, such as "eviction-policy"
	Text string // the problem, and what to do
}
