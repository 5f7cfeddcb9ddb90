package redisstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// Subscriptions are how an Engine receives messages: a channel for each slot in which somebody waits,
// and for each node one connection, its line. One server is one node with one slot. On a Redis Cluster
// a channel lies in its slot, because scripts publish where they run, and count there who listens. The
// channels of a cluster are sharded ones (Redis 7), or plain ones where the cluster knows no others.
// One that nobody has used for a minute is left there.
//
// A subscription that breaks, falls silent or is taken away is not mended but replaced, and
// store.EventReopened told. All channels of a line that breaks are subscribed again, each where its
// slot is served by then; when a slot moves the old node takes away just its channel.
type Subscriptions struct {
	sites  sites
	leaves time.Duration   // after so long without use, a channel; 0: never
	ctx    context.Context // of the goroutines
	cut    context.CancelFunc
	work   sync.WaitGroup

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

const (
	// silentFor is how long the server may say nothing: then it is asked for a sign of life, and must give it as soon.
	silentFor = 3 * time.Second
	// steadyAfter is how long a subscription must have held for the next one to come without a pause.
	steadyAfter = time.Second
	// askAgainAfter is when a user who may not subscribe asks whether that has changed.
	askAgainAfter = 10 * time.Second
)

// betweenSubscriptions are the pauses after subscriptions that failed or did not hold.
var betweenSubscriptions = calls.Jittered(calls.Doubling(10*time.Millisecond, 500*time.Millisecond))

// attempt is one subscription, which all calls of Open wait for together.
type attempt struct {
	over chan struct{} // closed when it is known how it ended
	err  error
}

// newSubscriptions makes one that has subscribed to nothing yet.
func newSubscriptions(at sites, leaves time.Duration) *Subscriptions {
	s := &Subscriptions{
		sites: at, leaves: leaves, tell: func(store.Event) {},
		slots: make(map[uint16]*shard), lines: make(map[string]*line),
	}
	s.ctx, s.cut = context.WithCancel(context.Background())
	return s
}

// Listen makes tell hear of every event. stop waits for the goroutines that read; while one connects to a node that hangs
// this may take the 5 s after which go-redis gives up.
func (s *Subscriptions) Listen(tell func(store.Event)) (stop func()) {
	s.tell = tell
	return s.stop
}

func (s *Subscriptions) stop() {
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
func (s *Subscriptions) Inbox(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.slots[s.sites.slot(key)]
	if sh == nil || sh.line == nil {
		return ""
	}
	sh.used = time.Now()
	return sh.name
}

// Address is the channel of the key's slot, also while its node has not confirmed it.
func (s *Subscriptions) Address(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel(s.sites.slot(key))
}

func (s *Subscriptions) use(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.slots[s.sites.slot(key)]; sh != nil {
		sh.used = time.Now()
	}
}

// Open waits for the subscription that is under way, and starts one if there is none. While a user may not subscribe it says so
// at once, and asks again from time to time.
func (s *Subscriptions) Open(ctx context.Context, key string) (string, error) {
	n := s.sites.slot(key)
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
func (s *Subscriptions) Reset(name string) {
	s.mu.Lock()
	var l *line
	for _, sh := range s.slots {
		if sh.name == name {
			l = sh.line // nil: being replaced already
		}
	}
	s.mu.Unlock()
	if l != nil {
		s.sites.reload(s.ctx) // the slot may have moved without our noticing
		l.close()
	}
}

// channel is the name of a slot's channel; s.mu is held.
func (s *Subscriptions) channel(slot uint16) string { return s.sites.channel(slot, s.plain) }

// begin subscribes for the first time. If that fails the next Open tries again.
//
// Whoever begins an attempt ends it, and no other: a channel may be lost again as soon as its node has confirmed it, before the
// one who has subscribed knows, and then the next attempt is under way already.
func (s *Subscriptions) begin(sh *shard, first *attempt) {
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
func (s *Subscriptions) goPlain(sh *shard) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = true
	old := sh.name
	sh.name = s.channel(sh.slot)
	return sh.name != old
}

// subscribe subscribes where the slot is served, and answers when that is confirmed or has failed.
func (s *Subscriptions) subscribe(sh *shard) <-chan error {
	s.mu.Lock()
	name := sh.name
	s.mu.Unlock()
	node, addr, err := s.sites.node(s.ctx, name)
	if err != nil {
		return failed(err)
	}
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return failed(store.ErrClosed)
	}
	l := s.lines[addr]
	if l == nil || l.over.Load() {
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
func (s *Subscriptions) lost(all []*shard) {
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
		s.sites.reload(s.ctx)
	}
}

// again subscribes once more, and returns those for which that has failed.
func (s *Subscriptions) again(all []*shard) (failed []*shard) {
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
		case s.stopped || s.unused(sh):
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

// unused says whether a channel is to be left; s.mu is held.
func (s *Subscriptions) unused(sh *shard) bool {
	return s.leaves > 0 && time.Since(sh.used) >= s.leaves
}

func (s *Subscriptions) say(e store.Event) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.tell(e)
}

func newAttempt() *attempt { return &attempt{over: make(chan struct{})} }

func (a *attempt) end(err error) {
	a.err = err
	close(a.over)
}
