package locker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// Readers and writers on real servers.

func newReadWrite(t testing.TB, c locker.Client, opts ...locker.ReadWriteOption) *locker.Engine {
	t.Helper()
	l, err := locker.NewReadWrite([]locker.Client{c}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestNewReadWriteRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{})
	defer func() { _ = c.Close() }()
	for says, cs := range map[string][]locker.Client{
		"0 clients": {}, "2 clients": {c, c}, "nil": {nil},
	} {
		if _, err := locker.NewReadWrite(cs); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { _ = ring.Close() }()
	if _, err := locker.NewReadWrite([]locker.Client{ring}); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Error(err)
	}
}

// The lock is the key itself, so whoever else locks it, in whichever way, is kept out, and keeps readers out.
func TestReadersAndOtherLockers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	rw, single := newReadWrite(t, server.Client(t)), newSingle(t, server.Client(t))
	other := newReadWrite(t, server.Client(t)) // whose readers share no lease with those of rw
	key := locker.Rule{Key: "mixed"}
	shared := locker.Rule{Key: "mixed", Mode: locker.Shared}

	lease := acquire(t, rw, shared)
	if client.SetNX(t.Context(), key.Key, "foreign", time.Minute).Val() {
		t.Fatal("another library took what readers hold")
	}
	w := queues(t, single, key, client)
	late := queues(t, other, shared, client)
	release(t, lease)
	writer := w.granted(0)
	if writer.Fence() <= lease.Fence() {
		t.Fatalf("fence %d after %d", writer.Fence(), lease.Fence())
	}
	late.waitsStill()
	// A Locker without readers hands the key to the next as it does: the reader has it alone.
	release(t, writer)
	reader := late.granted(0)
	if reader.Fence() <= writer.Fence() || reader.Mode() != locker.Shared {
		t.Fatalf("%v, fence after %d", reader, writer.Fence())
	}
	if err := reader.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	w = queues(t, single, key, client)
	second := queues(t, rw, shared, client) // not with other, who shares what it has alone
	release(t, reader)
	release(t, second.granted(0)) // it had the key alone, like a writer, so it is the readers' turn
	release(t, w.granted(0))

	if !client.SetNX(t.Context(), key.Key, "foreign", time.Second).Val() {
		t.Fatal("the key is not free")
	}
	_, err := rw.Acquire(t.Context(), locker.Rule{Key: "mixed", Mode: locker.Shared, Wait: locker.NoWait})
	wantErr(t, err, "mixed", locker.ErrBusy)
	release(t, acquire(t, rw, shared)) // when that has run out
	nothingLeftBut(t, client)
}

func TestAfterReadersAndWritersNothingIsLeft(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	ls := []*locker.Engine{newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t), locker.WithFair())}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for n := range 30 {
				rule := locker.Rule{Key: fmt.Sprint("left:", n%3), Mode: locker.Mode((i + n) % 2), Wait: time.Duration(n%4) * 10 * time.Millisecond} //nolint:gosec // 0 or 1
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+n)*time.Millisecond)
				lease, err := ls[i%3].Acquire(ctx, rule)
				if err == nil {
					if n%5 == 0 && rule.Mode == locker.Exclusive {
						if err := lease.Downgrade(t.Context()); err != nil {
							t.Error(err)
						}
					}
					release(t, lease)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for _, l := range ls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
	nothingLeftBut(t, client, "latchkit:x:")
}

func TestAFullServerLetsReadersGoAndNoneIn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	one, other := newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t))
	shared := locker.Rule{Key: "full", Mode: locker.Shared, TTL: 3 * time.Second}
	lease := acquire(t, one, shared)
	w := queues(t, other, locker.Rule{Key: "full"}, client)
	client.ConfigSet(t.Context(), "maxmemory", "1")
	defer client.ConfigSet(context.Background(), "maxmemory", "0")
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "empty", Mode: locker.Shared})
	wantErr(t, err, "empty", locker.ErrUnavailable)
	renewed := lease.Expires()
	eventually(t, "it is renewed", func() bool { return lease.Expires().After(renewed) })
	release(t, lease)
	lease = w.granted(0)
	if err := lease.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = one.Acquire(t.Context(), shared)
	wantErr(t, err, "full", locker.ErrUnavailable)
	release(t, lease)
}

