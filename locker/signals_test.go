package locker_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// peer is another process. It waits for a key, and holds the key until its parent asks for the
// release. The process prints these events:
//
//	granted fence
//	lost true     its lease ended with ErrLost
//	released      with the error, if the release failed
//
// With "stop", the process stops itself as soon as it has the key, as if the kernel no longer let
// it run.
var peer = proc.Register("peer", func(args []string) {
	addr, key, ttl, stop := args[0], args[1], args[2], args[3] == "stop"
	d, err := time.ParseDuration(ttl)
	if err != nil {
		panic(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: addr}))
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: key, TTL: d})
	if err != nil {
		panic(err)
	}
	fmt.Println("granted", lease.Fence())
	if stop {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil {
			panic(err)
		}
	}
	asked := make(chan struct{})
	go func() {
		proc.Listen()
		close(asked)
		proc.Listen()
	}()
	select {
	case <-lease.Context().Done():
		fmt.Println("lost", errors.Is(context.Cause(lease.Context()), locker.ErrLost))
		fmt.Println("released", errors.Is(lease.Release(context.Background()), locker.ErrLost))
	case <-asked:
		fmt.Println("released", lease.Release(context.Background()))
	}
	select {} // proc.Listen ends the process
})

// peers are processes that want the same key.
type peers struct {
	*testing.T
	server *redistest.Server
	client *redis.Client
	engine *locker.Engine // the Engine of a process that gets no signal
	key    string
}

func newPeers(t *testing.T, key string) *peers {
	t.Helper()
	server := redistest.Start(t)
	return &peers{t, server, server.Client(t), newSingle(t, server.Client(t)), key}
}

// startWaiter starts a process that waits for the key. startWaiter returns when the process is
// in the queue.
func (p *peers) startWaiter(ttl time.Duration, stop string) *proc.Child {
	p.Helper()
	before := inLine(p.T, p.client, p.key)
	child := peer.Start(p, p.server.Addr(), p.key, ttl.String(), stop)
	eventually(p.T, "the process waits", func() bool { return inLine(p.T, p.client, p.key) == before+1 })
	return child
}

// startHolder starts a process that holds the key, and returns the process and the fence.
func (p *peers) startHolder(ttl time.Duration) (child *proc.Child, fence uint64) {
	p.Helper()
	child = peer.Start(p, p.server.Addr(), p.key, ttl.String(), "")
	return child, p.awaitGrant(child)
}

func (p *peers) awaitGrant(child *proc.Child) (fence uint64) {
	p.Helper()
	if _, err := fmt.Sscan(child.Expect(p, "granted"), &fence); err != nil {
		p.Fatal(err)
	}
	return fence
}

// leaseLeft returns how much time the holder's lease has left.
func (p *peers) leaseLeft() time.Duration {
	p.Helper()
	i, err := p.engine.Inspect(p.Context(), p.key)
	if err != nil || !i.Held {
		p.Fatalf("%+v %v", i, err)
	}
	return i.Left
}

func (p *peers) checkHolder(fence uint64) {
	p.Helper()
	if i, err := p.engine.Inspect(p.Context(), p.key); err != nil || i.Fence != fence {
		p.Fatalf("the server shows %+v %v, want fence %d", i, err, fence)
	}
}

// checkLost checks the output of a process that was stopped, and continued only after another
// process had got its key.
func (p *peers) checkLost(child *proc.Child) {
	p.Helper()
	if got := child.Expect(p, "lost"); got != "true" {
		p.Fatalf("its lease ended with ErrLost: %s", got)
	}
	if got := child.Expect(p, "released"); got != "true" {
		p.Fatalf("its release returned ErrLost: %s", got)
	}
}

// releaseBy is the normal release: it makes the process child release the key.
func (p *peers) releaseBy(child *proc.Child) {
	p.Helper()
	child.Send("give")
	if got := child.Expect(p, "released"); got != "<nil>" {
		p.Fatalf("the release returned %s", got)
	}
}

// signals are the signals that a process may get. A stopped process continues later. Until then its
// connections stay open, so the server regards the process as alive.
var signals = map[string]func(*proc.Child){"killed": (*proc.Child).Kill, "stopped": (*proc.Child).Pause}

var strikes = flag.Int("strikes", 1, "how often each signal hits each role")

