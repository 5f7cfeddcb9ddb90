package locker_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// The confirmation of a lease that was handed over lengthens it, as a renewal does; one that is late does not undo what came
// before it.
func TestALateConfirmationDoesNotShorten(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	ear := l.listen()
	c := l.waits(ear.name)
	l.release(holder, store.Released)
	ear.wantGranted(c)
	c.ByHandoff = true
	for _, ttl := range []time.Duration{time.Hour, time.Second} {
		c.TTL = ttl
		l.renew(c, store.Granted)
		if left := l.server.PTTL(t.Context(), l.key).Val(); left < 50*time.Minute {
			t.Errorf("after a confirmation by %v the lease lives for %v", ttl, left)
		}
	}
	l.release(c, store.Released)
}
