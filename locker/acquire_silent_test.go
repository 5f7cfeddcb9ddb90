package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// Whatever asks the server, a server that answers nothing costs a caller one second. A reader waits
// for its subscription before it asks, for a quarter of a second.
func TestACallerWhoGetsNoAnswerIsBackAfterASecond(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(c *redis.Client) (*locker.Engine, error){
		"New":           func(c *redis.Client) (*locker.Engine, error) { return locker.New(c) },
		"NewReadWrite":  func(c *redis.Client) (*locker.Engine, error) { return locker.NewReadWrite(c) },
		"NewScriptless": func(c *redis.Client) (*locker.Engine, error) { return locker.NewScriptless(c) },
	} {
		rule := locker.Rule{Key: "a"}
		if name == "NewReadWrite" {
			rule.Mode = locker.Shared
		}
		for patience, wait := range map[string]time.Duration{"NoWait": locker.NoWait, "with a Wait": time.Minute} {
			t.Run(name+" "+patience, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				l, err := open(server.Client(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				rule := rule
				rule.Wait = wait
				server.Pause()
				start := time.Now()
				_, err = l.Acquire(t.Context(), rule)
				took := time.Since(start)
				server.Resume()
				wantErr(t, err, "a", locker.ErrUnavailable)
				if took > time.Second+slack {
					t.Errorf("back after %v", took)
				}
			})
		}
	}
}
