package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// Readers that the server has forgotten still keep writers out, until their leases would have
// ended.
func TestReadersThatTheServerForgotKeepWritersOut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	reader := func(c store.Claim) store.Claim { c.Mode = locker.Shared; return c }
	for name, comes := range map[string]func(s store.Store, key string) store.Claim{
		"a reader comes": func(s store.Store, key string) store.Claim {
			r := reader(claimOf(key))
			stateOf(t, store.Granted)(s.Acquire(t.Context(), r))
			return r
		},
		"a reader is let in when a writer gives up": func(s store.Store, key string) store.Claim {
			w, r := claimOf(key), reader(claimOf(key))
			w.Queue, w.HandoffTTL, r.Queue, r.HandoffTTL = true, time.Second, true, 20*time.Second
			stateOf(t, store.Busy)(s.Acquire(t.Context(), w))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), r))
			stateOf(t, store.NotOurs)(s.Release(t.Context(), w))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := locktest.ReadWriteStore(server.Client(t))
			key := rand.Text()
			stateOf(t, store.Granted)(s.Acquire(t.Context(), reader(claimOf(key))))
			if n := client.Del(t.Context(), redisstore.ReadersKey(key)).Val(); n != 1 {
				t.Fatal("positive control: no reader was forgotten")
			}
			last := comes(s, key)
			stateOf(t, store.Released)(s.Release(t.Context(), last))
			g := stateOf(t, store.Busy)(s.Acquire(t.Context(), claimOf(key)))
			if g.Holder.Left <= 0 || g.Holder.Left > time.Minute {
				t.Errorf("%v left", g.Holder.Left)
			}
		})
	}
}

// claimOf returns the claim of a new writer of the key.
func claimOf(key string) store.Claim {
	return store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
}

// stateOf returns a function that checks that an answer has the state want.
func stateOf(t *testing.T, want store.State) func(store.Grant, error) store.Grant {
	return func(g store.Grant, err error) store.Grant {
		t.Helper()
		if err != nil || g.State != want {
			t.Fatalf("%v, %v, want %v", g.State, err, want)
		}
		return g
	}
}

// A writer has become a reader. A late acquire of its token finds the token among the readers, and
// does not queue the token.
func TestALateAcquireOfAWriterThatHasBecomeAReader(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s := locktest.ReadWriteStore(server.Client(t))
	w := claimOf("a")
	w.Queue, w.HandoffTTL = true, 20*time.Second
	g := stateOf(t, store.Granted)(s.Acquire(t.Context(), w))
	shared := w
	shared.Mode, shared.Fence = locker.Shared, g.Fence
	stateOf(t, store.Granted)(store.CapabilitiesOf(s).Downgrade(t.Context(), shared))
	if late := stateOf(t, store.Granted)(s.Acquire(t.Context(), w)); late.Fence != g.Fence {
		t.Errorf("fence %d became %d", g.Fence, late.Fence)
	}
	if n := client.Exists(t.Context(), redisstore.QueueKey("a")).Val(); n != 0 {
		t.Error("it waits for itself")
	}
	// In an older version, the late acquire may have queued the token. Then the release removes the
	// token's entry from the queue.
	client.ZAdd(t.Context(), redisstore.QueueKey("a"), redis.Z{Score: 1, Member: redisstore.QueueEntry(w)})
	w.Fence = g.Fence
	stateOf(t, store.Released)(s.Release(t.Context(), w))
	nothingLeftBut(t, client)
}

// The note of a revocation concerns a whole phase. Nevertheless, an unclear acquire of one of the
// phase's readers must be undone.
func TestABrokenReaderIsUndone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := locktest.ReadWriteStore(server.Client(t))
	r := claimOf("a")
	r.Mode = locker.Shared
	g := stateOf(t, store.Granted)(s.Acquire(t.Context(), r))
	stateOf(t, store.Released)(store.CapabilitiesOf(s).Revoke(t.Context(), "a", g.Fence, "maintenance"))
	r.Fence, r.TombstoneTTL = g.Fence, time.Minute
	for range 2 {
		if answer := stateOf(t, store.Revoked)(s.Release(t.Context(), r)); answer.Reason != "maintenance" {
			t.Errorf("the reason is %q", answer.Reason)
		}
	}
	stateOf(t, store.Undone)(s.Acquire(t.Context(), r))
}

