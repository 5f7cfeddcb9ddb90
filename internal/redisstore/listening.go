package redisstore

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

type (
	// listening is the Store of one server whose client can subscribe, so it is a Notifier.
	listening struct {
		Single
		*Subscriptions
	}
	// listeningCluster is the Store of a cluster, and a Notifier.
	listeningCluster struct {
		Cluster
		*Subscriptions
	}
)

// Capabilities adds the subscription. On one server all keys can be taken in one step.
func (s listening) Capabilities() store.Capabilities {
	can := s.Single.Capabilities()
	can.Notifier, can.AcquireAll = s.Subscriptions, s.acquireAll
	return can
}

// Capabilities adds the subscription.
func (l listeningCluster) Capabilities() store.Capabilities {
	can := l.Cluster.Capabilities()
	can.Notifier, can.AcquireAll = l.Subscriptions, l.acquireSlot
	return can
}

// acquireSlot runs acquire_all.lua for keys of one slot. Keys of several slots cannot be taken in
// one step.
func (l listeningCluster) acquireSlot(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	for _, c := range cs {
		if SlotOf(c.Key) != slot(store.HashTag(cs[0].Key)) {
			return nil, &store.Refusal{Err: fmt.Errorf("%w: %s and %s lie in different slots of the cluster; give keys that are locked together the same {hash tag}", store.ErrUnsupported, cs[0].Key, c.Key)}
		}
	}
	return l.acquireAll(ctx, cs)
}

// Acquire marks the channel as used if the claim has an inbox, and then calls the embedded Acquire.
func (l listeningCluster) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.Cluster.Acquire(ctx, c)
}

// Begin marks the channel as used if an acquire has an inbox, and then calls the embedded Begin.
func (l listeningCluster) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire && c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.Cluster.Begin(ctx, step, c, onAnswer)
}
