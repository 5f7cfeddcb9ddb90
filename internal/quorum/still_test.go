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
	for name, kind := range map[string]struct {
		open  func([]locker.Client, ...locker.QuorumOption) (*locker.Engine, error)
		entry string
	}{
		"redlock": {locker.NewRedlock, "SSSSSSSSSSSSSSSSSSSSSSSSSS|still|0|0"},
		"writer":  {readWriteOn, "SSSSSSSSSSSSSSSSSSSSSSSSSS|still|0|0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := enrolled(t, 3)
			notified := addStoppedWaiter(t, servers, kind.entry)
			var working sync.WaitGroup
			const each = 60
			began := time.Now()
			for i := range 2 {
				l, err := kind.open(clients(clientsOf(t, servers)), locker.WithHandoffs(1))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close(t.Context()) })
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
		})
	}
}

// After a writer, readers may enter for 50 ms. When no reader asks in that time, the waiting writer
// is notified. Otherwise the writer would ask again only after a second.
func TestAWriterIsToldWhenTheReadersTurnIsOver(t *testing.T) {
	t.Parallel()
	ls, servers := shelves(t, 2)
	notified := addStoppedWaiter(t, servers, "SSSSSSSSSSSSSSSSSSSSSSSSSS|still|0|1")
	const turns = 12
	took, cs := time.Duration(0), clientsOf(t, servers)
	for range turns {
		lease := acquire(t, ls[0], writing)
		w := asks(t, ls[1], writing)
		eventually(t, "the writer waits where it has no vote", func() bool {
			n := 0
			for _, c := range cs {
				n += inLine(t, c, "a")
			}
			return n >= 5
		})
		began := time.Now()
		release(t, lease)
		release(t, w.Granted(5*time.Second))
		took += w.At.Sub(began)
	}
	if notified.Load() == 0 {
		t.Error("positive control: no process was notified")
	}
	if took > turns*time.Second*9/10 {
		t.Errorf("%d unused turns took %v", turns, took)
	}
}
