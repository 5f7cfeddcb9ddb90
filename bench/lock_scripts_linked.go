package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker"
)

// linkedLocks send latchkit's scripts over latchkit's own connection, which the callers write and
// read: they are the least program for a lock of Open. What latchkit takes more is its Engine: it
// renews and repeats, keeps books of leases and waiters, and makes the contexts of holders.
type linkedLocks struct {
	*scriptLocks // load the scripts
	linked       *redis.Client
	links        *link.Links
}

var (
	acquiresTogether = &link.Together{Script: acquireEachScript, Keys: 4, Args: []int{0, 1, 2, 3}}
	releasesTogether = &link.Together{Script: releaseEachScript, Keys: 2, Args: []int{0}}
)

func openLinked(s settings) (locks, error) {
	bare, err := openScripts(s)
	if err != nil {
		return nil, err
	}
	tap := new(link.Tap)
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr, ContextTimeoutEnabled: true, MaintNotificationsConfig: link.NoNotices(), Dialer: tap.Dialer(nil, 0, nil),
	})
	return &linkedLocks{bare, c, link.New(c, link.Options{Tap: tap})}, nil
}

type linkedLease struct {
	scriptLease
	locks *linkedLocks
}

func (l *linkedLocks) Lock(ctx context.Context, key string) (hold, error) {
	lease := &linkedLease{l.lease(key), l}
	text, err := l.links.Do(ctx, &link.Call{
		Script: acquireScript, Together: acquiresTogether, Key: key, Class: link.Ask,
		Words: acquireScript.Words(lease.keys(), lease.token, l.ttl, int64(locker.DefaultHandoffs)),
	})
	if err != nil {
		return nil, err
	}
	return lease, checkAnswer(text, isGranted)
}

// Release implements hold.
func (s *linkedLease) Release(ctx context.Context) error {
	text, err := s.locks.links.Do(ctx, &link.Call{
		Script: releaseScript, Together: releasesTogether, Key: s.key, Class: link.Release,
		Words: releaseScript.Words(s.keys()[:2], s.token),
	})
	if err != nil {
		return err
	}
	return checkAnswer(text, isReleased)
}

func (l *linkedLocks) Close() {
	_ = errors.Join(l.links.Close(context.Background()), l.linked.Close())
	l.scriptLocks.Close()
}
