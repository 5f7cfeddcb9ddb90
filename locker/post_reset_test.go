package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// slowReset is a process whose Notifier needs 3 s to close a lost connection.
type slowReset struct{ *lockertest.Process }

func (s slowReset) Capabilities() store.Capabilities {
	c := s.Process.Capabilities()
	c.Notifier = resetter{c.Notifier}
	return c
}

type resetter struct{ store.Notifier }

func (r resetter) Reset(inbox string) {
	<-time.After(3 * time.Second)
	r.Notifier.Reset(inbox)
}

// A waiter whose subscription is lost does not wait for the old connection's end.
func TestALostSubscriptionDoesNotKeepACallerLongerThanItsWait(t *testing.T) {
	virtual(t, func(t *testing.T, memory *lockertest.Memory) {
		process := memory.NewProcess()
		process.Disturb(lockertest.EventFaults{Deaf: true})
		l, other := lockertest.NewLocker(t, slowReset{process}), lockertest.NewLocker(t, memory.NewProcess())
		lease := acquire(t, other, locker.Rule{Key: "a"})
		began := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 100 * time.Millisecond})
		wantErr(t, err, "a", locker.ErrBusy)
		checkElapsed(t, began, 100*time.Millisecond, 250*time.Millisecond)

		// The subscription works again after the Reset: the next waiter gets the lock by message.
		time.AfterFunc(20*time.Second, func() { _ = lease.Release(context.Background()) })
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}
