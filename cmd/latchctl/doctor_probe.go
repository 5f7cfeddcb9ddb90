package main

import (
	"context"
	"crypto/rand"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// probeTTL is how long the throw-away key lasts at most.
const probeTTL = 5 * time.Second

// polls is an Observer that remembers whether waiters poll, because the server forbids messages.
type polls struct{ atomic.Bool }

func (*polls) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

// Warn implements [locker.Warner].
func (p *polls) Warn(w locker.Warning) {
	if w.Code == "no-messages" {
		p.Store(true)
	}
}

// probe locks a throw-away key through c, as a service does, and lets a second Locker wait for it.
// So it finds what a hosted server refuses, also where the server does not answer other questions.
// The error of a refused lock says which constructor fits.
func (d *doctor) probe(ctx context.Context, name string, c redis.UniversalClient) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	p := &patient{doctor: d, name: name, client: c}
	polling := new(polls)
	err := probeLock(ctx, c, d.key+":"+rand.Text(), polling)
	switch {
	case err != nil && strings.Contains(err.Error(), "ACL"):
		p.report(hint, "probe", "this user may not lock a key that begins with "+d.key+": "+err.Error(), "--key names another key to try")
	case err != nil:
		p.report(bad, "probe", "a throw-away key cannot be locked: "+err.Error(), "docs/hosted.md says which kind of Locker fits which service")
	case polling.Load():
		p.report(hint, "probe", "a throw-away key was locked, but its waiter had to poll, because the server forbids messages", "allow SUBSCRIBE, PUBLISH, PUBSUB and the channels of docs/operations.md, for faster hand-offs; docs/hosted.md has more")
	default:
		p.report(okay, "probe", "a throw-away key was locked, waited for, and released", "")
	}
}

func probeLock(ctx context.Context, c redis.UniversalClient, key string, polling *polls) error {
	holders, err := locker.New(c, locker.WithObserver(polling))
	if err != nil {
		return err
	}
	defer holders.Close(ctx)
	waiters, err := locker.New(c, locker.WithObserver(polling))
	if err != nil {
		return err
	}
	defer waiters.Close(ctx)
	lease, err := holders.Acquire(ctx, locker.Rule{Key: key, TTL: probeTTL, Wait: locker.NoWait})
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		next, err := waiters.Acquire(ctx, locker.Rule{Key: key, TTL: probeTTL, Wait: probeTTL})
		if err == nil {
			err = next.Release(ctx)
		}
		waited <- err
	}()
	for range 50 { // until the waiter is in the queue; an error of Queue does not matter here
		if queue, err := holders.Queue(ctx, key); err != nil || len(queue) > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := lease.Release(ctx); err != nil {
		return err
	}
	return <-waited
}
