package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// Subscriptions receive the messages for an Engine. There is a channel for each slot with waiters.
// The channels on one node share a connection, the line. A server without a Cluster counts as one
// node with one slot. On a Redis Cluster, the name of a channel hashes into its slot, because
// scripts publish on the node where they run, and count the subscribers there. The channels of a
// cluster are sharded (Redis 7), or plain if the cluster does not support sharded channels. A
// channel that was not used for a minute is unsubscribed; if it was the last of its line, the line
// is closed instead, and an idle process sends nothing.
//
// A server can confirm a subscription, and then answer that the channel has no subscriber: behind
// some proxies, subscriptions are on another server than the scripts. Then Reset replaces the
// subscription at most mostResets times, after longer and longer pauses. After that the channel is
// deaf for a while: it counts as not live, and its waiters poll in the server's queue.
//
// A subscription that breaks, falls silent or is removed by the server is replaced, and
// store.EventReopened is sent. When a line breaks, all its channels are subscribed again, each on
// the node that then serves its slot. When a slot moves, the old node removes only the channel of
// that slot.
type Subscriptions struct {
	sites       sites
	unusedLimit time.Duration   // after this time an unused channel is unsubscribed
	ctx         context.Context // the context of the goroutines
	cut         context.CancelFunc
	work        sync.WaitGroup

	notifying sync.Mutex // locked while a node's connection reports an event, so that events are reported one at a time
	listener  func(store.Event)

	mu        sync.Mutex
	stopped   bool
	plain     bool // the cluster has no sharded channels
	slots     map[uint16]*shard
	lines     map[string]*line    // the lines by their nodes' addresses
	refused   error               // the server's error for a user that may not subscribe; nil: no server has refused this user
	refusedAt time.Time           // the time when a server last refused this user
	warn      func(store.Warning) // reports, once, that waiters poll; constant after Watch
	forbidden error               // why no messages are used; nil: they are used
}

// shard is the channel of one slot. The mutex of the Subscriptions guards all fields.
type shard struct {
	slot      uint16
	name      string
	line      *line     // the connection on which the channel is live; nil while it is not live
	liveSince time.Time // when the channel became live
	usedAt    time.Time // when a waiter last used the channel
	latest    *attempt  // the latest attempt to subscribe, which may be under way

	resets    int       // how often Reset has replaced the subscription since the last message
	resetAt   time.Time // when Reset last replaced the subscription
	deafUntil time.Time // until then, the channel counts as not live
}

const (
	// A line (a connection) sends a ping when the server was silent for pingAfter times silentFor.
	// The server must answer the ping, and a subscription, within silentFor.
	silentFor, pingAfter = 3 * time.Second, 3
	// If a subscription lived for at least steadyAfter, the next subscription follows without a
	// pause.
	steadyAfter = time.Second
	// askAgainAfter is how long a process waits, after the server has forbidden its user to
	// subscribe, before it tries again.
	askAgainAfter = 10 * time.Second
	// mostResets is how often Reset replaces a subscription whose messages do not arrive. Then the
	// channel is deaf for deafFor.
	mostResets = 3
	deafFor    = time.Minute
)

// errNoMessages is the error of Open for a deaf channel.
var errNoMessages = errors.New("the server confirms subscriptions, but its scripts see no subscriber")

// attempt is one attempt to subscribe to the channel of a slot. All calls of Open for one slot
// wait for the same attempt.
type attempt struct {
	ended chan struct{} // closed when the result is known
	err   error
}

// newSubscriptions returns Subscriptions that have no channel yet. The parameter channelSites finds
// the nodes of channels.
func newSubscriptions(channelSites sites) *Subscriptions {
	s := &Subscriptions{
		sites: channelSites, unusedLimit: unusedAfter, listener: func(store.Event) {},
		slots: make(map[uint16]*shard), lines: make(map[string]*line), warn: func(store.Warning) {},
	}
	s.ctx, s.cut = context.WithCancel(context.Background())
	return s
}

