package locker_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// A caller whose token is the beginning of the holder's token is not the holder.
func TestTheBeginningOfATokenIsNoToken(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	backend := locktest.SingleStore(client)
	claim := store.Claim{Key: "wire:6", Owner: "user10", TTL: time.Minute}
	// latchkit cannot parse this lease, because real tokens have 26 letters. But latchkit must
	// treat the key as held.
	_, _ = backend.Acquire(t.Context(), claim)
	claim.Owner = "user1"
	if g, _ := backend.Acquire(t.Context(), claim); g.State != store.Busy {
		t.Fatalf("user1 was answered %q", g.State)
	}
	if g, _ := backend.Release(t.Context(), claim); g.State != store.NotOurs {
		t.Fatalf("user1 released user10's key: %q", g.State)
	}
	if v := client.Get(t.Context(), "wire:6").Val(); !strings.HasPrefix(v, "user10:") {
		t.Fatalf("the key holds %q", v)
	}
}

// A TTL is sent in whole milliseconds, rounded up. One below a millisecond, which would be 0 after
// rounding down, is refused.
func TestATTLIsNeverRoundedDown(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	spy := &wire{Client: client}
	l := newSingle(t, spy)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "wire:7", TTL: 500 * time.Microsecond})
	wantErr(t, err, "wire:7", locker.ErrInvalidRule)
	lease := acquire(t, l, locker.Rule{Key: "wire:7", TTL: 30*time.Second + 500*time.Microsecond})
	if !slices.Contains(spy.recorded(), "30001") {
		t.Fatal("the TTL was rounded down")
	}
	if ttl := client.PTTL(t.Context(), "wire:7").Val(); ttl < 29*time.Second {
		t.Fatalf("PTTL %v", ttl)
	}
	release(t, lease)
}

// Leases have a duration, and no time by the client's wall clock, which may be wrong.
func TestNoTimeOfTheClientsClockIsSent(t *testing.T) {
	spy := &wire{Client: redistest.Shared(t).Client(t)}
	l := newSingle(t, spy)
	lease := acquire(t, l, locker.Rule{Key: "wire:9", TTL: 300 * time.Millisecond, KeepFor: 10 * time.Millisecond, OnceFor: time.Millisecond})
	first := lease.Expires()
	eventually(t, "the lease is renewed", func() bool { return lease.Expires().After(first) })
	if err := lease.Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, word := range spy.recorded() {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			continue
		}
		for _, at := range []time.Time{time.Unix(n, 0), time.UnixMilli(n), time.UnixMicro(n), time.Unix(0, n)} {
			if d := at.Sub(now); d > -365*24*time.Hour && d < 365*24*time.Hour {
				t.Fatalf("%d was sent: a time of this machine's clock", n)
			}
		}
	}
	if !slices.Contains(spy.recorded(), "300") {
		t.Fatal("the TTL is not sent as it was asked for")
	}
	if len(spy.recorded()) < 20 {
		t.Fatal("positive control: nothing was seen on the wire")
	}
}

// wire is a hook that records the words of all commands that are sent to the server.
type wire struct {
	locker.Client
	mu    sync.Mutex
	words []string
}

func (w *wire) Process(ctx context.Context, cmd redis.Cmder) error {
	w.mu.Lock()
	for _, a := range cmd.Args() {
		w.words = append(w.words, fmt.Sprint(reflect.Indirect(reflect.ValueOf(a)))) // scripts have *string and *int64 as arguments
	}
	w.mu.Unlock()
	return w.Client.Process(ctx, cmd)
}

func (w *wire) recorded() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.words...)
}
