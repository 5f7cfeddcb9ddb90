package redisstore_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
)

// line has a key, a Store, and a client with which a test reads the server's data.
type line struct {
	*testing.T
	server *redis.Client
	store  store.Store
	key    string
}

// claim returns a new claim that queues with the given inbox.
func (l *line) claim(inbox string) store.Claim {
	return store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1, Queue: true, Inbox: inbox, HandoffTTL: handedTTL}
}

func (l *line) acquire(c store.Claim, want store.State) store.Grant {
	l.Helper()
	g, err := l.store.Acquire(l.Context(), c)
	if err != nil || g.State != want {
		l.Fatalf("acquire: %v %+v %v, want %v", g.State, g, err, want)
	}
	return g
}

func (l *line) release(c store.Claim, want store.State) store.Grant {
	l.Helper()
	g, err := l.store.Release(l.Context(), c)
	if err != nil || g.State != want {
		l.Fatalf("release: %v %+v %v, want %v", g.State, g, err, want)
	}
	return g
}

func (l *line) renew(c store.Claim, want store.State) {
	l.Helper()
	gs, err := l.store.Renew(l.Context(), []store.Claim{c})
	if err != nil || len(gs) != 1 || gs[0].State != want {
		l.Fatalf("renew: %+v %v, want %v", gs, err, want)
	}
}

// newHolder acquires the key for a new owner, without an entry in the queue, and returns its claim.
func (l *line) newHolder() store.Claim {
	l.Helper()
	c := store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
	l.acquire(c, store.Granted)
	return c
}

// newWaiter makes a new claim with the given inbox wait for the key, and returns the claim.
func (l *line) newWaiter(inbox string) store.Claim {
	l.Helper()
	c := l.claim(inbox)
	l.acquire(c, store.Busy)
	return c
}

// holder returns the token that holds the key, or "" if the key is free.
func (l *line) holder() string {
	l.Helper()
	text, err := l.server.Get(l.Context(), l.key).Result()
	if err != nil && err != redis.Nil {
		l.Fatal(err)
	}
	token, _, _ := strings.Cut(text, ":")
	return token
}

func (l *line) wantHolder(c store.Claim) {
	l.Helper()
	if got := l.holder(); got != c.Owner {
		l.Fatalf("%q holds the key, want %q", got, c.Owner)
	}
}

// queuedTokens returns the tokens in the queue. A '-' before a token means that it was handed the
// key.
func (l *line) queuedTokens() (tokens []string) {
	l.Helper()
	for _, z := range l.server.ZRangeWithScores(l.Context(), redisstore.QueueKey(l.key), 0, -1).Val() {
		token, _, _ := strings.Cut(z.Member.(string), "|")
		if z.Score < 0 {
			token = "-" + token
		}
		tokens = append(tokens, token)
	}
	return tokens
}

func (l *line) wantQueued(want ...string) {
	l.Helper()
	if got := l.queuedTokens(); fmt.Sprint(got) != fmt.Sprint(want) {
		l.Fatalf("the queue is %v, want %v", got, want)
	}
}

// ageQueue moves the ticket of each waiter into the past by d, as if the waiter had waited longer
// by d.
func (l *line) ageQueue(d time.Duration) {
	l.Helper()
	q := redisstore.QueueKey(l.key)
	for _, z := range l.server.ZRangeWithScores(l.Context(), q, 0, -1).Val() {
		if err := l.server.ZAdd(l.Context(), q, redis.Z{Score: z.Score - float64(d.Microseconds()), Member: z.Member}).Err(); err != nil {
			l.Fatal(err)
		}
	}
}

func (l *line) listen() *listener {
	l.Helper()
	e := &listener{T: l.T, name: "latchkit:i:" + rand.Text()}
	e.sub = l.server.Subscribe(l.Context(), e.name)
	l.Cleanup(func() { e.sub.Close() })
	if _, err := e.sub.Receive(l.Context()); err != nil {
		l.Fatal(err)
	}
	return e
}

func newLine(t *testing.T, server *redistest.Server) *line {
	t.Helper()
	client := server.Client(t)
	return &line{t, client, locktest.SingleStore(client), "line: of " + rand.Text()} // a key may contain spaces
}

// sharedLine makes a line on the server of all tests.
func sharedLine(t *testing.T) *line {
	t.Helper()
	return newLine(t, redistest.Shared(t))
}

// handedTTL is the TTL of a handed-over lease, for tests that do not depend on the lease's end.
const handedTTL = 20 * time.Second

// listener is a subscriber of an inbox, which acts as a waiting process.
type listener struct {
	*testing.T
	name     string
	sub      *redis.PubSub
	messages []string
}

// nextMessage returns the next message, or "" if there is none.
func (e *listener) nextMessage() string {
	e.Helper()
	// Messages that were sent before the ping come before its answer. So the test needs no sleep
	// to show that there was no message.
	if err := e.sub.Ping(e.Context()); err != nil {
		e.Fatal(err)
	}
	for answered := false; !answered; {
		v, err := e.sub.ReceiveTimeout(e.Context(), 10*time.Second)
		if err != nil {
			e.Fatal(err)
		}
		switch v := v.(type) {
		case *redis.Message:
			e.messages = append(e.messages, v.Payload)
		case *redis.Pong:
			answered = true
		}
	}
	if len(e.messages) == 0 {
		return ""
	}
	first := e.messages[0]
	e.messages = e.messages[1:]
	return first
}

func (e *listener) wantSilence() {
	e.Helper()
	if got := e.nextMessage(); got != "" {
		e.Fatalf("%s received %q", e.name, got)
	}
}

func (e *listener) wantGranted(c store.Claim) store.Event {
	e.Helper()
	got := e.nextMessage()
	event, ok := redisstore.ParseEvent(got)
	for ok && event.Kind == store.EventHead { // on a slow machine the waiter has waited for so long that it is also notified that it is the head
		got = e.nextMessage()
		event, ok = redisstore.ParseEvent(got)
	}
	if !ok || event.Kind != store.EventGranted || event.Owner != c.Owner || event.Key != c.Key {
		e.Fatalf("message %q, want the grant of %s", got, c.Owner)
	}
	return event
}

func (e *listener) wantGrantedOrNothing(granted bool, c store.Claim) {
	e.Helper()
	if granted {
		e.wantGranted(c)
	} else {
		e.wantSilence()
	}
}