// Listen makes listener receive every event. The function stop ends the subscriptions, and waits
// for the goroutines that read. If a goroutine is connecting to a node that hangs, stop may take 5
// s, after which go-redis gives up.
func (s *Subscriptions) Listen(listener func(store.Event)) (stop func()) {
	s.listener = listener
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

// Inbox returns the channel of the key's slot, or "" while this channel is not live.
func (s *Subscriptions) Inbox(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.slots[s.sites.slot(key)]
	if sh == nil || sh.line == nil || s.forbidden != nil {
		return ""
	}
	sh.usedAt = time.Now()
	if sh.isDeaf() {
		return ""
	}
	return sh.name
}

func (s *Subscriptions) markUsed(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.slots[s.sites.slot(key)]; sh != nil {
		sh.usedAt = time.Now()
	}
}

// Open waits for the subscription that is under way, or starts one. If the server has refused this
// user, Open fails at once, until askAgainAfter has passed since the refusal.
func (s *Subscriptions) Open(ctx context.Context, key string) (string, error) {
	n := s.sites.slot(key)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return "", &store.Refusal{Err: store.ErrClosed}
	}
	if err := s.forbidden; err != nil {
		s.mu.Unlock()
		return "", err
	}
	sh := s.slots[n]
	if sh == nil {
		if s.refused != nil && time.Since(s.refusedAt) < askAgainAfter {
			s.mu.Unlock()
			return "", s.refused
		}
		sh = &shard{slot: n, name: s.channel(n), latest: newAttempt()}
		s.slots[n] = sh
		first := sh.latest
		s.work.Go(func() { s.firstAttempt(sh, first) })
	}
	sh.usedAt = time.Now()
	if sh.isDeaf() {
		s.mu.Unlock()
		return "", &store.Refusal{Err: errNoMessages, Temporary: true}
	}
	a := sh.latest
	s.mu.Unlock()
	select {
	case <-a.ended:
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

// Reset is called when the server has answered that the channel has no subscriber. It closes the
// line of the channel (the connection to its node), so that all channels of the line are subscribed
// again. If the channel was reset before and no message has come since, it must first have been
// live for 1 s, 2 s or 4 s. The reset after mostResets makes the channel deaf instead.
func (s *Subscriptions) Reset(name string) {
	s.mu.Lock()
	sh := s.shardNamed(name)
	if sh == nil || sh.line == nil || s.forbidden != nil || sh.isDeaf() { // nil: the line is being replaced already
		s.mu.Unlock()
		return
	}
	now := time.Now()
	if now.Sub(sh.resetAt) >= deafFor {
		sh.resets = 0
	}
	if sh.resets > 0 && min(now.Sub(sh.liveSince), now.Sub(sh.resetAt)) < time.Second<<(sh.resets-1) {
		s.mu.Unlock()
		return
	}
	sh.resetAt = now
	if sh.resets == mostResets {
		s.deafen(sh)
		s.mu.Unlock()
		return
	}
	sh.resets++
	l := sh.line
	s.mu.Unlock()
	s.sites.reload(s.ctx) // the slot may have moved without a notice
	l.close()
}

// deafen makes the channel of sh deaf, and its waiters ask again, without the channel. The caller
// holds s.mu.
func (s *Subscriptions) deafen(sh *shard) {
	sh.deafUntil = time.Now().Add(deafFor)
	e := store.Event{Kind: store.EventReopened, Inbox: sh.name}
	if s.stopped {
		return
	}
	s.work.Go(func() {
		s.warn(unseen)
		s.notify(e)
	})
}

// isDeaf reports whether messages do not arrive on the channel. The caller holds the mutex of the
// Subscriptions.
func (sh *shard) isDeaf() bool { return time.Now().Before(sh.deafUntil) }

// shardNamed returns the shard whose channel has the given name, or nil. The caller holds s.mu.
func (s *Subscriptions) shardNamed(name string) *shard {
	for _, sh := range s.slots {
		if sh.name == name {
			return sh
		}
	}
	return nil
}

// forbid ends the use of messages, because of the error err.
func (s *Subscriptions) forbid(err error) {
	s.mu.Lock()
	s.forbidden = err
	s.mu.Unlock()
	s.warn(noMessages)
}

// noteMessage records that messages arrive on the channel of sh.
func (s *Subscriptions) noteMessage(sh *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh != nil {
		sh.resets = 0
	}
}

// Watch makes the Subscriptions report, once, why waiters poll. It is called before all other
// methods.
func (s *Subscriptions) Watch(report func(store.Warning)) {
	var once sync.Once
	s.warn = func(w store.Warning) { once.Do(func() { report(w) }) }
}

// Polls returns why waiters poll; "" means that they get messages, or that nobody has waited yet.
func (s *Subscriptions) Polls() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forbidden != nil || s.refused != nil {
		return noMessages.Text
	}
	for _, sh := range s.slots {
		if sh.isDeaf() {
			return unseen.Text
		}
	}
	return ""
}

// channel returns the name of a slot's channel. The caller holds s.mu.
func (s *Subscriptions) channel(slot uint16) string { return s.sites.channel(slot, s.plain) }

// firstAttempt subscribes to the shard sh. The parameter first is this attempt. If it fails,
// the next Open makes another attempt.
//
// A channel may be lost as soon as its node has confirmed it, before the subscribing caller has
// seen the confirmation. The next attempt may then be under way already. So only the caller
// that has begun an attempt marks this attempt as ended.
func (s *Subscriptions) firstAttempt(sh *shard, first *attempt) {
	err := <-s.subscribe(sh)
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "unknown command") && s.switchToPlain(sh) {
		err = <-s.subscribe(sh)
	}
	s.mu.Lock()
	if s.stopped {
		err = store.ErrClosed
	}
	if s.refused = nil; err != nil {
		delete(s.slots, sh.slot)
		if no, ok := errors.AsType[*store.Refusal](Refused(err)); ok && !no.Temporary {
			s.refused, s.refusedAt = no, time.Now()
		}
	}
	forbidden := s.refused != nil
	first.finish(err)
	s.mu.Unlock()
	if forbidden { // called without the mutex, because the Observer's code runs
		s.warn(noMessages)
	}
}

