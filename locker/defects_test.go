package locker_test

import (
	"context"
	"errors"
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
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
)

// These defects were found in widely used lock libraries. latchkit must not have them. The comment
// of each test describes the failure in the other library.

// A context ended during an acquire. The library used the same context for the release that undoes
// the acquire. So the key stayed locked for its whole TTL.
func TestDefectCancelledAcquireLeavesItsKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
		wantErr(t, err, "a", context.DeadlineExceeded)
		store.Delay(locker.OpAcquire, 0)
		<-time.After(2 * time.Second) // in a bubble, so no real time passes
		if store.Len() != 0 {
			t.Fatal("the key is still taken")
		}
	})
}

// When an acquire was cancelled, the library returned "failed", so callers could not distinguish a
// cancelled acquire from a busy key. This also happened when ctx had ended before the call.
func TestDefectCancelledLooksBusy(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client)
	defer release(t, acquire(t, l, locker.Rule{Key: "defect:2"}))
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Acquire(dead, locker.Rule{Key: "defect:2"})
	wantErr(t, err, "defect:2", context.Canceled)
	wantNot(t, err, locker.ErrBusy)
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(brief, locker.Rule{Key: "defect:2"})
	wantErr(t, err, "defect:2", context.DeadlineExceeded, locker.ErrBusy)
}

// Two callers locked a key through one object, the second caller after the first lease had expired.
// The library silently replaced the token in the object, so the first caller's release freed the
// second caller's lock.
func TestDefectSecondLockSwapsTheToken(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client, locker.WithoutRenewal())
	first := acquire(t, l, locker.Rule{Key: "defect:3", TTL: 50 * time.Millisecond})
	second := acquire(t, l, locker.Rule{Key: "defect:3", TTL: time.Minute})
	if err := first.Release(t.Context()); !errors.Is(err, locker.ErrExpired) && !errors.Is(err, locker.ErrLost) {
		t.Fatal(err)
	}
	if i, err := l.Inspect(t.Context(), "defect:3"); err != nil || i.Fence != second.Fence() {
		t.Fatalf("%+v %v: the first holder freed the second's lock", i, err)
	}
	release(t, second)
}

// The library compared tokens by their prefix: it treated a caller as the holder if the
// caller's token was the beginning of the holder's token.
func TestDefectPrefixOfATokenSteals(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	backend := locktest.SingleStore(client)
	claim := store.Claim{Key: "defect:6", Owner: "user10", TTL: time.Minute}
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
	if v := client.Get(t.Context(), "defect:6").Val(); !strings.HasPrefix(v, "user10:") {
		t.Fatalf("the key holds %q", v)
	}
}

// The other library rounded a TTL below a millisecond to 0. The key was deleted at once, but the
// library reported that it was locked.
func TestDefectTinyTTLIsNoTTL(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	spy := &wire{Client: client}
	l := newSingle(t, spy)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "defect:7", TTL: 500 * time.Microsecond})
	wantErr(t, err, "defect:7", locker.ErrInvalidRule)
	lease := acquire(t, l, locker.Rule{Key: "defect:7", TTL: 30*time.Second + 500*time.Microsecond})
	if !slices.Contains(spy.recorded(), "30001") {
		t.Fatal("the TTL was rounded down")
	}
	if ttl := client.PTTL(t.Context(), "defect:7").Val(); ttl < 29*time.Second {
		t.Fatalf("PTTL %v", ttl)
	}
	release(t, lease)
}

// When the server answered with an error, a blocking acquire waited until ctx ended, and returned
// only "deadline exceeded".
func TestDefectBlockingAcquireHidesServerErrors(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "1")
	_, err := newSingle(t, server.Client(t)).Acquire(t.Context(), locker.Rule{Key: "a"})
	wantErr(t, err, "a", locker.ErrUnavailable)
	if !strings.Contains(err.Error(), "OOM") {
		t.Fatal(err)
	}
}

// The library sent the time of expiry by the client's wall clock. So leases were too short or too
// long when this clock was wrong.
func TestDefectClientClockDecidesExpiry(t *testing.T) {
	spy := &wire{Client: redistest.Shared(t).Client(t)}
	l := newSingle(t, spy)
	lease := acquire(t, l, locker.Rule{Key: "defect:9", TTL: 300 * time.Millisecond, KeepFor: 10 * time.Millisecond, OnceFor: time.Millisecond})
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

// hung is a Store whose first acquires hang, even after their contexts have ended. This is true for
// acquires of one key and of several keys.
type hung struct {
	*lockertest.Process
	released chan struct{}
}

func (h hung) Capabilities() store.Capabilities {
	can := h.Process.Capabilities()
	can.AcquireAll = h.AcquireAll
	return can
}

func (h hung) Acquire(_ context.Context, c store.Claim) (store.Grant, error) {
	<-h.released
	return h.Process.Acquire(context.Background(), c)
}

func (h hung) AcquireAll(_ context.Context, cs []store.Claim) ([]store.Grant, error) {
	<-h.released
	return h.Process.Capabilities().AcquireAll(context.Background(), cs)
}

// A user's Store hung and ignored its context. A caller without a deadline waited for this Store
// for ever.
func TestDefectAStoreThatHangsHoldsACallerForEver(t *testing.T) {
	for name, keys := range map[string][]string{"Acquire": {"a"}, "RunAll": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				h := hung{store.NewProcess(), make(chan struct{})}
				l := lockertest.NewLocker(t, h)
				start := time.Now()
				err := locker.RunAll(t.Context(), l, rulesOf(keys...), mustNotRun(t))
				wantErr(t, err, "a", locker.ErrUnavailable)
				if took := time.Since(start); took > time.Duration(len(keys))*5*time.Second+250*time.Millisecond {
					t.Errorf("the caller was held for %v", took)
				}
				close(h.released)
				<-time.After(time.Minute)
				nothingLeft(t, store)
			})
		})
	}
}
