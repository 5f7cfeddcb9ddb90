package store

import (
	"fmt"
	"strings"
	"time"
)

// Claim is a request of the Engine to a Store for one hold. The comment beside a field names the
// calls that use it. A Store may keep the fields Inbox, HandoffTTL, Mode, Limit, Weight, FenceCount
// and Metadata in its queue, and also whether OnceFor is set. These values are the same in all
// calls for one Owner.
type Claim struct {
	Key   string // the key with the Locker's prefix
	Owner string // the token of one hold: a secret without ':', used for one hold only
	Mode  Mode

	// Limit > 0 makes the claim a claim of a semaphore. Owner gets a permit for Weight units if,
	// with these units, at most Limit units of the key are held. The Engine gives such claims
	// only to a Store with [Capabilities].Permits.
	Limit  int
	Weight int // with Limit: at least 1

	TTL        time.Duration // Acquire, Renew: how long the server keeps the lease from now
	FenceCount int           // Acquire: how many fences to reserve, at least 1
	Lone       bool          // Acquire: one fence suffices if the key is free, because nobody else in the process wants it
	Metadata   string        // Acquire: stored in the lease, with what Sign has added to it
	OnceFor    time.Duration // Acquire: > 0 asks for the done mark. Release with Complete: how long the mark lasts

	// Queue, Acquire: if the key is busy, Owner waits in the server's queue. Release: Owner may be
	// in the queue, and leaves it.
	Queue bool
	// Inbox with Queue: the address at which Owner receives its grant. If Inbox is "", Owner polls.
	// With Shared: the address at which Owner is notified that a writer waits.
	Inbox string
	// HandoffTTL with Queue: how long the server keeps the lease after a hand-off, until Owner
	// confirms it.
	HandoffTTL time.Duration

	Fence        uint64        // Renew, Release: the fence of a reader's phase, 0 for writers
	ByHandoff    bool          // Renew: the lease came by hand-off, and this call confirms it
	KeepFor      time.Duration // Release: keep the key locked for this long, without an owner
	Complete     bool          // Release: set the done mark
	TombstoneTTL time.Duration // Release: > 0: refuse a late Acquire of Owner for this long
}

// Format prints the claim without its Owner, which is a secret.
func (c Claim) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "claim of %s for %v (%v)", c.Key, c.TTL, c.Mode)
}

// Mode determines whether several holders may share a key.
type Mode uint8

const (
	// Exclusive admits one holder. Exclusive is the zero value.
	Exclusive Mode = iota
	// Shared admits many Shared holders at once, and no Exclusive holder. Lockers without readers
	// return [ErrUnsupported].
	Shared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// ReservedPrefix is the beginning of the keys in which latchkit keeps its own data beside the
// leases, such as queues and fence counters. [CheckKey] refuses keys that begin with
// ReservedPrefix.
const ReservedPrefix = "latchkit:"

// MaxKeyBytes is the largest length of a key with its prefix, in bytes. If a key would be
// longer, lock its hash instead.
const MaxKeyBytes = 512

// CheckKey returns an error if the key l cannot be locked.
func CheckKey(l string) error {
	switch {
	case l == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidKey)
	case len(l) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed; hash the long part", ErrInvalidKey, len(l), MaxKeyBytes)
	case strings.HasPrefix(l, ReservedPrefix):
		return fmt.Errorf("%w: keys that start with %q are reserved for the locks' own data", ErrInvalidKey, ReservedPrefix)
	case HashTag(l) == l && strings.Contains(l, "}"):
		return fmt.Errorf("%w: it has a '}' but no hash tag {…}, so its companion keys cannot be put into its cluster slot", ErrInvalidKey)
	}
	return nil
}

// HashTag returns the part of l that Redis Cluster hashes. This is the text between the first '{'
// and the first '}' after it. If l has no such pair of braces, or no text between the two, HashTag
// returns all of l.
func HashTag(l string) string {
	if _, rest, ok := strings.Cut(l, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return l
}
