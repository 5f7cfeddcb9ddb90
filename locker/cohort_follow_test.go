package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// following is a Store with a fault. The first release that carries an acquire has no effect and
// returns an error.
type following struct {
	*lockertest.Process
	mu               sync.Mutex
	carrying, failed int // how many releases carried an acquire, and how many of these failed
}

func (f *following) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Next != nil {
		if f.carrying++; f.carrying == 1 {
			f.failed++
			return store.Grant{}, errors.New("reset")
		}
	}
	return f.Process.Release(ctx, c)
}

// If the release that ends a streak has no answer, the next leader asks with a call of its own. The
// repeated release must not carry the leader's acquire again, because it could queue a token that
// already holds the key.
func TestAnAcquireGoesOutWithOneReleaseOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		f := &following{Process: store.NewProcess()}
		l := lockertest.NewLocker(t, f, locker.WithHandoffs(2))
		store.Occupy("opens", time.Millisecond)
		release(t, acquire(t, l, locker.Rule{Key: "opens"}))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
		release(t, lease)
		release(t, ws[0].awaitGrant(0)) // this release ends the streak
		release(t, ws[1].awaitGrant(time.Second))
		if f.failed != 1 || f.carrying != 1 {
			t.Errorf("the acquire was sent with %d releases, %d of which failed", f.carrying, f.failed)
		}
		nothingLeft(t, store)
	})
}

// dropping is a Store whose releases take a second and drop the acquire that they should carry.
type dropping struct{ store.Store }

func (d dropping) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	<-time.After(time.Second)
	c.Next = nil
	return d.Store.Release(ctx, c)
}

// A Store may send a release without the acquire that it should carry. Then this acquire does not
// count among the calls of the next waiter. If this waiter leaves meanwhile, there is nothing to
// undo.
func TestANextThatTheStoreDropsIsACall(t *testing.T) {
	for name, wait := range map[string]time.Duration{"it follows": time.Minute, "it leaves": time.Second / 2} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				rec := &lockertest.Recorder{}
				l := lockertest.NewLocker(t, dropping{store.NewProcess()}, locker.WithHandoffs(2), locker.WithObserver(rec))
				lease := acquire(t, l, locker.Rule{Key: "a"})
				second, third := startWaiting(t, l, locker.Rule{Key: "a"}), startWaiting(t, l, locker.Rule{Key: "a", Wait: wait})
				release(t, lease)
				release(t, second.awaitGrant(0)) // this release ends the streak
				if wait > time.Second {
					release(t, third.awaitGrant(time.Second))
				}
				<-time.After(time.Minute)
				counted, undos := 0, store.Calls(locker.OpRelease)
				for _, r := range rec.Records(locker.OpAcquire) {
					counted += r.Outcome.Calls
					if r.Outcome.Err == nil && r.Outcome.Calls > 0 { // the lease came from the server, so its release was a call too
						undos--
					}
				}
				if counted != store.Calls(locker.OpAcquire) || undos != 0 {
					t.Errorf("counted %d acquires, the Store saw %d; %d releases of tokens without a lease", counted, store.Calls(locker.OpAcquire), undos)
				}
				nothingLeft(t, store)
			})
		})
	}
}