// After a writer it is the readers' turn, also when the writer was revoked. After readers it is a
// writer's turn. The Locker that revokes them need not have readers.
func TestARevocationKeepsTheTurns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := locktest.ReadWriteStore(server.Client(t))
	for name, revoker := range map[string]store.Store{"with readers": s, "without readers": locktest.SingleStore(server.Client(t))} {
		for _, held := range []store.Mode{store.Exclusive, store.Shared} {
			key := rand.Text()
			holder, w, r := claimOf(key), claimOf(key), claimOf(key)
			holder.Mode, r.Mode = held, store.Shared
			w.Queue, w.HandoffTTL, r.Queue, r.HandoffTTL = true, time.Minute, true, time.Minute
			g := stateOf(t, store.Granted)(s.Acquire(t.Context(), holder))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), w))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), r))
			stateOf(t, store.Released)(store.CapabilitiesOf(revoker).Revoke(t.Context(), key, g.Fence, "drill"))
			next, last := w, r
			if held == store.Exclusive {
				next, last = r, w
			}
			stateOf(t, store.Granted)(s.Acquire(t.Context(), next))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), last))
			holder.Fence = g.Fence
			if answer := stateOf(t, store.Revoked)(s.Release(t.Context(), holder)); answer.Reason != "drill" {
				t.Errorf("%s, %v: the reason is %q", name, held, answer.Reason)
			}
		}
	}
}

func TestDataOfAnotherTypeBesideAReadWriteLockIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newReadWrite(t, server.Client(t))
	for _, key := range []string{redisstore.ReadersKey("a"), redisstore.QueueKey("b"), "c"} {
		if err := client.HSet(t.Context(), key, "field", "value").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a", "b", "c"} {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Mode: locker.Shared, Wait: time.Second})
		if err == nil || errors.Is(err, locker.ErrBusy) {
			t.Errorf("%s: %v", key, err)
		}
		if got := client.Get(t.Context(), key).Val(); got != "" {
			t.Errorf("%s holds %q although the step was refused", key, got)
		}
	}
}

func TestADowngradeWhoseAnswerIsLostOnTheWire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy)
	loadScripts(t, client)
	l, other := newReadWrite(t, client), newReadWrite(t, server.Client(t))
	lease := acquire(t, l, locker.Rule{Key: "a"})
	lost := proxy.LoseReplies(1, scriptCall(locker.OpDowngrade, "a"))
	if err := lease.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lost.Hits() != 1 {
		t.Fatal("positive control: no answer was lost")
	}
	r := acquire(t, other, locker.Rule{Key: "a", Mode: locker.Shared})
	if r.Fence() != lease.Fence() {
		t.Fatalf("fence %d beside %d", r.Fence(), lease.Fence())
	}
	release(t, lease)
	release(t, r)
	nothingLeftBut(t, server.Client(t))
}

// While a Downgrade is under way, no nested acquire may rely on the Exclusive lease.
func TestNobodyEntersExclusiveBesideADowngrade(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	gate, arrived := make(chan struct{}), new(sync.WaitGroup)
	arrived.Add(1)
	slow := &locktest.HeldBack{Client: server.Client(t), Gate: gate, Arrived: arrived, SHA: scriptSHA("rw_downgrade")}
	r := locktest.Reentrant(t, newReadWrite(t, slow))
	outer := acquire(t, r, locker.Rule{Key: "doc"})
	downgraded := make(chan error, 1)
	go func() { downgraded <- outer.Downgrade(context.Background()) }()
	arrived.Wait()
	nested, err := r.Acquire(outer.Context(), locker.Rule{Key: "doc"})
	wantErr(t, err, "doc", locker.ErrUnsupported)
	close(gate)
	if err := <-downgraded; err != nil {
		t.Fatal(err)
	}
	reader := acquire(t, newReadWrite(t, server.Client(t)), locker.Rule{Key: "doc", Mode: locker.Shared, Wait: locker.NoWait})
	if nested != nil && nested.Context().Err() == nil && reader.Context().Err() == nil {
		t.Error("a writer beside a reader")
	}
	part := acquire(t, r, locker.Rule{Key: "other"})
	inside, err := r.Acquire(part.Context(), locker.Rule{Key: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := part.Downgrade(t.Context()); !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("Downgrade beside a nested hold: %v", err)
	}
	release(t, inside)
	release(t, part)
	release(t, reader)
	release(t, outer)
}
