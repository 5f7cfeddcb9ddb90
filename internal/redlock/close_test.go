package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
)

// A quorum has work of its own, besides the calls to its nodes: steps that it has begun, and
// goroutines. Close waits for both.
func TestCloseWaitsForTheQuorumsOwnWork(t *testing.T) {
	for name, begin := range map[string]func(q *quorum) (end func()){
		"a step": func(q *quorum) func() {
			q.begun.Enter()
			return q.begun.Leave
		},
		"a goroutine": func(q *quorum) func() {
			work := make(chan struct{})
			q.pool.Do(func() { <-work })
			return func() { close(work) }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := newQuorum(make([]redisstore.Client, 3), Settings{NodeTimeout: time.Second})
			end := begin(q)
			closed := make(chan error, 1)
			go func() { closed <- q.Close(t.Context()) }()
			if synctest.Wait(); len(closed) != 0 {
				t.Errorf("Close has not waited for %s", name)
			}
			end()
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}
