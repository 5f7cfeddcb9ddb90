package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// ShardSubscriptions is how an Engine on a Redis Cluster hears of its turns: a channel for each slot in which somebody waits, in that slot,
// because scripts publish where they run, and count there who listens; and for each node one connection, its line. Channels are
// sharded ones (Redis 7), or plain ones where the cluster knows no others. One that nobody has used for a minute is left.
//
// As with an inbox, a subscription that breaks, falls silent or is taken away is not mended but replaced, and store.EventReopened
// told. All channels of a line that breaks are subscribed again, each where its slot is served by then; when a slot moves the
// old node takes away just its channel.
type ShardSubscriptions struct {
	cluster ClusterClient
	random  string          // what makes our channels ours
	leaves  time.Duration   // after so long without use, a channel
	ctx     context.Context // of the goroutines
	cut     context.CancelFunc
	work    sync.WaitGroup

	telling sync.Mutex // lines tell one at a time
	tell    func(store.Event)

	mu      sync.Mutex
	stopped bool
	plain   bool // the cluster has no sharded channels
	slots   map[uint16]*shard
	lines   map[string]*line // by the node's address
	refused error            // this user may not subscribe
	asked   time.Time        // when a server said so
}

// shard is the channel of one slot. All of it is guarded by the mutex of the shards.
type shard struct {
	slot   uint16
	name   string
	line   *line     // that it is live on; nil while it is not
	since  time.Time // when it became live
	used   time.Time // when somebody last waited there
	trying *attempt  // the subscription that is under way, or the last that was
}

// unusedAfter is when a channel is left. Who waits uses it at least every othersAsk.
const unusedAfter = time.Minute

// listeningCluster is the Store of a cluster, and a Notifier.
type listeningCluster struct {
	Cluster
	*ShardSubscriptions
}

var _ interface {
	store.Notifier
	store.BatchAcquirer
} = listeningCluster{}

// AcquireAll runs acquire_all.lua for keys of one slot. Those of several slots cannot be taken in one step.
func (l listeningCluster) AcquireAll(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	for _, c := range cs {
		if SlotOf(c.Key) != slot(store.HashTag(cs[0].Key)) {
			return nil, &store.Refusal{Err: fmt.Errorf("%w: %s and %s lie in different slots of the cluster; give keys that belong together a {hash tag}", store.ErrUnsupported, cs[0].Key, c.Key)}
		}
	}
	return l.acquireAll(ctx, cs)
}

// Acquire is that of the Store; who asks again from the queue goes on using the channel.
func (l listeningCluster) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.Inbox != "" {
		l.use(c.Key)
	}
	return l.Cluster.Acquire(ctx, c)
}

// BeginAcquire is that of the Store; who asks again from the queue goes on using the channel.
func (l listeningCluster) BeginAcquire(ctx context.Context, c store.Claim) calls.Question {
	if c.Inbox != "" {
		l.use(c.Key)
	}
	return l.Cluster.BeginAcquire(ctx, c)
}

// NewShardSubscriptions makes one that has subscribed to nothing yet.
func NewShardSubscriptions(c ClusterClient) *ShardSubscriptions {
	s := &ShardSubscriptions{
		cluster: c, random: rand.Text(), leaves: unusedAfter, tell: func(store.Event) {},
		slots: make(map[uint16]*shard), lines: make(map[string]*line),
	}
	s.ctx, s.cut = context.WithCancel(context.Background())
	return s
}

// Listen makes tell hear of every event. stop waits for the goroutines that read; while one connects to a node that hangs
// this may take the 5 s after which go-redis gives up.
func (s *ShardSubscriptions) Listen(tell func(store.Event)) (stop func()) {
	s.tell = tell
	return s.stop
}

func (s *ShardSubscriptions) stop() {
	s.mu.Lock()
	s.stopped = true
	var lines []*line
	for _, l := range s.lines {
		lines = append(lines, l)
	}
	s.mu.Unlock()
	s.cut()
	for _, l := range lines {
		l.close()
	}
	s.work.Wait()
}

// Inbox is the channel of the key's slot.
func (s *ShardSubscriptions) Inbox(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.slots[SlotOf(key)]
	if sh == nil || sh.line == nil {
		return ""
	}
	sh.used = time.Now()
	return sh.name
}

// Address is the channel of the key's slot, also while its node has not confirmed it.
func (s *ShardSubscriptions) Address(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel(SlotOf(key))
}

func (s *ShardSubscriptions) use(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.slots[SlotOf(key)]; sh != nil {
		sh.used = time.Now()
	}
}

