package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// wakeFloor is not a lock. Two processes pass a message back and forth, by a PUBLISH to a
// subscriber that waits. No hand-off that uses a message can be faster.
var wakeFloor = contestant{name: "wake-pub", kind: floor, noLock: true, sends: []string{"publish"}, open: openWake}

// wakeLocks is the lock of one process. A process holds the lock when it has received a message
// from the other process. For its first lock, process 0 needs no message.
type wakeLocks struct {
	client *redis.Client
	inbox  *redis.PubSub
	peer   string // the other process's channel
	free   chan struct{}
}

func openWake(s settings) (locks, error) {
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	w := &wakeLocks{client: c, inbox: c.Subscribe(ctx, wakeChannel(s.Process)), peer: wakeChannel(1 - s.Process), free: make(chan struct{}, 1)}
	if _, err := w.inbox.Receive(ctx); err != nil { // receives the confirmation of the subscription
		return nil, err
	}
	if err := c.Ping(ctx).Err(); err != nil { // opens the connection, so that the first message is fast
		return nil, err
	}
	if s.Process == 0 {
		w.free <- struct{}{}
	}
	return w, nil
}

func wakeChannel(process int) string { return "wake:" + strconv.Itoa(process) }

// Lock ends when its context ends. To end a read that is under way, Lock closes the subscription.
func (w *wakeLocks) Lock(ctx context.Context, _ string) (hold, error) {
	select {
	case <-w.free:
		return w, nil
	default:
	}
	defer context.AfterFunc(ctx, func() { _ = w.inbox.Close() })()
	if _, err := w.inbox.ReceiveMessage(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *wakeLocks) Release(ctx context.Context) error {
	return w.client.Publish(ctx, w.peer, "your turn").Err()
}

func (w *wakeLocks) Close() {
	_ = w.inbox.Close()
	_ = w.client.Close()
}
