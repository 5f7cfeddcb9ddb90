package redisstore

import (
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/errtype"
)

// line is one connection to a node, and the goroutine that reads it, for all channels on that
// node. After any error the line ends for good.
type line struct {
	of   *Subscriptions
	addr string

	mu      sync.Mutex // also keeps the list pending in the order of the writes
	pubsub  PubSub
	pending []pending // subscriptions without an answer, the oldest first
	closed  bool
	why     error // why the line was closed

	// over is true when the line is closed. The field is for goroutines that must not wait for
	// l.mu, which is held while the line connects.
	over atomic.Bool

	// Only the goroutine that reads uses these fields:
	live  map[string]*shard // the live shards by channel
	swept time.Time         // when unused channels were last looked for
}

// pending is a subscription without an answer.
type pending struct {
	shard  *shard
	name   string
	since  time.Time
	answer chan error
}

var errLineLost = errors.New("the connection that receives the messages of the server was lost")

func newLine(s *Subscriptions, addr string, node Subscriber) *line {
	return &line{of: s, addr: addr, pubsub: node.OpenPubSub(s.ctx), live: make(map[string]*shard), swept: time.Now()}
}

// subscribe sends the subscription. The goroutine that reads delivers the answer.
func (l *line) subscribe(sh *shard, name string) <-chan error {
	p := pending{sh, name, time.Now(), make(chan error, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		p.answer <- l.why
		return p.answer
	}
	l.pending = append(l.pending, p)
	var err error
	if isSharded(name) {
		err = l.pubsub.SSubscribe(l.of.ctx, name)
	} else {
		err = l.pubsub.Subscribe(l.of.ctx, name)
	}
	if err != nil {
		l.hangUp(err)
	}
	return p.answer
}

func isSharded(name string) bool { return strings.HasPrefix(name, shardPrefix) }

// run reads until the line is lost. After that, run subscribes the line's channels on other lines.
func (l *line) run() {
	l.read()
	l.close()
	l.of.mu.Lock()
	if l.of.lines[l.addr] == l {
		delete(l.of.lines, l.addr)
	}
	l.of.mu.Unlock()
	if len(l.live) > 0 {
		l.of.lost(slices.Collect(maps.Values(l.live)))
	}
}

// read handles the node's messages.
func (l *line) read() {
	asked := false
	for {
		message, err := l.pubsub.ReceiveTimeout(l.of.ctx, silentFor)
		switch {
		case err == nil:
			asked = false
			switch message := message.(type) {
			case *redis.Message:
				if e, ok := ParseEvent(message.Payload); ok {
					l.of.notify(e)
				}
			case *redis.Subscription:
				if !l.changed(message) {
					return
				}
			}
		case timedOut(err) && !asked && !l.overdue():
			asked = true
			if l.pubsub.Ping(l.of.ctx) != nil {
				return
			}
		case isReply(err):
			if !l.refused(err) {
				return
			}
		default:
			l.fail(err)
			return
		}
		l.sweep()
	}
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// changed handles the start or the end of a subscription. The result is false when go-redis has
// connected again by itself, because messages may have been lost meanwhile.
func (l *line) changed(s *redis.Subscription) bool {
	if s.Kind == "ssubscribe" || s.Kind == "subscribe" {
		p, ok := l.next(s.Channel)
		if !ok {
			return false
		}
		l.of.mu.Lock()
		p.shard.line, p.shard.since = l, time.Now()
		l.of.mu.Unlock()
		l.live[p.name] = p.shard
		p.answer <- nil
		return true
	}
	sh := l.live[s.Channel]
	delete(l.live, s.Channel)
	if sh != nil { // the server ended the subscription, because the slot has moved
		l.of.sites.reload(l.of.ctx)
		l.of.work.Go(func() { l.of.lost([]*shard{sh}) })
	}
	return true
}

// next removes from pending the oldest subscription without an answer, and returns it. If this
// subscription is for another channel, next returns false. The channel "" stands for any channel.
func (l *line) next(channel string) (pending, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 || channel != "" && l.pending[0].name != channel {
		return pending{}, false
	}
	p := l.pending[0]
	l.pending = l.pending[1:]
	return p, true
}

// refused gives err to the oldest subscription without an answer. The result is false when no
// subscription waits for an answer, because in this state the error concerns the line.
func (l *line) refused(err error) bool {
	p, ok := l.next("")
	if !ok {
		return false
	}
	p.answer <- err
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 && len(l.live) == 0 { // no channel needs the connection
		l.hangUp(err)
	}
	return true
}

// overdue reports whether a subscription has waited far too long for its answer.
func (l *line) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) > 0 && time.Since(l.pending[0].since) >= silentFor
}

// sweep unsubscribes channels that are not used any more.
func (l *line) sweep() {
	if l.of.leaves == 0 || time.Since(l.swept) < l.of.leaves/2 {
		return
	}
	l.swept = time.Now()
	var names []string
	l.of.mu.Lock()
	for name, sh := range l.live {
		if l.of.unused(sh) {
			sh.line = nil
			delete(l.of.slots, sh.slot)
			names = append(names, name)
		}
	}
	l.of.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if l.closed {
			return
		}
		delete(l.live, name)
		var err error
		if isSharded(name) {
			err = l.pubsub.SUnsubscribe(l.of.ctx, name)
		} else {
			err = l.pubsub.Unsubscribe(l.of.ctx, name)
		}
		if err != nil {
			l.hangUp(err)
		}
	}
}

func timedOut(err error) bool {
	network, ok := errtype.As[net.Error](err)
	return ok && network.Timeout()
}

// close ends the line. The goroutine that reads then subscribes the line's channels on other lines.
func (l *line) close() { l.fail(errLineLost) }

func (l *line) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangUp(err)
}

// hangUp closes the connection, and fails the pending subscriptions. The caller holds l.mu.
func (l *line) hangUp(err error) {
	if l.closed {
		return
	}
	l.closed, l.why = true, err
	l.over.Store(true)
	_ = l.pubsub.Close()
	for _, p := range l.pending {
		p.answer <- err
	}
	l.pending = nil
}
