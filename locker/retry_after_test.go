package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// longLine is a Store with a holder that has held the key for 60 days, and 899 callers before
// each caller that asks.
type longLine struct{ store.Store }

func (longLine) Acquire(context.Context, store.Claim) (store.Grant, error) {
	now := time.Now()
	since := now.AddDate(0, 0, -60)
	return store.Grant{
		State: store.Busy, At: now, Place: 900, // 60 days × 2 × 899 are more than a Duration can have
		Holder: store.Holder{Fence: uint64(since.UnixMicro()), Left: time.Minute},
	}, nil
}

func TestALongLineBehindALeaderIsNoPanic(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, longLine{lockertest.NewMemory()})
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	if e := wantErr(t, err, "a", locker.ErrBusy); e.RetryAfter <= 0 || e.RetryAfter > 3*time.Second {
		t.Errorf("retry after %v", e.RetryAfter)
	}
}
