package redisstore_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// post is a Notifier with the events that it has reported.
type post struct {
	*testing.T
	store.Notifier
	events chan store.Event
	stop   func()
}

func (p *post) open() string {
	p.Helper()
	name, err := p.Open(p.Context(), "any")
	if err != nil || name == "" || p.Inbox("any") != name {
		p.Fatalf("open: %q %v, and the inbox is %q", name, err, p.Inbox("any"))
	}
	return name
}

func (p *post) next() store.Event {
	p.Helper()
	select {
	case e := <-p.events:
		return e
	case <-time.After(20 * time.Second):
		p.Fatal("nothing was told")
		return store.Event{}
	}
}

func (p *post) wantReopened() {
	p.Helper()
	if e := p.next(); e.Kind != store.EventReopened || e.Key != "" {
		p.Fatalf("event %+v, want EventReopened", e)
	}
}

// wantReceives publishes a message, and checks that the next event is the event of this message.
func (p *post) wantReceives(c *redis.Client, name string) {
	p.Helper()
	if n := c.Publish(p.Context(), name, "head 1500 TOKEN the key").Val(); n != 1 {
		p.Fatalf("%d listen at %s", n, name)
	}
	want := store.Event{Kind: store.EventHead, Key: "the key", Owner: "TOKEN", HandoffTTL: 1500 * time.Millisecond}
	if e := p.next(); e != want {
		p.Fatalf("event %#v, want %#v", e, want)
	}
}

func newPost(t *testing.T, c locker.Client) *post {
	t.Helper()
	n := store.CapabilitiesOf(locktest.SingleStore(c)).Notifier
	if n == nil {
		t.Fatalf("the Store of a %T has no Notifier", c)
	}
	p := &post{t, n, make(chan store.Event, 100), nil}
	p.stop = n.Listen(func(e store.Event) { p.events <- e })
	t.Cleanup(p.stop)
	return p
}

// subscribers returns the addresses of the connections that subscribe.
func subscribers(t *testing.T, c *redis.Client) (addrs []string) {
	t.Helper()
	list, err := c.Do(t.Context(), "client", "list", "type", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		_, addr, _ := strings.Cut(line, " addr=")
		addr, _, _ = strings.Cut(addr, " ")
		addrs = append(addrs, addr)
	}
	return addrs
}

func TestAnInboxHearsOfItsTurns(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	p := newPost(t, l.server)
	if p.Inbox(l.key) != "" {
		t.Fatal("it names an inbox where no process listens yet")
	}
	name := p.open()
	holder := l.newHolder()
	c := l.newWaiter(name)
	for _, text := range malformed {
		l.server.Publish(t.Context(), name, text)
	}
	l.release(holder, store.Released)
	e := p.next()
	if e.Kind != store.EventGranted || e.Owner != c.Owner || e.Key != l.key || e.HandoffTTL != handedTTL {
		t.Fatalf("told %#v", e)
	}
	p.wantReceives(l.server, name)
}

var malformed = []string{
	"", " ", "granted", "granted ", "head", "done", "done T", "done T ", "head 5 T", "head x T L", "head 0 T L", "head -5 T L",
	"granted 1 2 3 4 T", "granted 0 2 3 4 T L", "granted 1 -2 3 4 T L", "granted 1 2 0 4 T L", "granted 1 2 3 0 T L",
	"granted 1 2 3 4  L", "granted 99999999999999999999 2 3 4 T L", "free", "free ", "Granted 1 2 3 4 T L", "\xff\x00",
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for _, text := range malformed {
		if e, ok := redisstore.ParseEvent(text); ok {
			t.Errorf("%q is read as %#v", text, e)
		}
	}
	for text, want := range map[string]store.Event{
		"granted 7 8 9 10 T a key: of 3 words": {
			Kind: store.EventGranted, At: time.UnixMicro(7), Fence: 8, FenceCount: 9, HandoffTTL: 10 * time.Millisecond, Owner: "T", Key: "a key: of 3 words",
		},
		"head 10 T k": {Kind: store.EventHead, HandoffTTL: 10 * time.Millisecond, Owner: "T", Key: "k"},
		"done T k":    {Kind: store.EventDone, Owner: "T", Key: "k"},
		"free a key":  {Kind: store.EventFree, Key: "a key"},
	} {
		if e, ok := redisstore.ParseEvent(text); !ok || e != want {
			t.Errorf("%q is read as %#v", text, e)
		}
	}
}

func TestResetSubscribesOnAnotherConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	p := newPost(t, client)
	p.Reset("") // without a subscription, Reset does nothing
	name := p.open()
	p.Reset("another inbox")
	p.wantReceives(client, name)
	before := subscribers(t, client)
	p.Reset(name)
	p.Reset(name) // as if another goroutine had detected the same loss
	p.wantReopened()
	p.wantReceives(client, name)
	eventually(t, "the old connection is gone", func() bool { return len(subscribers(t, client)) == 1 })
	if after := subscribers(t, client); after[0] == before[0] {
		t.Fatalf("it is still on %v", after)
	}
}

func TestOneSubscriptionServesAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	p := newPost(t, client)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, err := p.Open(t.Context(), fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(subscribers(t, client)); n != 1 {
		t.Fatalf("%d subscriptions", n)
	}
}

// The user may not even unsubscribe. A waiter that comes later gets its messages as the first did.
func TestASubscriptionThatNobodyNeedsEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	if err := client.Do(t.Context(), "acl", "setuser", "default", "-unsubscribe").Err(); err != nil {
		t.Fatal(err)
	}
	backend := locktest.SingleStore(client)
	redisstore.DelayLeaving(backend, 500*time.Millisecond)
	n := store.CapabilitiesOf(backend).Notifier
	p := &post{t, n, make(chan store.Event, 100), nil}
	t.Cleanup(n.Listen(func(e store.Event) { p.events <- e }))
	for range 2 {
		name := p.open()
		p.wantReceives(client, name)
		eventually(t, "no connection subscribes", func() bool { return len(subscribers(t, client)) == 0 })
		if p.Inbox("any") != "" || len(p.events) > 0 {
			t.Errorf("the inbox is %q, and %d events came", p.Inbox("any"), len(p.events))
		}
	}
}

// Waiters come at the moment at which the subscription ends, again and again. Each gets one.
func TestASubscriptionThatEndsIsOpenedForWhoeverNeedsIt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	backend := locktest.SingleStore(client)
	redisstore.DelayLeaving(backend, time.Microsecond)
	n := store.CapabilitiesOf(backend).Notifier
	t.Cleanup(n.Listen(func(store.Event) {}))
	first, err := n.Open(t.Context(), "any")
	if err != nil {
		t.Fatal(err)
	}
	var ended atomic.Int32
	var waiters sync.WaitGroup
	for range 8 {
		waiters.Go(func() {
			for range 1000 {
				client.Publish(t.Context(), first, "free any") // with a message, the line looks for unused channels
				if n.Inbox("any") == "" {
					ended.Add(1)
				}
				if name, err := n.Open(t.Context(), "any"); err != nil || name != first {
					t.Errorf("%q %v", name, err)
				}
			}
		})
	}
	waiters.Wait()
	if ended.Load() == 0 {
		t.Error("positive control: the subscription has never ended")
	}
}

// This test is not parallel, because it checks all goroutines of the process.
func TestStopLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	here := func() bool {
		all := make([]byte, 1<<20)
		return strings.Contains(string(all[:runtime.Stack(all, true)]), "redisstore.(*line).run")
	}
	for _, meanwhile := range []func(p *post){
		func(*post) {}, // no channel is ever opened
		func(p *post) { p.open() },
		func(p *post) { p.open(); p.Reset(p.open()) },
		func(p *post) { p.open(); client.ClientKillByFilter(t.Context(), "type", "pubsub") },
	} {
		p := newPost(t, client)
		meanwhile(p)
		p.stop()
		if here() {
			t.Error("the goroutine is still there")
		}
		if name, err := p.Open(t.Context(), "any"); name != "" || !errors.Is(err, locker.ErrClosed) {
			t.Errorf("open after stop: %q %v", name, err)
		}
		eventually(t, "the subscription is gone", func() bool {
			return len(client.PubSubChannels(t.Context(), "*").Val()) == 0 && len(subscribers(t, client)) == 0
		})
	}
	p := newPost(t, client)
	p.open()
	if !here() {
		t.Error("positive control: the goroutine cannot be seen")
	}
	server.Kill()
	p.stop() // the post stops between two attempts to subscribe
	if here() {
		t.Error("the goroutine is still there")
	}
}

func TestAClientThatCannotSubscribeMakesNoNotifier(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	backend := locktest.SingleStore(struct{ locker.Client }{client})
	if store.CapabilitiesOf(backend).Notifier != nil {
		t.Fatal("it has an inbox")
	}
	l := sharedLine(t)
	l.store = backend
	holder := l.newHolder()
	waiter := l.newWaiter("")
	l.release(holder, store.Released)
	l.wantHolder(waiter)
}