// Open waits for the subscription that is under way, and starts one if there is none. While a user may not subscribe it says so
// at once, and asks again from time to time.
func (s *ShardSubscriptions) Open(ctx context.Context, key string) (string, error) {
	n := SlotOf(key)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return "", &store.Refusal{Err: store.ErrClosed}
	}
	sh := s.slots[n]
	if sh == nil {
		if s.refused != nil && time.Since(s.asked) < askAgainAfter {
			s.mu.Unlock()
			return "", s.refused
		}
		sh = &shard{slot: n, name: s.channel(n), trying: newAttempt()}
		s.slots[n] = sh
		first := sh.trying
		s.work.Go(func() { s.begin(sh, first) })
	}
	sh.used = time.Now()
	a := sh.trying
	s.mu.Unlock()
	select {
	case <-a.over:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if a.err != nil {
		return "", Refused(a.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return sh.name, nil
}

// Reset closes the line that the channel is on: all its channels are subscribed afresh.
func (s *ShardSubscriptions) Reset(name string) {
	s.mu.Lock()
	var l *line
	for _, sh := range s.slots {
		if sh.name == name {
			l = sh.line // nil: being replaced already
		}
	}
	s.mu.Unlock()
	if l != nil {
		s.cluster.ReloadState(s.ctx) // the slot may have moved without our noticing
		l.close()
	}
}

// channel is the name of a slot's channel; s.mu is held.
func (s *ShardSubscriptions) channel(slot uint16) string {
	if s.plain {
		return inboxPrefix + TagOfSlot(slot) + ":" + s.random
	}
	return shardPrefix + TagOfSlot(slot) + ":" + s.random
}

// begin subscribes for the first time. If that fails the next Open tries again.
//
// Whoever begins an attempt ends it, and no other: a channel may be lost again as soon as its node has confirmed it, before the
// one who has subscribed knows, and then the next attempt is under way already.
func (s *ShardSubscriptions) begin(sh *shard, first *attempt) {
	err := <-s.subscribe(sh)
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "unknown command") && s.goPlain(sh) {
		err = <-s.subscribe(sh)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		err = store.ErrClosed
	}
	if s.refused = nil; err != nil {
		delete(s.slots, sh.slot)
		if no, ok := errtype.As[*store.Refusal](Refused(err)); ok && !no.Temporary {
			s.refused, s.asked = no, time.Now()
		}
	}
	first.end(err)
}

// goPlain does without sharded channels from now on, and says whether that is new for this one.
func (s *ShardSubscriptions) goPlain(sh *shard) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = true
	old := sh.name
	sh.name = s.channel(sh.slot)
	return sh.name != old
}

// subscribe subscribes where the slot is served, and answers when that is confirmed or has failed.
func (s *ShardSubscriptions) subscribe(sh *shard) <-chan error {
	s.mu.Lock()
	name := sh.name
	s.mu.Unlock()
	node, err := s.cluster.MasterForKey(s.ctx, name)
	if err != nil {
		return failed(err)
	}
	addr := node.Options().Addr
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return failed(store.ErrClosed)
	}
	l := s.lines[addr]
	if l == nil {
		l = newLine(s, addr, node)
		s.lines[addr] = l
		s.work.Go(l.run)
	}
	s.mu.Unlock()
	return l.subscribe(sh, name)
}

func failed(err error) <-chan error {
	answer := make(chan error, 1)
	answer <- err
	return answer
}

// lost is called when channels were lost together. It returns when all are live again, or not needed any more.
func (s *ShardSubscriptions) lost(all []*shard) {
	s.mu.Lock()
	hasty := false
	for _, sh := range all {
		hasty = hasty || time.Since(sh.since) < steadyAfter
		sh.line, sh.trying = nil, newAttempt()
	}
	s.mu.Unlock()
	missed := false // the waiters know that there is no subscription
	for pause := range betweenSubscriptions {
		if hasty { // what did not hold is not tried again at once
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
		hasty = true
		if all = s.again(all); len(all) == 0 {
			return
		}
		if !missed {
			missed = true
			s.say(store.Event{Kind: store.EventReopened}) // the waiters must poll meanwhile
		}
		s.cluster.ReloadState(s.ctx)
	}
}

// again subscribes once more, and returns those for which that has failed.
func (s *ShardSubscriptions) again(all []*shard) (failed []*shard) {
	answers, tries := make([]<-chan error, len(all)), make([]*attempt, len(all))
	s.mu.Lock()
	for i, sh := range all {
		tries[i] = sh.trying
	}
	s.mu.Unlock()
	for i, sh := range all {
		answers[i] = s.subscribe(sh)
	}
	for i, sh := range all {
		err := <-answers[i]
		s.mu.Lock()
		switch {
		case err == nil:
		case s.stopped || time.Since(sh.used) > s.leaves:
			delete(s.slots, sh.slot)
		default: // whoever asks is told how it stands, and comes again after a pause
			sh.trying = newAttempt()
			failed = append(failed, sh)
		}
		tries[i].end(err)
		s.mu.Unlock()
	}
	if len(failed) < len(all) {
		s.say(store.Event{Kind: store.EventReopened})
	}
	return failed
}

func (s *ShardSubscriptions) say(e store.Event) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.tell(e)
}

func newAttempt() *attempt { return &attempt{over: make(chan struct{})} }

func (a *attempt) end(err error) {
	a.err = err
	close(a.over)
}
