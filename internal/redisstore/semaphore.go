package redisstore

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// semaphore is the Store of one server, or of a cluster, whose keys have permits. While permits
// are held, L shows that the key is taken. The sorted set P has an entry with an expiry for each
// permit, and the hash U has the use of each permit. A claim without a Limit is a claim with Limit
// 1.
//
// While a slot of a cluster moves, renewals and releases continue, in steps of one key each.
type semaphore struct {
	single  Single
	cluster ClusterClient // nil: one server
}

// A semaphore whose client can subscribe is a Notifier too.
type (
	listeningSemaphore struct {
		semaphore
		*Subscriptions
	}
	listeningSemaphoreCluster struct {
		semaphore
		*Subscriptions
	}
)

// Capabilities returns what a semaphore can do.
func (s semaphore) Capabilities() store.Capabilities {
	return store.Capabilities{
		Permits: true, Inspect: s.Inspect, Keys: s.Keys, Queue: s.Queue, Revoke: s.Revoke, RaiseFence: s.RaiseFence, CheckServer: s.CheckServer,
	}
}

// Capabilities adds the subscription.
func (l listeningSemaphore) Capabilities() store.Capabilities {
	can := l.semaphore.Capabilities()
	can.Notifier = l.Subscriptions
	return can
}

// Capabilities adds the subscription.
func (l listeningSemaphoreCluster) Capabilities() store.Capabilities {
	can := l.semaphore.Capabilities()
	can.Notifier = l.Subscriptions
	return can
}

// Acquire marks the channel as used if the claim has an inbox, and then calls the embedded Acquire.
func (l listeningSemaphoreCluster) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.semaphore.Acquire(ctx, c)
}

// Begin marks the channel as used if an acquire has an inbox, and then calls the embedded Begin.
func (l listeningSemaphoreCluster) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire && c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.semaphore.Begin(ctx, step, c, onAnswer)
}

// NewSemaphore does the work of New for a Store with permits.
func NewSemaphore(c Client, cfg Settings) (store.Store, error) {
	s, err := New(c, cfg)
	switch s := s.(type) {
	case Single:
		return semaphore{single: s}, nil
	case listening:
		return listeningSemaphore{semaphore{single: s.Single}, s.Subscriptions}, nil
	case listeningCluster:
		return listeningSemaphoreCluster{semaphore{s.Single, s.cluster}, s.Subscriptions}, nil
	}
	return nil, err
}

// withLimit returns c with a Limit and a Weight, because the scripts need both.
func withLimit(c store.Claim) store.Claim {
	c.Limit, c.Weight = max(c.Limit, 1), max(c.Weight, 1)
	return c
}

// Acquire runs sem_acquire.lua for the claim c, and returns the grant in its answer.
func (s semaphore) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if q := s.acquire(c); q != nil {
		return q.ask(ctx, s.single.Client)
	}
	return store.Grant{}, weightError(c)
}

// acquire returns an acquire of c that was not sent yet, or nil when the claim's Weight exceeds
// its Limit.
func (s semaphore) acquire(c store.Claim) *question {
	waits, done, once := "", "", ""
	c = withLimit(c)
	if c.Weight > c.Limit {
		return nil
	}
	if c.Queue {
		waits = waiterPart(c)
	}
	if c.OnceFor > 0 {
		done, once = DoneKey(c.Key), "1"
	}
	block := max(c.FenceCount, 1)
	queue, tombstone := queueAndTombstone(c.Key, c.Owner)
	words := semAcquireScript.shortWords(
		[]string{c.Key, queue, CounterKey(c.Key), PermitsKey(c.Key), UsesKey(c.Key), tombstone, done},
		c.Owner, Millis(c.TTL), int64(block), int64(c.Weight), int64(c.Limit), waits, c.Metadata, once)
	return s.single.question(semAcquireScript, words, readAcquire, block)
}

func weightError(c store.Claim) error {
	return &store.Refusal{Err: fmt.Errorf("%w: %d units can never be free, because the limit is %d; lower the Weight or raise the Limit", store.ErrUnsupported, c.Weight, max(c.Limit, 1))}
}

// Begin begins a step.
func (s semaphore) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step != calls.Acquire {
		return s.single.begin(ctx, step, s.release(c), onAnswer)
	}
	if q := s.acquire(c); q != nil {
		return s.single.begin(ctx, step, q, onAnswer)
	}
	return calls.Settled(store.Grant{}, weightError(c), onAnswer)
}

// permitsCall returns the call of sem_renew.lua that renews the permits of the batch.
func (b *Batch) permitsCall() *Call {
	keys := make([]string, 0, 4*len(b.Places))
	args := make([]any, 0, 2*len(b.Places))
	for c := range b.Claims() {
		keys = append(keys, c.Key, QueueKey(c.Key), PermitsKey(c.Key), UsesKey(c.Key))
		args = append(args, c.Owner, Millis(c.TTL))
	}
	return semRenewScript.Call(keys, args...)
}

