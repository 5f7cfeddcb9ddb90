package redisstore

import (
	"context"
	"crypto/rand"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// Subscription is how an Engine on one server hears of its turns: one channel, whatever the number of keys, on one connection,
// and one goroutine that reads it. Both exist from the first Open to the stop of Listen.
//
// It reads the connection itself: go-redis' Channel would put a buffer between, that is slower and drops what is too much.
// A subscription that breaks, falls silent or is taken away is not mended but replaced, so that there is one way back, and
// one place where store.EventReopened is told.
type Subscription struct {
	client  Subscriber
	channel string
	tell    func(store.Event)
	ctx     context.Context // of the goroutine
	cut     context.CancelFunc
	reader  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	running bool          // the goroutine exists
	pubsub  *redis.PubSub // what it reads, for Reset and stop to close
	live    bool          // the server has confirmed it
	trying  *attempt      // the subscription that is under way, or the last that was
	refused error         // this user may not subscribe
	asked   time.Time     // when the server said so
}

// Subscriber is a Client that can subscribe: a *redis.Client is one.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// attempt is one subscription, which all calls of Open wait for together.
type attempt struct {
	over chan struct{} // closed when it is known how it ended
	err  error
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

// listening is the Store of one server whose client can subscribe, and so a Notifier.
type listening struct {
	Single
	*Subscription
}

var _ interface {
	store.Notifier
	store.BatchAcquirer
} = listening{}

// AcquireAll runs acquire_all.lua: on one server any keys go together.
func (s listening) AcquireAll(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	return s.acquireAll(ctx, cs)
}

// NewChannel is a name that no other inbox has.
func NewChannel() string { return inboxPrefix + rand.Text() }

// NewSubscription is an inbox on a channel of that name.
func NewSubscription(s Subscriber, channel string) *Subscription {
	b := &Subscription{client: s, channel: channel, tell: func(store.Event) {}}
	b.ctx, b.cut = context.WithCancel(context.Background())
	return b
}

// Listen makes tell hear of every event, from the goroutine that reads. stop waits for that; while it connects to a server
// that hangs this may take the 5 s after which go-redis gives up.
func (b *Subscription) Listen(tell func(store.Event)) (stop func()) {
	b.tell = tell
	return b.stop
}

// stop ends the subscription, and the goroutine that reads it.
func (b *Subscription) stop() {
	b.mu.Lock()
	b.stopped = true
	pubsub := b.pubsub
	b.mu.Unlock()
	b.cut()
	if pubsub != nil {
		pubsub.Close() // ends the read
	}
	b.reader.Wait()
}

// Inbox is the same channel for every key.
func (b *Subscription) Inbox(string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.live {
		return ""
	}
	return b.channel
}

// Address is the channel, also while the server has not confirmed it.
func (b *Subscription) Address(string) string { return b.channel }

// Open waits for the subscription that is under way, and starts one if there never was any. During the pause after one that
// failed it says why at once.
func (b *Subscription) Open(ctx context.Context, _ string) (string, error) {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return "", &store.Refusal{Err: store.ErrClosed}
	}
	if !b.running && b.refused != nil && time.Since(b.asked) < askAgainAfter {
		b.mu.Unlock()
		return "", b.refused
	}
	if !b.running {
		b.running = true
		b.trying = &attempt{over: make(chan struct{})}
		b.reader.Go(b.run)
	}
	a := b.trying
	b.mu.Unlock()
	select {
	case <-a.over:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if a.err != nil {
		return "", Refused(a.err)
	}
	return b.channel, nil
}

// Reset closes the connection; the goroutine subscribes on another one.
func (b *Subscription) Reset(name string) {
	b.mu.Lock()
	if name != b.channel || !b.live { // being replaced already
		b.mu.Unlock()
		return
	}
	b.live = false
	pubsub := b.pubsub
	b.mu.Unlock()
	pubsub.Close()
}

// run keeps a subscription alive until stop. If even the first cannot be had it ends, and the next Open tries again.
func (b *Subscription) run() {
	missed := false // the waiters know that there is no subscription
	for first := true; ; {
		for pause := range betweenSubscriptions {
			pubsub, err := b.subscribe()
			if again := b.subscribed(pubsub, err, first); !again {
				return
			}
			if !first && (err == nil || !missed) { // also without a new subscription: the waiters must poll meanwhile
				b.tell(store.Event{Kind: store.EventReopened})
			}
			missed = err != nil
			if err == nil {
				first = false
				since := time.Now()
				b.read(pubsub)
				b.lost(pubsub)
				if time.Since(since) > steadyAfter {
					break // the pauses begin anew, with the next failure
				}
			}
			select {
			case <-time.After(pause):
			case <-b.ctx.Done():
			}
			b.tryAgain()
		}
	}
}

// subscribe opens a connection, and waits until the server has confirmed the subscription.
func (b *Subscription) subscribe() (*redis.PubSub, error) {
	ctx, cancel := context.WithTimeout(b.ctx, silentFor)
	defer cancel()
	pubsub := b.client.Subscribe(ctx, b.channel)
	b.mu.Lock()
	b.pubsub = pubsub
	if b.stopped { // too soon for stop to have closed it
		pubsub.Close()
	}
	b.mu.Unlock()
	answer, err := pubsub.ReceiveTimeout(ctx, silentFor)
	if err != nil {
		return pubsub, err
	}
	if s, ok := answer.(*redis.Subscription); !ok || s.Kind != "subscribe" || s.Channel != b.channel {
		return pubsub, Unreadable("subscribe")
	}
	return pubsub, nil
}

// subscribed tells all calls of Open how the subscription went, and says whether to go on.
func (b *Subscription) subscribed(pubsub *redis.PubSub, err error, first bool) (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		err = store.ErrClosed
	}
	b.trying.err = err
	close(b.trying.over)
	if err == nil {
		b.live = true
		return true
	}
	pubsub.Close()
	b.pubsub = nil
	b.running = !first && !b.stopped
	b.refused = nil
	if no, ok := errtype.As[*store.Refusal](Refused(err)); ok && !no.Temporary {
		b.refused, b.asked = no, time.Now()
	}
	return b.running
}

// read passes on what the server says, until the subscription is lost.
func (b *Subscription) read(pubsub *redis.PubSub) {
	asked := false
	for {
		said, err := pubsub.ReceiveTimeout(b.ctx, silentFor)
		switch {
		case err == nil:
			asked = false
			switch said := said.(type) {
			case *redis.Message:
				if e, ok := ParseEvent(said.Payload); ok {
					b.tell(e)
				}
			case *redis.Subscription:
				return // taken away, or go-redis has connected again by itself: something may be lost
			}
		case timedOut(err) && !asked:
			asked = true
			if pubsub.Ping(b.ctx) != nil {
				return
			}
		default:
			return
		}
	}
}

func timedOut(err error) bool {
	network, ok := errtype.As[net.Error](err)
	return ok && network.Timeout()
}

// lost drops a subscription.
func (b *Subscription) lost(pubsub *redis.PubSub) {
	b.mu.Lock()
	b.live, b.pubsub = false, nil
	b.trying = &attempt{over: make(chan struct{})}
	b.mu.Unlock()
	pubsub.Close()
}

// tryAgain begins another attempt after one that failed.
func (b *Subscription) tryAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.trying.over:
		b.trying = &attempt{over: make(chan struct{})}
	default: // lost has
	}
}

// ParseEvent reads a message. The key comes last, because it may contain spaces:
//
//	granted server-µs fence block hand-ms token L
//	admitted server-µs fence writers hand-ms token L
//	writer token L
//	head hand-ms token L
//	done token L
//	free L
//
// What does not look so was sent by somebody else.
func ParseEvent(text string) (e store.Event, ok bool) {
	r := Reply{Rest: text}
	switch r.Word() {
	case "granted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: int(r.Integer()), HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.FenceCount > 0 && e.HandoffTTL > 0
	case "admitted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: 1, Writer: r.Integer() > 0, HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.HandoffTTL > 0
	case "writer":
		e, ok = store.Event{Kind: store.EventWriter}, true
	case "head":
		e = store.Event{Kind: store.EventHead, HandoffTTL: r.Duration()}
		ok = e.HandoffTTL > 0
	case "done":
		e, ok = store.Event{Kind: store.EventDone}, true
	case "free":
		return store.Event{Kind: store.EventFree, Key: r.Rest}, r.Rest != ""
	}
	e.Owner, e.Key = r.Word(), r.Rest
	return e, ok && e.Owner != "" && e.Key != ""
}
