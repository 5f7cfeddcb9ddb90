package locker_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These tests are for claims in docs/guarantees.md that no other test covers.

// When a server's clock steps forward, leases end too early on the server, and it grants their
// keys to new holders. The earlier holders notice their loss at their next renewal, and the new
// holders have larger fences. When the clock steps back, the server keeps keys for longer, and
// its fences still grow.
func TestAServersClockThatStepsIsToldAndFencesGrow(t *testing.T) {
	for name, step := range map[string]time.Duration{"forward": time.Minute, "back": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				holder, other := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
				lease := acquire(t, holder, locker.Rule{Key: "a"})
				store.StepClock(step)
				if step < 0 {
					time.Sleep(time.Hour) //nolint:forbidigo // in a bubble
					checkHeld(t, lease)
					release(t, lease)
				}
				next := acquire(t, other, locker.Rule{Key: "a", Wait: locker.NoWait})
				if next.Fence() <= lease.Fence() {
					t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
				}
				if step > 0 {
					start := time.Now()
					lost(t, lease, locker.ErrLost)
					checkElapsed(t, start, 0, 11*time.Second) // a third of the TTL, plus a tenth of that
				}
				release(t, next)
			})
		})
	}
}

func TestScriptlessHearsThatItsServerHasForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l, other := newScriptless(t, client), newScriptless(t, server.Client(t))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second})
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	next := acquire(t, other, locker.Rule{Key: "a", Wait: locker.NoWait})
	lost(t, lease, locker.ErrLost)
	release(t, next)
}

// A full server before Redis 7.2 refuses every command between MULTI and EXEC. So a lease on such a
// server can be neither renewed nor released, and the holder's context ends before the key is free.
// Redis 7.2 and newer, and Valkey, refuse only the commands that need memory: they renew and
// release the lease.
func TestAFullServerEndsLeasesWithoutScriptsInTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newScriptless(t, client)
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 4 * time.Second})
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "b"})
	wantErr(t, err, "b", locker.ErrUnavailable)
	wantNot(t, err, locker.ErrBusy)
	_, refused := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return p.PExpire(t.Context(), "c", time.Second).Err() })
	if refused != nil {
		lost(t, lease, locker.ErrLost)
	} else {
		renewed := lease.Expires()
		locktest.Eventually(t, "the lease is renewed", func() bool { return lease.Expires().After(renewed) })
		release(t, lease)
	}
	must(client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
}
