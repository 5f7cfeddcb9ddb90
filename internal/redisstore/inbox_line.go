package redisstore

import (
	"errors"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// line is one connection to a node, and the goroutine that reads it, for all channels on that
// node. After any error the line ends, and is never used again.
type line struct {
	owner *Subscriptions
	addr  string

	mu      sync.Mutex // also keeps the list pending in the order of the writes
	pubsub  *redis.PubSub
	pending []pending // subscriptions without an answer, the oldest first
	closed  bool
	cause   error // why the line was closed

	// ended is true when the line is closed. The field is for goroutines that must not wait for
	// l.mu, which is held while the line connects.
	ended atomic.Bool

	// Only the goroutine that reads uses these fields:
	live    map[string]*shard // the live shards by channel
	sweptAt time.Time         // when unused channels were last looked for
}

// pending is a subscription without an answer.
type pending struct {
	shard  *shard
	name   string
	sentAt time.Time
	answer chan error
}

var (
	errLineLost   = errors.New("the connection that receives the messages of the server was lost")
	errLineUnused = errors.New("no channel uses the connection")
)

func newLine(s *Subscriptions, addr string, node Subscriber) *line {
	return &line{owner: s, addr: addr, pubsub: node.Subscribe(s.ctx), live: make(map[string]*shard), sweptAt: time.Now()}
}

// subscribe sends the subscription of the shard sh to the channel name. The returned channel
// receives the answer from the goroutine that reads. It is nil if the line was closed because no
// channel used it: then the caller needs another line.
func (l *line) subscribe(sh *shard, name string) <-chan error {
	p := pending{sh, name, time.Now(), make(chan error, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		if l.cause == errLineUnused {
			return nil
		}
		p.answer <- l.cause
		return p.answer
	}
	l.pending = append(l.pending, p)
	var err error
	if isSharded(name) {
		err = l.pubsub.SSubscribe(l.owner.ctx, name)
	} else {
		err = l.pubsub.Subscribe(l.owner.ctx, name)
	}
	if err != nil {
		l.hangUp(err)
	}
	return p.answer
}

func isSharded(name string) bool { return strings.HasPrefix(name, shardPrefix) }

// run reads until the line is lost. After that, run subscribes the line's channels again, on
// new connections.
func (l *line) run() {
	l.read()
	l.close()
	l.owner.mu.Lock()
	if l.owner.lines[l.addr] == l {
		delete(l.owner.lines, l.addr)
	}
	l.owner.mu.Unlock()
	if len(l.live) > 0 {
		l.owner.restore(slices.Collect(maps.Values(l.live)))
	}
}

// read receives and handles the node's messages until the line is lost.
func (l *line) read() {
	silences := 0
	for {
		message, err := l.pubsub.ReceiveTimeout(l.owner.ctx, silentFor)
		switch {
		case err == nil:
			silences = 0
			switch message := message.(type) {
			case *redis.Message:
				l.owner.noteMessage(l.live[message.Channel])
				if e, ok := ParseEvent(message.Payload); ok {
					l.owner.notify(e)
					runtime.Gosched() // the waiter runs now, not only after the next read has begun
				}
			case *redis.Subscription:
				if !l.handleChange(message) {
					return
				}
			}
		case timedOut(err) && silences < pingAfter && !l.overdue():
			if silences++; silences == pingAfter && l.pubsub.Ping(l.owner.ctx) != nil {
				return
			}
		case isReply(err):
			if !l.refuseOldest(err) {
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

// handleChange handles the message s, which reports the start or the end of a subscription. The
// result is false when go-redis has connected again by itself, because messages may have been lost
// meanwhile.
func (l *line) handleChange(s *redis.Subscription) bool {
	if s.Kind == "ssubscribe" || s.Kind == "subscribe" {
		p, ok := l.takePending(s.Channel)
		if !ok {
			return false
		}
		l.owner.mu.Lock()
		p.shard.line, p.shard.liveSince = l, time.Now()
		l.owner.mu.Unlock()
		l.live[p.name] = p.shard
		p.answer <- nil
		return true
	}
	sh := l.live[s.Channel]
	delete(l.live, s.Channel)
	if sh != nil { // the server ended the subscription, because the slot has moved
		l.owner.sites.reload(l.owner.ctx)
		l.owner.work.Go(func() { l.owner.restore([]*shard{sh}) })
	}
	return true
}

// takePending removes the oldest subscription without an answer from the list pending, and returns
// it. If this subscription is for another channel, takePending removes nothing and returns false.
// The channel "" stands for any channel.
func (l *line) takePending(channel string) (pending, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 || channel != "" && l.pending[0].name != channel {
		return pending{}, false
	}
	p := l.pending[0]
	l.pending = l.pending[1:]
	return p, true
}

// refuseOldest gives err to the oldest subscription without an answer. The result is false when
// no subscription waits for an answer, because the error then concerns the whole connection.
func (l *line) refuseOldest(err error) bool {
	p, ok := l.takePending("")
	if !ok {
		return false
	}
	p.answer <- err
	l.closeUnused()
	return true
}

// overdue reports whether a subscription has waited far too long for its answer.
func (l *line) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) > 0 && time.Since(l.pending[0].sentAt) >= silentFor
}

// sweep unsubscribes channels that are not used any more. A line without channels is closed, so
// that it sends no pings.
func (l *line) sweep() {
	if time.Since(l.sweptAt) < l.owner.unusedLimit/2 {
		return
	}
	l.sweptAt = time.Now()
	var names []string
	l.owner.mu.Lock()
	for name, sh := range l.live {
		if l.owner.unused(sh) {
			sh.line = nil
			delete(l.owner.slots, sh.slot)
			delete(l.live, name)
			names = append(names, name)
		}
	}
	l.owner.mu.Unlock()
	l.closeUnused()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if l.closed {
			return
		}
		var err error
		if isSharded(name) {
			err = l.pubsub.SUnsubscribe(l.owner.ctx, name)
		} else {
			err = l.pubsub.Unsubscribe(l.owner.ctx, name)
		}
		if err != nil {
			l.hangUp(err)
		}
	}
}

// closeUnused closes the line if it has no channel.
func (l *line) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 && len(l.live) == 0 {
		l.hangUp(errLineUnused)
	}
}

func timedOut(err error) bool {
	network, ok := errors.AsType[net.Error](err)
	return ok && network.Timeout()
}

// close ends the line. The goroutine that reads then subscribes the line's channels again, on
// new connections.
func (l *line) close() { l.fail(errLineLost) }

func (l *line) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangUp(err)
}

// hangUp closes the connection, and gives err to the pending subscriptions as their answer. The
// caller holds l.mu.
func (l *line) hangUp(err error) {
	if l.closed {
		return
	}
	l.closed, l.cause = true, err
	l.ended.Store(true)
	_ = l.pubsub.Close()
	for _, p := range l.pending {
		p.answer <- err
	}
	l.pending = nil
}
