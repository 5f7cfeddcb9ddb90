package redisstore_test

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

func TestWhoLetsAHandedKeyLapseLosesAllItsPlaces(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	// The process behind "stopped" does not react, but the server still counts its connection.
	stopped, listener := l.listen(), l.listen()
	holder := l.newHolder()
	first := l.newWaiter(stopped.name)
	l.newWaiter(stopped.name)
	next := l.newWaiter(listener.name)
	l.newWaiter(stopped.name)
	l.release(holder, store.Released)
	stopped.wantGranted(first)
	l.server.Del(t.Context(), l.key) // as if the claim had expired without a confirmation

	g := l.acquire(next, store.Granted) // the owner of the claim next is now the first waiter, and asks
	if g.Fence == 0 {
		t.Fatalf("%+v", g)
	}
	l.wantQueued()
	l.release(next, store.Released)

	// A newcomer asks before the next waiter does, but the next waiter gets the key.
	holder = l.newHolder()
	first = l.newWaiter(stopped.name)
	next = l.newWaiter(listener.name)
	mine := l.newWaiter(stopped.name)
	l.release(holder, store.Released)
	stopped.wantGranted(first)
	l.server.Del(t.Context(), l.key)
	l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
	listener.wantGranted(next)
	l.wantQueued("-" + next.Owner)
	if g := l.acquire(mine, store.Busy); g.Place != 1 { // the owner of "mine" is still alive, and queues again, behind the owner of "next"
		t.Fatalf("%+v", g)
	}
	l.release(next, store.Released)
	stopped.wantGranted(mine)
}

func TestASignOfLifeEndsTheHandOver(t *testing.T) {
	t.Parallel()
	for name, sign := range map[string]func(l *line, c store.Claim){
		"acquire": func(l *line, c store.Claim) { l.acquire(c, store.Granted) },
		"confirm": func(l *line, c store.Claim) { c.ByHandoff = true; l.renew(c, store.Granted) },
		"release": func(l *line, c store.Claim) { l.release(c, store.Released) },
		"keep":    func(l *line, c store.Claim) { c.KeepFor = time.Minute; l.release(c, store.Released) },
		"break": func(l *line, c store.Claim) {
			i, _ := store.CapabilitiesOf(l.store).Inspect(l.Context(), l.key)
			if g, err := store.CapabilitiesOf(l.store).Revoke(l.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
				l.Fatal(g, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sharedLine(t)
			listener := l.listen()
			holder := l.newHolder()
			c := l.newWaiter(listener.name)
			l.release(holder, store.Released)
			listener.wantGranted(c)
			l.wantQueued("-" + c.Owner)
			l.renew(c, store.Granted) // an ordinary renewal does not read the queue
			l.wantQueued("-" + c.Owner)
			other := l.claim(listener.name)
			if name != "release" && name != "break" {
				l.acquire(other, store.Busy)
				sign(l, c)
				l.wantQueued(other.Owner)
			} else {
				sign(l, c)
				l.wantQueued()
				l.newHolder()
				l.acquire(other, store.Busy)
			}
			l.server.Del(t.Context(), l.key) // the lease expires, but was confirmed: no waiter is removed
			l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
			l.wantHolder(other)
		})
	}
}

// An owner that got the key by hand-off may be stopped. So the next process that has waited for
// long must watch the owner.
func TestTheNextProcessIsToldThatItIsTheHead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waited   time.Duration
		fresh    bool // the next process and the process behind it have not waited for long
		dead     bool // the next process is dead
		notified string
	}{
		"after a short wait nobody":     {waited: 0},
		"after a long wait":             {waited: 600 * time.Millisecond, notified: "next"},
		"only the winner's have waited": {waited: 600 * time.Millisecond, fresh: true},
		"the one behind, if it lives":   {waited: 600 * time.Millisecond, dead: true, notified: "last"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sharedLine(t)
			ears := map[string]*listener{"winner": l.listen(), "next": l.listen(), "last": l.listen()}
			holder := l.newHolder()
			first := l.newWaiter(ears["winner"].name)
			for range 20 {
				l.newWaiter(ears["winner"].name)
			}
			if c.fresh {
				l.ageQueue(time.Hour + c.waited)
			}
			l.newWaiter("")
			claims := map[string]store.Claim{"next": l.newWaiter(ears["next"].name), "last": l.newWaiter(ears["last"].name)}
			if c.fresh || c.waited == 0 { // the waiters' tickets are an hour ahead, so the waiters count as new even on a slow machine
				l.ageQueue(-time.Hour)
			} else {
				l.ageQueue(c.waited)
			}
			if c.dead {
				ears["next"].sub.Close()
				eventually(t, "the server knows that it is dead", func() bool {
					return l.server.PubSubNumSub(t.Context(), ears["next"].name).Val()[ears["next"].name] == 0
				})
				delete(ears, "next")
			}
			l.release(holder, store.Released)
			ears["winner"].wantGranted(first)
			for name, listener := range ears {
				if name == c.notified {
					want := fmt.Sprintf("head %d %s %s", handedTTL.Milliseconds(), claims[name].Owner, l.key)
					if got := listener.nextMessage(); got != want {
						t.Errorf("%s received %q, want %q", name, got, want)
					}
				}
				listener.wantSilence()
			}
		})
	}
}

// The confirmation of a lease that was handed over lengthens the lease, as a renewal does. A late
// confirmation does not undo a longer extension.
func TestALateConfirmationDoesNotShorten(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.newHolder()
	listener := l.listen()
	c := l.newWaiter(listener.name)
	l.release(holder, store.Released)
	listener.wantGranted(c)
	c.ByHandoff = true
	for _, ttl := range []time.Duration{time.Hour, time.Second} {
		c.TTL = ttl
		l.renew(c, store.Granted)
		if left := l.server.PTTL(t.Context(), l.key).Val(); left < 50*time.Minute {
			t.Errorf("after a confirmation by %v the lease lives for %v", ttl, left)
		}
	}
	l.release(c, store.Released)
}