// forEachSignal runs a test for each signal. Each run has one fault.
func forEachSignal(t *testing.T, test func(t *testing.T, p *peers, signal string, strike func(*proc.Child))) {
	t.Parallel()
	for name, strike := range signals {
		for n := range *strikes {
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				t.Parallel()
				p := newPeers(t, "signals")
				faults := 0
				test(t, p, name, func(c *proc.Child) { strike(c); faults++ })
				if faults != 1 {
					t.Errorf("positive control: %d faults", faults)
				}
			})
		}
	}
}

// If the head of the queue was killed, the server notices that no process listens at its inbox.
// If the head was stopped, the server keeps the key for the head for two seconds. If the next
// waiter has waited for long, the server notifies it when the key will be free. Otherwise the
// next waiter asks by itself within 1.25 s.
func TestASignalToTheHeadOfTheQueue(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		first := acquire(t, p.engine, locker.Rule{Key: p.key})
		head := p.startWaiter(time.Minute, "")
		next := p.startWaiter(time.Minute, "")
		listen := len(p.client.PubSubChannels(t.Context(), "latchkit:i:*").Val())
		strike(head)
		promised := 3250 * time.Millisecond
		if signal == "killed" {
			promised = 0
			eventually(t, "the server has seen that it is gone", func() bool {
				return len(p.client.PubSubChannels(t.Context(), "latchkit:i:*").Val()) == listen-1
			})
		}
		release(t, first)
		shown, err := p.engine.Inspect(t.Context(), p.key)
		if err != nil {
			t.Fatal(err)
		}
		var fence uint64
		within(t, promised, "the next grant", func() { fence = p.awaitGrant(next) })
		if signal == "killed" && shown.Fence != fence {
			t.Errorf("with the release, the key went to fence %d and not %d: as if the server had kept it for the dead", shown.Fence, fence)
		}
		if fence <= first.Fence() {
			t.Errorf("fence %d after %d", fence, first.Fence())
		}
		if signal == "stopped" { // the stopped process did not get the key, so it waits again, and gets the key once
			head.Resume()
			eventually(t, "it waits again", func() bool { return inLine(t, p.client, p.key) == 1 })
			p.checkHolder(fence)
			p.releaseBy(next)
			if again := p.awaitGrant(head); again <= fence {
				t.Errorf("fence %d after %d", again, fence)
			}
			next = head
		}
		p.releaseBy(next)
		nothingLeftBut(t, p.client)
	})
}

// When a holder dies or is stopped, its key is free when its lease has expired, and not before.
// Then the head of the queue asks.
func TestASignalToTheHolder(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		holder, first := p.startHolder(2 * time.Second)
		next := p.startWaiter(time.Minute, "")
		strike(holder)
		left := p.leaseLeft()
		var fence uint64
		took := within(t, max(left, 1250*time.Millisecond)+time.Millisecond, "the next grant", func() { fence = p.awaitGrant(next) })
		if took < left-100*time.Millisecond {
			t.Errorf("granted after %v, and the holder had %v left", took, left)
		}
		if fence <= first {
			t.Errorf("fence %d after %d", fence, first)
		}
		if signal == "stopped" {
			holder.Resume()
			p.checkLost(holder)
			p.checkHolder(fence)
		}
		p.releaseBy(next)
		nothingLeftBut(t, p.client)
	})
}

// A process may die after it was handed the key, and before it confirms the hand-off. Then the
// other processes lose two seconds, and not the process's TTL of a minute.
func TestASignalToWhoHasJustGotTheKey(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		var first *locker.Lease
		var winner, next *proc.Child
		var second uint64
		for renewed := true; renewed; {
			first = acquire(t, p.engine, locker.Rule{Key: p.key})
			winner, next = p.startWaiter(time.Minute, "stop"), p.startWaiter(time.Minute, "")
			release(t, first)
			second = p.awaitGrant(winner)
			winner.AwaitStop()
			// On a slow machine, the signal may have come a quarter of a second too late.
			if renewed = p.leaseLeft() > 2*time.Second; renewed {
				winner.Kill()
				next.Kill()
				p.client.Del(t.Context(), p.key, redisstore.QueueKey(p.key))
			}
		}
		strike(winner)
		var fence uint64
		within(t, 3250*time.Millisecond, "the next grant", func() { fence = p.awaitGrant(next) })
		if first.Fence() >= second || second >= fence {
			t.Errorf("fences %d, %d, %d", first.Fence(), second, fence)
		}
		if signal == "stopped" {
			winner.Resume()
			p.checkLost(winner)
			p.checkHolder(fence)
		}
		p.releaseBy(next)
		nothingLeftBut(t, p.client)
	})
}
