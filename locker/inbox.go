package locker

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// inbox is how an Engine on one server hears of its turns: one channel, whatever the number of keys, on one connection,
// and one goroutine that reads it. Both exist from the first Open to the stop of Listen.
//
// It reads the connection itself: go-redis' Channel would put a buffer between, that is slower and drops what is too much.
// A subscription that breaks, falls silent or is taken away is not mended but replaced, so that there is one way back, and
// one place where EventReopened is told.
type inbox struct {
	client  subscriber
	channel string
	tell    func(Event)
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

// subscriber is a Client that can subscribe: a *redis.Client is one.
type subscriber interface {
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
var betweenSubscriptions = Jitter(Exponential(10*time.Millisecond, 500*time.Millisecond))

// listening is the Store of one server whose client can subscribe, and so a Notifier.
type listening struct {
	single
	*inbox
}

var _ interface {
	Notifier
	Several
} = listening{}

// AcquireAll runs acquire_all.lua: on one server any keys go together.
func (s listening) AcquireAll(ctx context.Context, cs []Claim) ([]Grant, error) {
	return s.acquireAll(ctx, cs)
}

func newInbox(s subscriber) *inbox {
	b := &inbox{client: s, channel: inboxChannel + rand.Text(), tell: func(Event) {}}
	b.ctx, b.cut = context.WithCancel(context.Background())
	return b
}

// Listen makes tell hear of every event, from the goroutine that reads. stop waits for that; while it connects to a server
// that hangs this may take the 5 s after which go-redis gives up.
func (b *inbox) Listen(tell func(Event)) (stop func()) {
	b.tell = tell
	return b.stop
}

// stop ends the subscription, and the goroutine that reads it.
func (b *inbox) stop() {
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
func (b *inbox) Inbox(string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.live {
		return ""
	}
	return b.channel
}

func (b *inbox) name(string) string { return b.channel }

// Open waits for the subscription that is under way, and starts one if there never was any. During the pause after one that
// failed it says why at once.
func (b *inbox) Open(ctx context.Context, _ string) (string, error) {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return "", &Refusal{Err: ErrClosed}
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
		return "", refusal(a.err)
	}
	return b.channel, nil
}

// Reset closes the connection; the goroutine subscribes on another one.
func (b *inbox) Reset(name string) {
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
func (b *inbox) run() {
	for first := true; ; {
		for pause := range betweenSubscriptions {
			pubsub, err := b.subscribe()
			if again := b.subscribed(pubsub, err, first); !again {
				return
			}
			if err == nil {
				if !first {
					b.tell(Event{Kind: EventReopened})
				}
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
func (b *inbox) subscribe() (*redis.PubSub, error) {
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
		return pubsub, odd("subscribe")
	}
	return pubsub, nil
}

// subscribed tells all calls of Open how the subscription went, and says whether to go on.
func (b *inbox) subscribed(pubsub *redis.PubSub, err error, first bool) (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		err = ErrClosed
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
	if no, ok := errors.AsType[*Refusal](refusal(err)); ok && !no.Temporary {
		b.refused, b.asked = no, time.Now()
	}
	return b.running
}

// read passes on what the server says, until the subscription is lost.
func (b *inbox) read(pubsub *redis.PubSub) {
	asked := false
	for {
		said, err := pubsub.ReceiveTimeout(b.ctx, silentFor)
		switch {
		case err == nil:
			asked = false
			switch said := said.(type) {
			case *redis.Message:
				if e, ok := eventOf(said.Payload); ok {
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
	network, ok := errors.AsType[net.Error](err)
	return ok && network.Timeout()
}

// lost drops a subscription.
func (b *inbox) lost(pubsub *redis.PubSub) {
	b.mu.Lock()
	b.live, b.pubsub = false, nil
	b.trying = &attempt{over: make(chan struct{})}
	b.mu.Unlock()
	pubsub.Close()
}

// tryAgain begins another attempt after one that failed.
func (b *inbox) tryAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.trying.over:
		b.trying = &attempt{over: make(chan struct{})}
	default: // lost has
	}
}

// eventOf reads a message. The key comes last, because it may contain spaces:
//
//	granted server-µs fence block hand-ms token L
//	admitted server-µs fence writers hand-ms token L
//	writer token L
//	head hand-ms token L
//	done token L
//	free L
//
// What does not look so was sent by somebody else.
func eventOf(text string) (e Event, ok bool) {
	r := reply{rest: text}
	switch r.word() {
	case "granted":
		at, fence := r.integer(), r.integer()
		e = Event{Kind: EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), Block: int(r.integer()), Hand: r.duration()}
		ok = at > 0 && fence > 0 && e.Block > 0 && e.Hand > 0
	case "admitted":
		at, fence := r.integer(), r.integer()
		e = Event{Kind: EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), Block: 1, Writer: r.integer() > 0, Hand: r.duration()}
		ok = at > 0 && fence > 0 && e.Hand > 0
	case "writer":
		e, ok = Event{Kind: EventWriter}, true
	case "head":
		e = Event{Kind: EventHead, Hand: r.duration()}
		ok = e.Hand > 0
	case "done":
		e, ok = Event{Kind: EventDone}, true
	case "free":
		return Event{Kind: EventFree, Key: r.rest}, r.rest != ""
	}
	e.Owner, e.Key = r.word(), r.rest
	return e, ok && e.Owner != "" && e.Key != ""
}
