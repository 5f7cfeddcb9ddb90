package locker_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// line is a key, the Store, and a server to look behind it.
type line struct {
	*testing.T
	server *redis.Client
	store  locker.Store
	key    string
}

func newLine(t *testing.T, server *redistest.Server) *line {
	t.Helper()
	client := server.Client(t)
	return &line{t, client, locker.SingleStore(client), "line: of " + rand.Text()} // a key may contain spaces
}

// shared is a line on the server of all tests.
func sharedLine(t *testing.T) *line {
	t.Helper()
	return newLine(t, redistest.Shared(t))
}

// handed is how long a lease that was handed over lives, where its end does not matter.
const handed = 20 * time.Second

// claim is one that queues, at this inbox.
func (l *line) claim(inbox string) locker.Claim {
	return locker.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, Block: 1, Queue: true, Inbox: inbox, Hand: handed}
}

func (l *line) acquire(c locker.Claim, want locker.State) locker.Grant {
	l.Helper()
	g, err := l.store.Acquire(l.Context(), c)
	if err != nil || g.State != want {
		l.Fatalf("acquire: %v %+v %v, want %v", g.State, g, err, want)
	}
	return g
}

func (l *line) release(c locker.Claim, want locker.State) locker.Grant {
	l.Helper()
	g, err := l.store.Release(l.Context(), c)
	if err != nil || g.State != want {
		l.Fatalf("release: %v %+v %v, want %v", g.State, g, err, want)
	}
	return g
}

func (l *line) renew(c locker.Claim, want locker.State) {
	l.Helper()
	gs, err := l.store.Renew(l.Context(), []locker.Claim{c})
	if err != nil || len(gs) != 1 || gs[0].State != want {
		l.Fatalf("renew: %+v %v, want %v", gs, err, want)
	}
}

// held makes somebody hold the key who does not queue.
func (l *line) held() locker.Claim {
	l.Helper()
	c := locker.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, Block: 1}
	l.acquire(c, locker.Granted)
	return c
}

// waits makes a claim wait.
func (l *line) waits(inbox string) locker.Claim {
	l.Helper()
	c := l.claim(inbox)
	l.acquire(c, locker.Busy)
	return c
}

// holder is the token that holds the key, "" when nobody does.
func (l *line) holder() string {
	l.Helper()
	text, err := l.server.Get(l.Context(), l.key).Result()
	if err != nil && err != redis.Nil {
		l.Fatal(err)
	}
	token, _, _ := strings.Cut(text, ":")
	return token
}

func (l *line) wantHolder(c locker.Claim) {
	l.Helper()
	if got := l.holder(); got != c.Owner {
		l.Fatalf("%q holds the key, want %q", got, c.Owner)
	}
}

// queued are the tokens in the queue, with a '-' in front where the key was handed over.
func (l *line) queued() (tokens []string) {
	l.Helper()
	for _, z := range l.server.ZRangeWithScores(l.Context(), locker.QueueOf(l.key), 0, -1).Val() {
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
	if got := l.queued(); fmt.Sprint(got) != fmt.Sprint(want) {
		l.Fatalf("the queue is %v, want %v", got, want)
	}
}

// age makes everybody in the queue have waited longer, by d.
func (l *line) age(d time.Duration) {
	l.Helper()
	q := locker.QueueOf(l.key)
	for _, z := range l.server.ZRangeWithScores(l.Context(), q, 0, -1).Val() {
		if err := l.server.ZAdd(l.Context(), q, redis.Z{Score: z.Score - float64(d.Microseconds()), Member: z.Member}).Err(); err != nil {
			l.Fatal(err)
		}
	}
}

// ear is a process that listens.
type ear struct {
	*testing.T
	name  string
	sub   *redis.PubSub
	heard []string
}

func (l *line) listen() *ear {
	l.Helper()
	e := &ear{T: l.T, name: "latchkit:i:" + rand.Text()}
	e.sub = l.server.Subscribe(l.Context(), e.name)
	l.Cleanup(func() { e.sub.Close() })
	if _, err := e.sub.Receive(l.Context()); err != nil {
		l.Fatal(err)
	}
	return e
}

// next is the next message, "" when there is none.
func (e *ear) next() string {
	e.Helper()
	// What was published before the ping comes before its answer: no sleep is needed to hear that nothing came.
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
			e.heard = append(e.heard, v.Payload)
		case *redis.Pong:
			answered = true
		}
	}
	if len(e.heard) == 0 {
		return ""
	}
	first := e.heard[0]
	e.heard = e.heard[1:]
	return first
}

