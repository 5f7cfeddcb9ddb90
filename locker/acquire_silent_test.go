package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A reader subscribes before it asks. A server that answers neither costs a caller one second, and
// not one second for each of the two.
func TestAReaderThatGetsNoAnswerIsBackAfterASecond(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"NoWait": locker.NoWait, "with a Wait": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, err := locker.NewReadWrite(server.Client(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			server.Pause()
			start := time.Now()
			_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Mode: locker.Shared, Wait: wait})
			took := time.Since(start)
			server.Resume()
			wantErr(t, err, "a", locker.ErrUnavailable)
			if took > 1250*time.Millisecond {
				t.Errorf("back after %v", took)
			}
		})
	}
}
