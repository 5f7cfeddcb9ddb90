package storetest

import (
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// Harness gives the laws a Store and functions that disturb the Store. If a function is nil, the
// laws that need it are left out, and the test's log shows that.
type Harness struct {
	// Store is the tested Store. Each law uses keys and owners of its own.
	Store store.Store
	// Can lists the capabilities of the Store, which select the optional laws. All other laws
	// are mandatory.
	Can Capabilities
	// LoseReply makes the next call of op for key fail without an answer after it has run. If
	// LoseReply is nil, the laws that need it are left out.
	LoseReply func(t testing.TB, op locker.Op, key string)
	// Losses is for a Store whose step is more than one call to a server. All calls of Store must
	// go through Losses. Each law is then checked again for each of its calls, with the request or
	// the reply of this call lost. If Losses is nil, each law is checked once.
	Losses *Losses
	// Occupy makes another library or program hold key for ttl, or without end when ttl is 0. If
	// Occupy is nil, the laws that need it are left out.
	Occupy func(t testing.TB, key string, ttl time.Duration)
	// Spoil puts data that is no lock at key, and returns a function that reports whether the data
	// is still there. If Spoil is nil, the laws that need it are left out.
	Spoil func(t testing.TB, key string) (intact func() bool)
	// Another returns the Store of another process on the same data. If Another is nil, the laws
	// that need it are left out.
	Another func(t testing.TB) store.Store
	// Kill ends the process whose Store Another returned: when Kill returns, no process listens at
	// its inbox, and its calls fail. If Kill is nil, the laws that need it are left out.
	Kill func(t testing.TB, s store.Store)
	// Deafen removes the subscription of the process of Store, or of a Store that Another returned.
	// The process does not notice that. If Deafen is nil, the laws that need it are left out.
	Deafen func(t testing.TB, s store.Store)
	// Left returns how long the lease of key still lasts; it is negative for a lease without end.
	// Left is for a Store whose answers do not show this time. If Left is nil, the answers show the
	// time.
	Left func(t testing.TB, key string) time.Duration
	// Queued counts the entries in key's queue. This number includes entries that were handed
	// the key and have not confirmed the hand-off. If Queued is nil, the laws that need it are
	// left out.
	Queued func(t testing.TB, key string) int
}

// Run checks all laws in parallel, with one Harness for each law. Use Run for Stores on a real
// server.
func Run(t *testing.T, setup func(t *testing.T) Harness) {
	t.Helper()
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			if h.Losses == nil {
				l.run(t, h)
				return
			}
			h.Losses.lose(noCall, "")
			if l.run(t, h); l.losesCalls(h) {
				l.runWithLosses(t, h.Losses.count(), setup)
			}
		})
	}
}

// RunInBubble checks every law inside a testing/synctest bubble, where time is virtual. Use
// RunInBubble for Stores in memory.
func RunInBubble(t *testing.T, setup func(t *testing.T) Harness) {
	t.Helper()
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { l.run(t, setup(t)) })
		})
	}
}

// A law is a rule, named by a sentence, that every Store with the needed capabilities must obey.
type law struct {
	name  string
	needs func(h Harness) bool // nil: every Store must obey the law
	check func(b *bench)
}

// applies reports whether h meets the needs of the law.
func (l law) applies(h Harness) bool { return l.needs == nil || l.needs(h) }

// run checks the law with the Harness h, or skips it if h does not meet its needs.
func (l law) run(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("lockertest: the Harness has no Store")
	}
	if !l.applies(h) {
		t.Logf("left out: this Store's Harness does not offer what the law needs")
		return
	}
	l.check(&bench{TB: t, Harness: h, key: "law:" + rand.Text()})
}
