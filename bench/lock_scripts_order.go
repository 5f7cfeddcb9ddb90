package main

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
)

// inOrderLocks are locks whose callers wait in the server's queue. A waiting caller receives
// the grant as a message.
type inOrderLocks struct {
	*scriptLocks
	inbox *redis.PubSub
	waits string // what follows the token in a queue entry: the inbox, the TTL and constants

	mu      sync.Mutex
	waiting map[string]chan struct{} // for each token: a channel that is closed when the token is granted the key
}

// inOrderLease is the lease of a token that may have waited in the queue.
type inOrderLease struct {
	locks *inOrderLocks
	scriptLease
	grant chan struct{}
}

func openInOrder(s settings) (*inOrderLocks, error) {
	l, err := openScripts(s)
	if err != nil {
		return nil, err
	}
	name := "latchkit:i:" + rand.Text()
	o := &inOrderLocks{
		scriptLocks: l, inbox: l.client.Subscribe(context.Background(), name),
		waits: name + "|" + strconv.FormatInt(l.ttl, 10) + "|0|1|0", waiting: make(map[string]chan struct{}),
	}
	if _, err := o.inbox.Receive(context.Background()); err != nil { // receives the confirmation of the subscription
		return nil, err
	}
	go o.receive()
	return o, nil
}

func (o *inOrderLocks) receive() {
	for {
		message, err := o.inbox.ReceiveMessage(context.Background())
		if err != nil {
			return // Close has ended the subscription
		}
		if e, ok := redisstore.ParseEvent(message.Payload); ok {
			o.mu.Lock()
			grant := o.waiting[e.Owner]
			delete(o.waiting, e.Owner)
			o.mu.Unlock()
			if grant != nil {
				grant <- struct{}{}
			}
		}
	}
}

func (o *inOrderLocks) Lock(ctx context.Context, key string) (hold, error) {
	l := &inOrderLease{o, o.lease(key), make(chan struct{}, 1)}
	o.mu.Lock()
	o.waiting[l.token] = l.grant
	o.mu.Unlock()
	text, err := o.call(ctx, acquireScript.Words(l.keys(), l.token, o.ttl, int64(1), o.waits))
	if err != nil {
		return nil, err
	}
	if isGranted(text) {
		o.forget(l.token)
		return l, nil
	}
	select {
	case <-l.grant:
		return l, nil
	case <-ctx.Done():
		o.forget(l.token)
		_ = l.Release(context.WithoutCancel(ctx)) // this release removes the token from the queue
		return nil, ctx.Err()
	}
}

func (o *inOrderLocks) forget(token string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, token)
}

func (l *inOrderLease) Release(ctx context.Context) error {
	text, err := l.locks.call(ctx, releaseScript.Words(l.keys(), l.token, l.token+"|"+l.locks.waits+"|"))
	if err != nil {
		return err
	}
	return checkAnswer(text, isReleased)
}

func (o *inOrderLocks) Close() {
	_ = o.inbox.Close()
	o.scriptLocks.Close()
}

// handedLocks hand a lock from caller to caller of their process for at most handedFor. These
// locks have no fences.
type handedLocks struct {
	*inOrderLocks

	local   sync.Mutex
	busy    bool // true: a caller of this process holds the lock, or asks the server for it
	callers []chan *handedLock
}

// handedLock is a lock that callers of one process use one after the other.
type handedLock struct {
	locks        *handedLocks
	lease        hold
	handOffUntil time.Time
}

// handedFor is how long latchkit hands a lock on within a process while others wait.
const handedFor = 10 * time.Millisecond

func openHanded(s settings) (locks, error) {
	o, err := openInOrder(s)
	return &handedLocks{inOrderLocks: o}, err
}

// Lock serves only one key, because the rows that use it have only one key.
func (l *handedLocks) Lock(ctx context.Context, key string) (hold, error) {
	l.local.Lock()
	if l.busy {
		turn := make(chan *handedLock, 1)
		l.callers = append(l.callers, turn)
		l.local.Unlock()
		select {
		case h := <-turn:
			if h.lease != nil {
				return h, nil
			}
		case <-ctx.Done():
			l.leave(turn)
			return nil, ctx.Err()
		}
	} else {
		l.busy = true
		l.local.Unlock()
	}
	lease, err := l.inOrderLocks.Lock(ctx, key)
	if err != nil {
		l.next(&handedLock{locks: l})
		return nil, err
	}
	return &handedLock{l, lease, time.Now().Add(handedFor)}, nil
}

// next hands h to the next caller that waits. It returns false when no caller waits.
func (l *handedLocks) next(h *handedLock) bool {
	l.local.Lock()
	defer l.local.Unlock()
	if len(l.callers) == 0 {
		l.busy = h.lease != nil
		return false
	}
	l.callers[0] <- h
	l.callers = l.callers[1:]
	return true
}

// leave ends the wait of a caller.
func (l *handedLocks) leave(turn chan *handedLock) {
	l.local.Lock()
	for i, other := range l.callers {
		if other == turn {
			l.callers = append(l.callers[:i], l.callers[i+1:]...)
			l.local.Unlock()
			return
		}
	}
	l.local.Unlock()
	if h := <-turn; h.lease != nil {
		_ = h.Release(context.Background()) // the error does not matter: the caller has given up
	} else {
		l.next(h)
	}
}

func (h *handedLock) Release(ctx context.Context) error {
	if time.Now().Before(h.handOffUntil) && h.locks.next(h) {
		return nil
	}
	err := h.lease.Release(ctx)
	h.locks.next(&handedLock{locks: h.locks})
	return err
}