// switchToPlain makes all later subscriptions use plain channels instead of sharded channels. It
// reports whether the channel of sh has a new name now.
func (s *Subscriptions) switchToPlain(sh *shard) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = true
	old := sh.name
	sh.name = s.channel(sh.slot)
	return sh.name != old
}

// subscribe sends the subscription of sh to the node that serves its slot. The returned channel
// receives nil when the node has confirmed the subscription, or the error.
func (s *Subscriptions) subscribe(sh *shard) <-chan error {
	s.mu.Lock()
	name := sh.name
	s.mu.Unlock()
	node, addr, err := s.sites.node(s.ctx, name)
	if err != nil {
		return failedAnswer(err)
	}
	for {
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return failedAnswer(store.ErrClosed)
		}
		l := s.lines[addr]
		if l == nil || l.ended.Load() {
			l = newLine(s, addr, node)
			s.lines[addr] = l
			s.work.Go(l.run)
		}
		s.mu.Unlock()
		if answer := l.subscribe(sh, name); answer != nil {
			return answer
		}
	}
}

func failedAnswer(err error) <-chan error {
	answer := make(chan error, 1)
	answer <- err
	return answer
}

// restore subscribes again to the channels of all, which were lost together. It returns when each
// of these channels is live again, or is not needed any more.
func (s *Subscriptions) restore(all []*shard) {
	s.mu.Lock()
	hasty := false
	for _, sh := range all {
		hasty = hasty || time.Since(sh.liveSince) < steadyAfter
		sh.line, sh.latest = nil, newAttempt()
	}
	s.mu.Unlock()
	missed := false // true: the waiters were notified that there is no subscription
	for pause := range calls.BetweenRepeats {
		if hasty { // after a subscription that did not last, pause first
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
		hasty = true
		if all = s.resubscribe(all); len(all) == 0 {
			return
		}
		if !missed {
			missed = true
			s.notify(s.reopenedEvent(all)) // the waiters must poll meanwhile
		}
		s.sites.reload(s.ctx)
	}
}

// resubscribe makes one attempt to subscribe for each channel of all, and returns the channels that
// still have no subscription.
func (s *Subscriptions) resubscribe(all []*shard) (failed []*shard) {
	answers, tries := make([]<-chan error, len(all)), make([]*attempt, len(all))
	s.mu.Lock()
	for i, sh := range all {
		tries[i] = sh.latest
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
		default: // a caller of Open gets the error, and calls again after a pause
			sh.latest = newAttempt()
			failed = append(failed, sh)
		}
		tries[i].finish(err)
		s.mu.Unlock()
	}
	if len(failed) < len(all) {
		s.notify(s.reopenedEvent(all))
	}
	return failed
}

// reopenedEvent returns the event EventReopened for the channels of all, which were lost together.
// When a single channel was lost, its slot has moved, and only the waiters of that channel ask
// again. If all waiters asked after each move, they would ask thousands of times while a cluster
// moves thousands of slots.
func (s *Subscriptions) reopenedEvent(all []*shard) store.Event {
	e := store.Event{Kind: store.EventReopened}
	if len(all) == 1 {
		s.mu.Lock()
		e.Inbox = all[0].name
		s.mu.Unlock()
	}
	return e
}

// unused reports whether the channel of sh was not used for so long that it is to be unsubscribed.
// The caller holds s.mu.
func (s *Subscriptions) unused(sh *shard) bool {
	return time.Since(sh.usedAt) >= s.unusedLimit
}

func (s *Subscriptions) notify(e store.Event) {
	s.notifying.Lock()
	defer s.notifying.Unlock()
	s.listener(e)
}

func newAttempt() *attempt { return &attempt{ended: make(chan struct{})} }

func (a *attempt) finish(err error) {
	a.err = err
	close(a.ended)
}
