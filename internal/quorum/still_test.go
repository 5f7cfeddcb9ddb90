package quorum_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// addStoppedWaiter adds entry to the queue at each node, before all other waiters. The entry's
// process stands still: it does not react when it is notified. The result counts the notifications.
func addStoppedWaiter(t *testing.T, servers []*redistest.Server, entry string) (notified *atomic.Int32) {
	t.Helper()
	notified = new(atomic.Int32)
	for _, s := range servers {
		c := s.Client(t)
		p := c.Subscribe(t.Context(), "still")
		if _, err := p.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			for m := range p.Channel() {
				if strings.HasPrefix(m.Payload, "free ") {
					notified.Add(1)
				}
			}
		}()
		if err := c.Do(t.Context(), "zadd", redisstore.QueueKey("a"), 1, entry).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return notified
}

// A stopped process is notified of its turn, but does not ask. The nodes must not notify it first
// at every turn, because they would then keep their votes for it for 50 ms each time.
func TestAWaiterThatStandsStillDelaysTheOthersSeldom(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	notified := addStoppedWaiter(t, servers, "SSSSSSSSSSSSSSSSSSSSSSSSSS|still|0")
	var working sync.WaitGroup
	const each = 60
	began := time.Now()
	for i := range 2 {
		l := redlockOn(t, servers, locker.WithHandoffs(1))
		working.Go(func() {
			for range each {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil {
					t.Error(fmt.Errorf("process %d: %w", i, err))
					return
				}
			}
		})
	}
	working.Wait()
	took := time.Since(began)
	if notified.Load() == 0 {
		t.Error("positive control: the stopped process was never notified")
	}
	if took > 400*time.Millisecond*each { // without the rule, each hand-off would take a second
		t.Errorf("%d grants took %v", 2*each, took)
	}
}
