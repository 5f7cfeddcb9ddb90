package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// stuck is a Store whose renewals hang until resume is closed. They ignore their context.
type stuck struct {
	store.Store
	resume chan struct{}
	n      atomic.Int64
}

func (s *stuck) Renew(context.Context, []store.Claim) ([]store.Grant, error) {
	s.n.Add(1)
	<-s.resume
	return nil, errors.New("too late")
}

// While the Store hangs, a caller extends a lease again and again, each time with a context that
// ends soon. The Engine gives up each extension in time, and only a limited number of abandoned
// calls stay under way at the Store.
func TestExtensionsThatHangAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{Store: lockertest.NewMemory().NewProcess(), resume: make(chan struct{})}
		e, err := locktest.NewEngine(s)
		if err != nil {
			t.Fatal(err)
		}
		lease := acquire(t, e, locker.Rule{Key: "k", TTL: time.Hour})
		for range 300 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := lease.Extend(ctx, 2*time.Hour); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		if n := s.n.Load(); n > 96 {
			t.Errorf("%d renewals hang", n)
		}
		close(s.resume)
		release(t, lease)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