// What the server has forgotten of its readers keeps writers out all the same, until it would have run out.
func TestReadersThatTheServerForgotKeepWritersOut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	reader := func(c store.Claim) store.Claim { c.Mode = locker.Shared; return c }
	for name, comes := range map[string]func(s locker.Store, key string) store.Claim{
		"a reader comes": func(s locker.Store, key string) store.Claim {
			r := reader(claimOf(key))
			stateOf(t, store.Granted)(s.Acquire(t.Context(), r))
			return r
		},
		"a reader is let in when a writer gives up": func(s locker.Store, key string) store.Claim {
			w, r := claimOf(key), reader(claimOf(key))
			w.Queue, w.HandoffTTL, r.Queue, r.HandoffTTL = true, time.Second, true, 20*time.Second
			stateOf(t, store.Busy)(s.Acquire(t.Context(), w))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), r))
			stateOf(t, store.NotOurs)(s.Release(t.Context(), w))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := locker.ReadWriteStore(server.Client(t))
			key := rand.Text()
			stateOf(t, store.Granted)(s.Acquire(t.Context(), reader(claimOf(key))))
			if n := client.Del(t.Context(), locker.ReadersOf(key)).Val(); n != 1 {
				t.Fatal("positive control: nobody was forgotten")
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

// claimOf is a writer's.
func claimOf(key string) store.Claim {
	return store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
}

// stateOf wants an answer.
func stateOf(t *testing.T, want store.State) func(store.Grant, error) store.Grant {
	return func(g store.Grant, err error) store.Grant {
		t.Helper()
		if err != nil || g.State != want {
			t.Fatalf("%v, %v, want %v", g.State, err, want)
		}
		return g
	}
}

// An acquire of a writer that runs late, when it has become a reader, finds it among the readers, and does not queue it.
func TestALateAcquireOfAWriterThatHasBecomeAReader(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s := locker.ReadWriteStore(server.Client(t))
	w := claimOf("a")
	w.Queue, w.HandoffTTL = true, 20*time.Second
	g := stateOf(t, store.Granted)(s.Acquire(t.Context(), w))
	shared := w
	shared.Mode, shared.Fence = locker.Shared, g.Fence
	stateOf(t, store.Granted)(s.(store.Downgrader).Downgrade(t.Context(), shared))
	if late := stateOf(t, store.Granted)(s.Acquire(t.Context(), w)); late.Fence != g.Fence {
		t.Errorf("fence %d became %d", g.Fence, late.Fence)
	}
	if n := client.Exists(t.Context(), locker.QueueOf("a")).Val(); n != 0 {
		t.Error("it waits for itself")
	}
	// What has queued it nevertheless, as an older version would, goes with its release.
	client.ZAdd(t.Context(), locker.QueueOf("a"), redis.Z{Score: 1, Member: locker.EntryOf(w)})
	w.Fence = g.Fence
	stateOf(t, store.Released)(s.Release(t.Context(), w))
	nothingLeftBut(t, client)
}

// The note of a break speaks of a phase; what is unclear about one of its readers must be undone all the same.
func TestABrokenReaderIsUndone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := locker.ReadWriteStore(server.Client(t))
	r := claimOf("a")
	r.Mode = locker.Shared
	g := stateOf(t, store.Granted)(s.Acquire(t.Context(), r))
	stateOf(t, store.Released)(s.(store.Revoker).Revoke(t.Context(), "a", g.Fence, "maintenance"))
	r.Fence, r.TombstoneTTL = g.Fence, time.Minute
	for range 2 {
		if told := stateOf(t, store.Revoked)(s.Release(t.Context(), r)); told.Reason != "maintenance" {
			t.Errorf("the reason is %q", told.Reason)
		}
	}
	stateOf(t, store.Undone)(s.Acquire(t.Context(), r))
}

func TestDataOfAnotherTypeBesideAReadWriteLockIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newReadWrite(t, server.Client(t))
	for _, key := range []string{locker.ReadersOf("a"), locker.QueueOf("b"), "c"} {
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
