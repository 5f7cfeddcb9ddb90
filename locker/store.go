package locker

import (
	"context"
	"fmt"
	"time"
)

// A Store makes the atomic steps of one kind of lock. It never waits for a lock, and holds no state of a lease: tokens,
// deadlines, waiting, renewal and undoing are the Engine's. It may keep a queue of who waits, on the server; then a step that
// frees a key, or finds it free, hands it to the first of them.
//
// Each method is atomic per claim, idempotent per Owner (a repeated call gives the same answer and the same fence, and
// changes nothing else), and is sent to the server at most once: only the Engine repeats calls, because only it knows
// which attempts were unclear. An error that proves that nothing was done is a [*Refusal]; any other is unclear.
//
// ctx carries values for tracing, and may end a call early; the Engine does not rely on that.
type Store interface {
	// Acquire answers Granted, Busy, Undone, Revoked or Done.
	Acquire(ctx context.Context, c Claim) (Grant, error)
	// Renew makes leases last at least c.TTL from now, never shortens one, never creates one. It answers Granted, NotOurs
	// or Revoked for each claim, in order, or Grant.Err for one that has no answer while others have. At most 100 claims are
	// given.
	Renew(ctx context.Context, cs []Claim) ([]Grant, error)
	// Release frees the lease (or keeps it without an owner for c.Keep). It answers Released, NotOurs
	// or Revoked, and Done when the lease is not the owner's but c.Complete was asked for and the mark is there.
	Release(ctx context.Context, c Claim) (Grant, error)
}

// Claim is what the Engine asks of a Store for one hold. Which fields matter stands beside them. What a queue may know of a
// claim (Inbox, Hand, Mode, Block, Metadata, whether Once is asked for) is the same in all calls for one Owner.
type Claim struct {
	Key   string // with the Locker's prefix
	Owner string // one hold's token: a secret, never reused, without ':'
	Mode  Mode

	TTL      time.Duration // Acquire, Renew: how long the server keeps the lease from now
	Block    int           // Acquire: how many fences to reserve, ≥ 1
	Metadata string        // Acquire: lies in the lease
	Once     time.Duration // Acquire: > 0 asks for the done mark. Release with Complete: sets it for this long

	Queue bool          // Acquire: if busy, wait in the server's queue. Release: Owner may be in it, and leaves it
	Inbox string        // with Queue: where a grant is told; "": nowhere, the owner asks again from time to time. With Shared: where it is told that a writer waits
	Hand  time.Duration // with Queue: how long the server keeps the lease if it hands it over, until the owner is heard of

	Fence    uint64        // Renew, Release: the phase that the owner reads in, 0 when it does not. Downgrade: of the phase to be
	Handed   bool          // Renew: the lease was handed over, and this is its confirmation
	Keep     time.Duration // Release: keep the key this long, without an owner
	Complete bool          // Release: set the done mark
	Undo     time.Duration // Release: > 0: refuse a late Acquire of Owner for this long
	Next     *Claim        // Release: an Acquire of the same key in the same step, behind everybody who waits

	Pass *Pass // all steps of a Joiner: for which lease Owner was let in
}

// Format prints the claim without its Owner, which is a secret.
func (c Claim) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "claim of %s for %v (%v)", c.Key, c.TTL, c.Mode)
}

// Grant is a Store's answer.
type Grant struct {
	State  State
	At     time.Time // Granted, Busy: the server's clock; zero where the Store has none
	Fence  uint64    // Granted: the first fence of the hold, 0 where the Store cannot mint one
	Block  int       // Granted: how many fences are reserved
	Holder Holder    // Busy: who holds the key
	Place  int       // Busy: place in the server's queue, 1 is the head; what it would be, for who does not queue; 0: no queue
	Deaf   bool      // Busy: nobody listens at Claim.Inbox on the server that answered
	Rounds int       // round trips that a quorum needed; 0 where there is one server
	// Busy: parts of the Store gave no answer and may hold the key for the owner, who must be released in the end although it
	// does not wait in a queue.
	Unsettled bool
	Writer    bool   // Granted to a reader, and of its renewal: a writer waits, so that no more callers should share the lease
	Reason    string // Revoked: what Break was told
	Err       error  // Renew: why this claim has no answer while others have one; it is renewed again later
	Next      *Grant // Released with Claim.Next: the answer to that: Granted or Busy, Undone when it was refused

	Left time.Duration // Granted by a Joiner: how long the lease that was joined lasts; otherwise 0, and it lasts for Claim.TTL
}

// Holder is what a Store knows of whoever holds a key.
type Holder struct {
	Fence    uint64        // 0: unknown
	Left     time.Duration // until the lease ends unless renewed; < 0: it has no end
	Metadata string
	Foreign  bool // another library or program holds the key
}

// State is a Store's answer in one word.
type State uint8

const (
	Granted  State = iota + 1 // the owner holds the key
	Busy                      // somebody else does
	Undone                    // this Owner was undone before; it gets nothing
	Revoked                   // this Owner was thrown out by Break
	Done                      // Once was asked for and the mark is there
	Released                  // the owner held the key, and does not any more
	NotOurs                   // the owner does not hold the key
)