func (e *ear) wantSilence() {
	e.Helper()
	if got := e.next(); got != "" {
		e.Fatalf("%s was told %q", e.name, got)
	}
}

func (e *ear) wantGranted(c locker.Claim) locker.Event {
	e.Helper()
	got := e.next()
	event, ok := locker.EventOf(got)
	if !ok || event.Kind != locker.EventGranted || event.Owner != c.Owner || event.Key != c.Key {
		e.Fatalf("told %q, want the grant of %s", got, c.Owner)
	}
	return event
}

func TestTheQueueIsServedInOrder(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	var ears []*ear
	var claims []locker.Claim
	for i := range 5 {
		ears = append(ears, l.listen())
		claims = append(claims, l.claim(ears[i].name))
		if g := l.acquire(claims[i], locker.Busy); g.Place != i+1 || g.Deaf || g.At.IsZero() || g.Holder.Left <= 0 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	for i, c := range claims { // a repetition keeps the place
		if g := l.acquire(c, locker.Busy); g.Place != i+1 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	var last uint64
	for i, c := range claims {
		before := time.Now()
		l.release(holder, locker.Released)
		l.wantHolder(c)
		e := ears[i].wantGranted(c)
		text := l.server.Get(t.Context(), l.key).Val()
		if text != fmt.Sprintf("%s:%d:%d", c.Owner, e.Fence, e.Block) || e.Fence <= last || e.Block != 1 || e.Hand != handed {
			t.Fatalf("told %+v, and the lease is %q", e, text)
		}
		if e.At.Before(before.Add(-time.Second)) || e.At.After(time.Now().Add(time.Second)) {
			t.Fatalf("granted at %v, now it is %v", e.At, before)
		}
		if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handed/2 || left > handed {
			t.Fatalf("the lease lives for %v, want %v", left, handed)
		}
		last, holder = e.Fence, c
	}
	l.release(holder, locker.Released)
	if l.holder() != "" || len(l.queued()) != 0 {
		t.Fatalf("%s holds the key, %v wait", l.holder(), l.queued())
	}
}

func TestNobodyOvertakesTheQueue(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	ear := l.listen()
	first := l.waits(ear.name)
	if g := l.acquire(locker.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, locker.Busy); g.Place != 2 {
		t.Fatalf("who does not queue would have place %d, want 2", g.Place)
	}
	l.server.Del(t.Context(), l.key) // run out
	g := l.acquire(locker.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, locker.Busy)
	if g.Place != 1 || g.Holder.Fence == 0 || g.Holder.Left > handed {
		t.Fatalf("%+v, want the first waiter as the holder", g)
	}
	l.wantHolder(first)
	ear.wantGranted(first)
	l.release(first, locker.Released)
	l.release(holder, locker.NotOurs)

	l.held()
	first = l.waits(ear.name)
	l.server.Del(t.Context(), l.key)
	second := l.claim("")
	if g := l.acquire(second, locker.Busy); g.Place != 1 || g.Deaf {
		t.Fatalf("%+v", g)
	}
	l.wantHolder(first)
	l.wantQueued("-"+first.Owner, second.Owner)
	ear.wantGranted(first)
	l.release(first, locker.Released)
	l.wantHolder(second)
	l.release(second, locker.Released)
	l.wantQueued()
}
