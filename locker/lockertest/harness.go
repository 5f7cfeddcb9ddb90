package lockertest

import (
	"context"
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Harness hands a Store to the laws.
type Harness struct {
	// Store is the Store under test. Each law uses keys and owners of its own.
	Store locker.Store
	// Can says which laws apply; all others are mandatory.
	Can Capabilities
	// LoseReply makes the next call of op about key run and then fail without an answer. nil: the law is left out, and
	// the test's log says so.
	LoseReply func(t testing.TB, op locker.Op, key string)
	// Occupy makes another library or program hold key, for ttl or, when ttl is 0, without end. nil: left out as well.
	Occupy func(t testing.TB, key string, ttl time.Duration)
	// Spoil puts data at key that is no lock, and returns a function that says whether it is still there. nil: left out.
	Spoil func(t testing.TB, key string) (intact func() bool)
}

// Capabilities are what a Store may be unable to do.
type Capabilities struct {
	Fence    bool // mints fences
	Undo     bool // refuses a late acquire after an undo
	Once     bool // keeps done marks
	AtLeast  bool // keeps a released key
	Break    bool // throws holders out; needs Inspect
	Metadata bool // shows the holder's metadata to who is refused
	Raise    bool // raises the fence counter
}

// All is what a Store on Redis with scripts can do.
var All = Capabilities{Fence: true, Undo: true, Once: true, AtLeast: true, Break: true, Metadata: true, Raise: true}

// Run checks every law against Stores on a real server, one Harness per law, in parallel.
func Run(t *testing.T, setup func(t *testing.T) Harness) {
	t.Helper()
	for _, l := range laws {
		t.Run(l.says, func(t *testing.T) {
			t.Parallel()
			l.hold(t, setup(t))
		})
	}
}

// RunInBubble checks every law inside a testing/synctest bubble, where time is virtual: for Stores in memory.
func RunInBubble(t *testing.T, setup func(t *testing.T) Harness) {
	t.Helper()
	for _, l := range laws {
		t.Run(l.says, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { l.hold(t, setup(t)) })
		})
	}
}

// law is a sentence that is true of every Store which can do what it needs.
type law struct {
	says  string
	needs func(h Harness) bool // nil: mandatory
	check func(b *bench)
}

func (l law) hold(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("lockertest: the Harness has no Store")
	}
	if l.needs != nil && !l.needs(h) {
		t.Logf("left out: this Store's Harness does not offer what the law needs")
		return
	}
	l.check(&bench{TB: t, Harness: h, key: "law:" + rand.Text()})
}

// bench is what a law works with: a fresh key, and words for the steps.
type bench struct {
	testing.TB
	Harness
	key string
}

// ttl is long enough that no slow machine lets a lease run out where that is not meant.
const ttl = 30 * time.Second

func owner() string { return rand.Text() }

func (b *bench) claim(owner string) locker.Claim {
	return locker.Claim{Key: b.key, Owner: owner, TTL: ttl, Block: 1}
}

func (b *bench) acquire(c locker.Claim) locker.Grant {
	b.Helper()
	g, err := b.Store.Acquire(b.Context(), c)
	if err != nil {
		b.Fatalf("acquire: %v", err)
	}
	return g
}

func (b *bench) renew(c locker.Claim) locker.Grant {
	b.Helper()
	gs, err := b.Store.Renew(b.Context(), []locker.Claim{c})
	if err != nil {
		b.Fatalf("renew: %v", err)
	}
	if len(gs) != 1 {
		b.Fatalf("renew: %d answers to one claim", len(gs))
	}
	return gs[0]
}

func (b *bench) release(c locker.Claim) locker.Grant {
	b.Helper()
	g, err := b.Store.Release(b.Context(), c)
	if err != nil {
		b.Fatalf("release: %v", err)
	}
	return g
}

// want fails the law unless the answer is the expected one.
func (b *bench) want(g locker.Grant, s locker.State, when string) locker.Grant {
	b.Helper()
	if g.State != s {
		b.Fatalf("%s: the Store answered %q, the law says %q", when, g.State, s)
	}
	return g
}

// granted acquires for a new owner, and fails the law unless it gets the key.
func (b *bench) granted() (locker.Claim, locker.Grant) {
	b.Helper()
	c := b.claim(owner())
	return c, b.want(b.acquire(c), locker.Granted, "acquire of a free key")
}

// left is how long the holder of the key has, seen by a stranger.
func (b *bench) left() time.Duration {
	b.Helper()
	return b.want(b.acquire(b.claim(owner())), locker.Busy, "acquire of a held key").Holder.Left
}

// eventually waits until a condition holds, at most for bound.
func (b *bench) eventually(bound time.Duration, what string, holds func() bool) {
	b.Helper()
	deadline := time.Now().Add(bound)
	for !holds() {
		if time.Now().After(deadline) {
			b.Fatalf("not within %v: %s", bound, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// locker returns an Engine over the Store under test.
func (b *bench) locker(opts ...locker.Option) *locker.Engine {
	b.Helper()
	return NewLocker(b.TB, b.Store, opts...)
}

// info inspects the key.
func (b *bench) info() locker.Info {
	b.Helper()
	s, ok := b.Store.(locker.Inspector)
	if !ok {
		b.Fatal("the Harness says Break, but the Store is no Inspector")
	}
	i, err := s.Inspect(context.WithoutCancel(b.Context()), b.key)
	if err != nil {
		b.Fatalf("inspect: %v", err)
	}
	return i
}