var stateNames = [...]string{"", "granted", "busy", "undone", "revoked", "done", "released", "not ours"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) && s > 0 {
		return stateNames[s]
	}
	return "unknown"
}

// Several is a Store that can take several keys in one step, for [RunAll].
type Several interface {
	// AcquireAll grants all claims or none. It answers Granted for each of them; or, with nothing taken, Busy, Done, Undone or
	// Revoked for those in the way, and NotOurs for those that could have been granted. Nobody joins a queue or is overtaken: a
	// free key for which somebody may be waiting is Busy, with no time Left of a Holder. An owner that holds its key already is
	// Granted it as it stands, whatever becomes of the others. Keys that cannot be taken in one step are a [*Refusal].
	AcquireAll(ctx context.Context, cs []Claim) ([]Grant, error)
}

// A Notifier is a Store that tells waiters of this process when their turn comes, or when they should ask again. Events
// may be lost, late or repeated: whatever is in doubt is asked again with Acquire. While there is no Inbox, and for a Store
// that is no Notifier, waiters ask again after the pauses of their Backoff.
type Notifier interface {
	// Listen makes the Store call tell with every event, until stop is called. tell does not block, and is not called by
	// two goroutines at once. stop returns when tell will not be called any more. It is called once, before all else.
	Listen(tell func(Event)) (stop func())
	// Inbox names where this process is told about key, "" while it does not listen. It does not block.
	Inbox(key string) string
	// Open begins to listen for key, and returns the Inbox when the server has confirmed it.
	Open(ctx context.Context, key string) (string, error)
	// Reset makes an inbox be subscribed afresh, on another connection: the server has said that it is Deaf. EventReopened
	// follows.
	Reset(inbox string)
}

// Event is what a Notifier tells.
type Event struct {
	Kind   EventKind
	Key    string        // with the Locker's prefix; "" with EventReopened: all
	Owner  string        // EventGranted, EventDone, EventHead: whom it concerns
	Fence  uint64        // EventGranted: the first fence of the hold
	Block  int           // EventGranted: how many fences are reserved
	Hand   time.Duration // EventGranted: how long the server keeps the lease. EventHead: when the key is free at the latest
	At     time.Time     // EventGranted: the server's clock at the grant
	Writer bool          // EventGranted to a reader: a writer waits already
}

// Format prints the event without its Owner, which is a secret.
func (e Event) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "event %d about %s", e.Kind, e.Key)
}

// EventKind says what happened.
type EventKind uint8

const (
	EventGranted  EventKind = iota + 1 // Owner was taken from the queue and holds the key
	EventDone                          // Owner waited for work that is done now, and left the queue
	EventHead                          // Owner is the head of the queue now; it should ask again when Hand is over
	EventFree                          // the key may be free: who waits for it should ask again
	EventReopened                      // events may have been lost: everybody should ask again
	EventWriter                        // Owner reads, and a writer waits: no more callers should share the lease
)

// An Inspector is a Store that can say who holds a key.
type Inspector interface {
	Inspect(ctx context.Context, key string) (Info, error)
}

// A Breaker is a Store that can throw a holder out. It answers Released, or NotOurs when no holder has that fence.
type Breaker interface {
	Break(ctx context.Context, key string, fence uint64, reason string) (Grant, error)
}

// A Fencer is a Store whose fence counter can be raised, after the server lost its data. It never lowers it.
type Fencer interface {
	RaiseFence(ctx context.Context, key string, atLeast uint64) error
}

// A Downgrader is a Store with readers: it grants claims with Mode Shared, to many owners at once. A phase is the time from the
// first of them to the last; all of a phase have one fence. Phases are fair: after a writer all readers who wait enter together,
// after the last reader one writer, and while a writer waits nobody else enters. Each reader's part runs out by itself.
//
// All steps of an owner are answered by what the owner has on the server, whatever the Mode of the Claim: after a Downgrade that
// was not answered that may be either.
type Downgrader interface {
	// Downgrade makes a writer the first reader of a phase with fence c.Fence, its own, and lets in all readers who wait. It
	// answers Granted, NotOurs or Revoked.
	Downgrade(ctx context.Context, c Claim) (Grant, error)
}

// An Examiner is a Store that can tell what is unsafe about its server. What cannot be found out is left out.
type Examiner interface {
	Examine(ctx context.Context) []Warning
}

// Info says who holds a key.
type Info struct {
	Held     bool
	Kept     bool // released, but kept by Rule.AtLeast
	Foreign  bool // held by another library or program, so all below but Left is unknown
	Mode     Mode
	Fence    uint64        // what Break wants to be told
	Since    time.Time     // when it was granted, by the server's clock; zero when unknown
	Left     time.Duration // until the lease ends unless renewed; < 0: it has no end
	Waiters  int           // entries in the server's queue
	Readers  int           // with Mode Shared: how many leases share the key; one for each process that reads, mostly
	Metadata string
}
