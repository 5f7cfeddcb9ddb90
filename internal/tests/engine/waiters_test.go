package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The Release of a holder hangs. Nevertheless, a waiter in the same process returns when its
// own context or wait ends. The waiter has no subscription, so the Engine cannot send its
// acquire together with the hanging Release.
func TestAWaiterLeavesAlthoughTheReleaseBeforeItHangs(t *testing.T) {
	t.Parallel()
	const patience = 500 * time.Millisecond
	for name, wait := range map[string]bool{"ctx": false, "Wait": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			e := newEngine(t, newUser(t, server, "locks", "resetchannels"))
			first := acquire(t, e, locker.Rule{Key: "k", TTL: 30 * time.Second})
			left := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began := time.Now()
			rule := locker.Rule{Key: "k", TTL: 30 * time.Second}
			if wait {
				rule.Wait = patience
			} else {
				time.AfterFunc(patience, cancel)
			}
			go func() {
				_, err := e.Acquire(ctx, rule)
				left <- err
			}()
			time.Sleep(patience / 2) // by now, the waiter waits inside its process, which is not visible from outside
			server.Pause()
			t.Cleanup(server.Resume)
			go func() { _ = first.Release(context.Background()) }()
			err := <-left
			if over := time.Since(began) - patience; over > promised {
				t.Errorf("the waiter came back %v too late: %v", over, err)
			}
			if err == nil {
				t.Error("the waiter got the lock of a server that stands still")
			}
		})
	}
}

// The holder is a program that sends no messages. When the first waiter of the queue dies, the
// second waiter gets no message about this. So the second waiter asks the server often.
func TestTheNextWaiterAsksOftenBehindAForeignHolder(t *testing.T) {
	t.Parallel()
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c := server.Client(t)
			if err := c.SetNX(t.Context(), "k", "another program", time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			dead := redis.Z{Score: float64(time.Now().UnixMicro()), Member: "DEADDEADDEADDEADDEADDEADDE|latchkit:i:gone|2000|0|64|0|"}
			if err := c.ZAdd(t.Context(), "latchkit:q:{k}:k", dead).Err(); err != nil {
				t.Fatal(err)
			}
			next := open(t, server.Client(t))
			got := make(chan time.Time, 1)
			go func() {
				if l, err := next.Acquire(t.Context(), locker.Rule{Key: "k"}); err == nil {
					got <- time.Now()
					_ = l.Release(context.Background())
				}
			}()
			awaitWaiters(t, next, "k", 2)
			time.Sleep(1500 * time.Millisecond) // by now, the waiter has asked for the first time, which it does after about a second
			if err := c.Del(t.Context(), "k").Err(); err != nil {
				t.Fatal(err)
			}
			freed := time.Now()
			if late := (<-got).Sub(freed); late > 2*time.Second+busy {
				t.Errorf("the only waiter came %v after the key was free", late)
			}
		})
	}
}

func lockers() map[string]func(*testing.T, locker.Client) *locker.Engine {
	return map[string]func(*testing.T, locker.Client) *locker.Engine{
		"single": func(t *testing.T, c locker.Client) *locker.Engine { return newEngine(t, c) },
		"readers": func(t *testing.T, c locker.Client) *locker.Engine {
			e, err := locker.NewReadWrite(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close(context.Background()) })
			return e
		},
	}
}

// A process knows that its subscription is lost, and cannot subscribe again. The server has not
// noticed the loss, and still publishes to the process. So the messages are lost, and the
// waiter of the process must poll.
func TestAWaiterPollsAlthoughTheServerCountsItsSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := lockertest.NewMemory()
		cut := &cutOff{Process: memory.NewProcess()}
		var ls []*locker.Engine
		for _, s := range []store.Store{memory.NewProcess(), memory.NewProcess(), cut} {
			e, err := locktest.NewEngine(s)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = e.Close(context.Background()) }()
			ls = append(ls, e)
		}
		lease := acquire(t, ls[0], locker.Rule{Key: "k"})
		ctx, leave := context.WithCancel(t.Context())
		got := make(chan time.Time, 1)
		go func() { _, _ = ls[1].Acquire(ctx, locker.Rule{Key: "k"}) }()
		synctest.Wait()
		go func() {
			l, err := ls[2].Acquire(t.Context(), locker.Rule{Key: "k"})
			if err != nil {
				t.Error(err)
			}
			got <- time.Now()
			_ = l.Release(context.Background())
		}()
		time.Sleep(1500 * time.Millisecond) // by now, the waiter has asked for the first time, and would ask again only much later
		cut.loseSubscription()
		// in this time, the waiter must ask the server, because it has no subscription
		time.Sleep(1500 * time.Millisecond)
		leave()
		synctest.Wait()
		release(t, lease)
		freed := time.Now()
		if late := (<-got).Sub(freed); late > time.Second {
			t.Errorf("the waiter came %v after the key was free, although its process knew that it receives nothing", late)
		}
	})
}

// cutOff is a process that loses its subscription when the test calls loseSubscription. The
// server does not notice this loss.
type cutOff struct {
	*lockertest.Process
	notify       func(store.Event)
	unsubscribed atomic.Bool
}

func (c *cutOff) Capabilities() store.Capabilities {
	can := c.Process.Capabilities()
	can.Notifier = c
	return can
}

func (c *cutOff) Listen(notify func(store.Event)) (stop func()) {
	c.notify = notify
	return c.Process.Listen(notify)
}

func (c *cutOff) Inbox(key string) string {
	if c.unsubscribed.Load() {
		return ""
	}
	return c.Process.Inbox(key)
}

func (c *cutOff) Open(ctx context.Context, key string) (string, error) {
	if c.unsubscribed.Load() {
		return "", errors.New("no subscription")
	}
	return c.Process.Open(ctx, key)
}

func (c *cutOff) loseSubscription() {
	c.unsubscribed.Store(true)
	c.Disturb(lockertest.EventFaults{Lose: 1 << 30})
	c.notify(store.Event{Kind: store.EventReopened})
}
