package redisstore

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// ClusterClient is a client of a Redis Cluster. A *redis.ClusterClient is a ClusterClient.
type ClusterClient interface {
	link.Cluster
	pipeliner
}

var _ ClusterClient = (*redis.ClusterClient)(nil)

// slotMoves reports whether err shows that a script was refused because its slot is moving. While a
// slot moves, some of the script's keys may be on the old node and some on the new node.
func slotMoves(err error) bool { return err != nil && redis.IsTryAgainError(err) }

// Cluster is the Store of a Redis Cluster. Each slot is served as the Store of one server would
// serve the slot. All keys of a lock are in one slot, so the lock's scripts run on the node that
// serves the slot. A ClusterClient finds the node by the first key, and follows the slot when it
// moves. This file has the steps that differ from the steps of the Store of one server.
//
// While a slot moves, its keys are on the old node or on the new one. A node refuses a script that
// names several keys (TRYAGAIN) while one of the keys is not on this node. So a new lease must wait
// until the slot has moved. But held leases are renewed and released in steps of one key each,
// because such a step finds its key on either node.
type Cluster struct {
	Single
	cluster ClusterClient
}

// NewCluster returns the Store of the cluster of c, without a subscription. It makes its calls
// through s.
func NewCluster(s Single, c ClusterClient) *Cluster { return &Cluster{s, c} }

// Capabilities returns what a Single can do. Some steps look at all masters.
func (s Cluster) Capabilities() store.Capabilities {
	can := s.Single.Capabilities()
	can.Keys, can.CheckServer = s.Keys, s.CheckServer
	return can
}

// Renew sends one script for each slot.
func (s Cluster) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	all := Batches(cs, SlotOf)
	s.Each(all, func(b *Batch) {
		s.renew(ctx, b, grants)
		s.complete(ctx, b, grants)
	})
	return errorOfAll(grants)
}

// BeginRenew does the work of Renew, and delivers the answers of each node when they come.
func (s Cluster) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for _, b := range splitBatches(Batches(cs, SlotOf)) {
		s.beginRenewal(ctx, b, grants, onAnswer, func() { s.complete(ctx, b, grants) })
	}
}

// complete renews the leases whose slot moves, one after the other. After that, complete finds
// out which of the lost leases were revoked.
func (s Cluster) complete(ctx context.Context, b *Batch, grants []store.Grant) {
	for _, one := range b.splitMoving(grants) {
		s.renewAlone(ctx, one, grants)
	}
	s.lookUp(ctx, b, grants)
}

// MostAtOnce is the largest number of calls of one renewal that are under way at the same time.
const MostAtOnce = 8

// Each calls the function step for each batch in all, for at most MostAtOnce batches at the same
// time, and returns after the last call.
func (s Cluster) Each(all []*Batch, step func(*Batch)) {
	var work sync.WaitGroup
	free := make(chan struct{}, MostAtOnce)
	for _, b := range all {
		free <- struct{}{}
		work.Go(func() {
			step(b)
			<-free
		})
	}
	work.Wait()
}

// splitMoving returns a separate batch for each claim of b whose grant shows that it was refused
// because its slot moves.
func (b *Batch) splitMoving(grants []store.Grant) (all []*Batch) {
	for _, i := range b.Places {
		if slotMoves(grants[i].Err) {
			all = append(all, &Batch{handed: b.all[i].ByHandoff, all: b.all, Places: []int{i}})
		}
	}
	return all
}

// renewAlone renews one lease with a script that changes no other key. If the key was handed to
// the owner, a second step removes the owner's entry from the queue. The second step is safe,
// because no other token gets the key while the owner holds the lease.
func (s Cluster) renewAlone(ctx context.Context, b *Batch, grants []store.Grant) {
	plain := *b
	plain.handed = false
	s.renew(ctx, &plain, grants)
	if b.handed && grants[b.Places[0]].State == store.Granted {
		if _, err := runCommand(ctx, s.Client, link.Renewal, "zremrangebyscore", QueueKey(b.firstClaim().Key), "-inf", "(0"); err != nil {
			b.Fail(grants, Refused(err)) // not confirmed; the lease is renewed again later
		}
	}
}

// Release does the same as Single.Release while the slot does not move. While the slot moves, the
// step that frees the key does nothing else, and the waiters find the key free when they ask again.
// If the release also sets the done mark, it is refused until the slot has moved, because both
// changes must happen together.
func (s Cluster) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.release(c).ask(ctx, s.Client)
}

func (s Cluster) release(c store.Claim) *question {
	q := s.Single.release(c)
	if !(c.Complete && c.OnceFor > 0) {
		q.alone = func(ctx context.Context) (store.Grant, error) { return s.releaseAlone(ctx, c) }
	}
	return q
}

// Begin begins a step.
func (s Cluster) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire {
		return s.begin(ctx, step, s.acquire(c), onAnswer)
	}
	return s.begin(ctx, step, s.release(c), onAnswer)
}

// releaseAlone makes a release in steps of one key each. A step does no harm even if no other step
// follows it, and each step may be repeated. The tombstone comes first, so that no late acquire
// takes the key that a later step frees.
func (s Cluster) releaseAlone(ctx context.Context, c store.Claim) (store.Grant, error) {
	tombstone := TombstoneKey(c.Key, c.Owner)
	if c.TombstoneTTL > 0 {
		if _, err := undoneScript.Run(ctx, s.Client, []string{tombstone}, Millis(c.TombstoneTTL)); err != nil {
			return store.Grant{}, err
		}
	}
	if c.Queue {
		if _, err := runCommand(ctx, s.Client, link.Release, "zrem", QueueKey(c.Key), QueueEntry(c)); err != nil {
			return store.Grant{}, Refused(err)
		}
	}
	freed, err := freeScript.Run(ctx, s.Client, []string{c.Key}, c.Owner, Millis(c.KeepFor))
	if err != nil {
		return store.Grant{}, err
	}
	if freed == "1" {
		return store.Grant{State: store.Released}, nil
	}
	if note, err := runCommand(ctx, s.Client, link.Release, "getex", tombstone); err == nil {
		if reason, ok := strings.CutPrefix(note, "revoked:"); ok {
			return store.Grant{State: store.Revoked, Reason: reason}, nil
		}
	}
	return store.Grant{State: store.NotOurs}, nil
}
