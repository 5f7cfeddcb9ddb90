package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
)

// following is a Store whose first release that brings another acquire along fails, without a
// trace.
type following struct {
	*lockertest.Process
	mu           sync.Mutex
	with, failed int // releases that brought one along, and that failed
}

func (f *following) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Next != nil {
		if f.with++; f.with == 1 {
			f.failed++
			return store.Grant{}, errors.New("reset")
		}
	}
	return f.Process.Release(ctx, c)
}

// When the release that ends a streak is unclear, the next leader asks with a call of its own. The
// repeated release must not carry the leader's acquire again: it would queue a token that may hold
// the key by then.
func TestAnAcquireGoesOutWithOneReleaseOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		f := &following{Process: store.NewProcess()}
		l := lockertest.NewLocker(t, f, locker.WithHandoffs(2))
		store.Occupy("opens", time.Millisecond)
		release(t, acquire(t, l, locker.Rule{Key: "opens"}))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
		release(t, lease)
		release(t, ws[0].granted(0)) // the end of the streak
		release(t, ws[1].granted(time.Second))
		if f.failed != 1 || f.with != 1 {
			t.Errorf("the acquire was sent with %d releases, %d of which failed", f.with, f.failed)
		}
		nothingLeft(t, store)
	})
}