func (s semaphore) batches(cs []store.Claim) []*Batch {
	group := sameGroup
	if s.cluster != nil {
		group = SlotOf
	}
	all := splitBatches(Batches(cs, group))
	for _, b := range all {
		b.permits = true
	}
	return all
}

// Renew runs sem_renew.lua, on a cluster once for each slot.
func (s semaphore) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	s.singleKeySteps().Each(s.batches(cs), func(b *Batch) {
		s.single.renew(ctx, b, grants)
		s.complete(ctx, b, grants)
	})
	return errorOfAll(grants)
}

// BeginRenew does the work of Renew, and delivers the answers of each node when they come.
func (s semaphore) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for _, b := range s.batches(cs) {
		s.single.beginRenewal(ctx, b, grants, onAnswer, func() { s.complete(ctx, b, grants) })
	}
}

// complete renews one by one the permits whose slot moves. After that, complete finds out which
// of the lost permits were revoked.
func (s semaphore) complete(ctx context.Context, b *Batch, grants []store.Grant) {
	for _, one := range b.splitMoving(grants) {
		s.renewAlone(ctx, one, grants)
	}
	s.single.lookUp(ctx, b, grants)
}

// singleKeySteps returns the semaphore's Store as a Cluster. The steps of a Cluster that use one
// key each work while a slot moves.
func (s semaphore) singleKeySteps() Cluster { return Cluster{s.single, s.cluster} }

// renewAlone renews one permit while its slot moves. The first step renews the permit. Further
// steps renew U and L, which must last as long as the permit. While the permit lasts and L shows
// that permits are held, no other token has the permit's units. If L has another value, either the
// key was handed to this token alone, or the permit is lost.
func (s semaphore) renewAlone(ctx context.Context, b *Batch, grants []store.Grant) {
	c, i := *b.firstClaim(), b.Places[0]
	part, err := semPartScript.Run(ctx, s.single.Client, []string{PermitsKey(c.Key)}, c.Owner, Millis(c.TTL), "1")
	if err != nil {
		b.Fail(grants, err)
		return
	}
	if part == "0" {
		s.singleKeySteps().renewAlone(ctx, b, grants)
		return
	}
	if _, err := semUseScript.Run(ctx, s.single.Client, []string{UsesKey(c.Key)}, c.Owner, Millis(c.TTL)); err != nil {
		b.Fail(grants, err)
		return
	}
	c.Owner = PermitsToken
	s.single.renew(ctx, &Batch{all: []store.Claim{c}, Places: []int{0}}, grants[i:i+1])
}

// Release runs sem_release.lua for the claim c, and returns the grant in its answer.
func (s semaphore) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.release(c).ask(ctx, s.single.Client)
}

func (s semaphore) release(c store.Claim) *question {
	if c.Queue {
		c = withLimit(c)
	}
	r := releaseOf(c)
	done := ""
	if r.done > 0 {
		done = DoneKey(c.Key)
	}
	words := semReleaseScript.shortWords(
		[]string{c.Key, r.queue, CounterKey(c.Key), PermitsKey(c.Key), UsesKey(c.Key), r.tombstone, done},
		c.Owner, r.entry, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(r.done))
	q := releaseQuestion(semReleaseScript, words)
	if !(c.Complete && c.OnceFor > 0) {
		q.alone = func(ctx context.Context) (store.Grant, error) { return s.releaseAlone(ctx, c) }
	}
	return q
}

// Prompt reports whether the last answers of the key's server came soon after their requests.
func (s semaphore) Prompt(key string) bool { return s.single.Prompt(key) }

// Repeat repeats the attempt of ch until the key's server has answered it.
func (s semaphore) Repeat(ch calls.Chore) { s.single.Repeat(ch) }

// releaseAlone makes a release in steps of one key each, for a slot that moves. The permit stays in
// P, because P and U must have the same size. So releaseAlone makes the permit run out now, or
// after KeepFor, and a later script takes the permit back.
func (s semaphore) releaseAlone(ctx context.Context, c store.Claim) (store.Grant, error) {
	g, err := s.singleKeySteps().releaseAlone(ctx, withLimit(c))
	if err != nil || g.State != store.NotOurs {
		return g, err
	}
	if _, err := semUseScript.Run(ctx, s.single.Client, []string{UsesKey(c.Key)}, c.Owner, int64(0)); err != nil {
		return store.Grant{}, err
	}
	part, err := semPartScript.Run(ctx, s.single.Client, []string{PermitsKey(c.Key)}, c.Owner, Millis(c.KeepFor), "0")
	if err != nil {
		return store.Grant{}, err
	}
	if part == "1" {
		g.State = store.Released
	}
	return g, nil
}

// Close waits until unclear calls are undone and no call is under way, or until ctx ends.
func (s semaphore) Close(ctx context.Context) error { return s.single.Close(ctx) }
