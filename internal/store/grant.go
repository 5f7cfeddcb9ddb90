package store

import (
	"time"
)

// Grant is a Store's answer.
type Grant struct {
	State      State
	At         time.Time // Granted, Busy: the server's clock; zero where the Store has none
	Fence      uint64    // Granted: the first fence of the hold; 0 if the Store cannot make fences
	FenceCount int       // Granted: how many fences are reserved
	Holder     Holder    // Busy: the holder of the key
	// Busy: the place in the server's queue, or the place that a waiter would get. 1 is the head. 0
	// means that there is no queue.
	Place        int
	NotListening bool // Busy: the server that answered has no subscriber at Claim.Inbox
	Rounds       int  // the round trips that a quorum needed; 0 on one server
	// Busy: some nodes did not answer and may have granted the key. The Engine must release the
	// token even if it is not queued.
	Unsettled bool
	// Doubled is true if the call was sent twice, and one of the two may still arrive, or has arrived
	// before this one. So the token is not given back without a tombstone, and a release that finds the
	// lease gone may have ended it itself.
	Doubled bool
	Writer  bool   // Granted to a reader, also by Renew: a writer waits, so no more callers may share the lease
	Reason  string // Revoked: the reason given to Revoke
	Err     error  // Renew: why this claim has no answer; the Engine renews the claim again later
}

// Holder is what a Store knows about the holder of a key.
type Holder struct {
	Fence    uint64        // 0: unknown
	Left     time.Duration // the time until the lease ends unless renewed; < 0: it has no end
	Metadata string
	Foreign  bool // another library or program holds the key
	Kept     bool // the lease was released, and the key stays locked for Left because of Rule.KeepFor
}

// State is the answer of a Store in one word.
type State uint8

const (
	Granted State = iota + 1 // the owner holds the key
	Busy                     // another owner holds the key
	// Undone: this Owner was released before, and the Store refuses every later acquire with this
	// Owner: see Claim.TombstoneTTL.
	Undone
	Revoked  // an operator has revoked the lease of this Owner
	Done     // Claim.OnceFor is set and the done mark exists
	Released // the owner has released the key
	NotOurs  // the owner does not hold the key
)

var stateNames = [...]string{"", "granted", "busy", "undone", "revoked", "done", "released", "not ours"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) && s > 0 {
		return stateNames[s]
	}
	return "unknown"
}

// A Refusal is the error of a [Store] when the server's answer, or the lack of an answer, proves
// that the call had no effect. Every other error of a Store counts as unclear, because the call may
// have run, or may still run.
type Refusal struct {
	// Temporary means that the same call may succeed soon: the server loads its data, fails over,
	// or cannot be dialled.
	Temporary bool
	// UntilRepaired means that the server refuses calls until an operator does something: it
	// rejects the login, or cannot save. A caller that asks for a lease learns it at once.
	// Releases, for which no caller waits, are repeated while the lease can last.
	UntilRepaired bool
	Err           error
}

// Error returns the text of the server's answer.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the server's answer.
func (r *Refusal) Unwrap() error { return r.Err }
