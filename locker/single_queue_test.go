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
	"github.com/latchkit/latchkit/locker/store"
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
func (l *line) claim(inbox string) store.Claim {
	return store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1, Queue: true, Inbox: inbox, HandoffTTL: handed}
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

// held makes somebody hold the key who does not queue.
func (l *line) held() store.Claim {
	l.Helper()
	c := store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
	l.acquire(c, store.Granted)
	return c
}

// waits makes a claim wait.
func (l *line) waits(inbox string) store.Claim {
	l.Helper()
	c := l.claim(inbox)
	l.acquire(c, store.Busy)
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

func (l *line) wantHolder(c store.Claim) {
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

func (e *ear) wantGranted(c store.Claim) store.Event {
	e.Helper()
	got := e.next()
	event, ok := locker.EventOf(got)
	for ok && event.Kind == store.EventHead { // on a slow machine it has waited for long
		got = e.next()
		event, ok = locker.EventOf(got)
	}
	if !ok || event.Kind != store.EventGranted || event.Owner != c.Owner || event.Key != c.Key {
		e.Fatalf("told %q, want the grant of %s", got, c.Owner)
	}
	return event
}

func TestTheQueueIsServedInOrder(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	var ears []*ear
	var claims []store.Claim
	for i := range 5 {
		ears = append(ears, l.listen())
		claims = append(claims, l.claim(ears[i].name))
		if g := l.acquire(claims[i], store.Busy); g.Place != i+1 || g.NotListening || g.At.IsZero() || g.Holder.Left <= 0 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	for i, c := range claims { // a repetition keeps the place
		if g := l.acquire(c, store.Busy); g.Place != i+1 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	var last uint64
	for i, c := range claims {
		before := time.Now()
		l.release(holder, store.Released)
		l.wantHolder(c)
		e := ears[i].wantGranted(c)
		text := l.server.Get(t.Context(), l.key).Val()
		if text != fmt.Sprintf("%s:%d:%d", c.Owner, e.Fence, e.FenceCount) || e.Fence <= last || e.FenceCount != 1 || e.HandoffTTL != handed {
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
	l.release(holder, store.Released)
	if l.holder() != "" || len(l.queued()) != 0 {
		t.Fatalf("%s holds the key, %v wait", l.holder(), l.queued())
	}
}

func TestTheOrderSurvivesAClockThatStepsBack(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	first := l.waits("")
	l.age(-time.Hour) // it came at a time that is still to come
	second, third := l.waits(""), l.waits("")
	l.wantQueued(first.Owner, second.Owner, third.Owner)
	l.release(holder, store.Released)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.release(second, store.Released)
	l.wantHolder(third)
	fourth := l.waits("") // behind one that was handed the key
	l.wantQueued("-"+third.Owner, fourth.Owner)
}

func TestNobodyOvertakesTheQueue(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	ear := l.listen()
	first := l.waits(ear.name)
	if g := l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy); g.Place != 2 {
		t.Fatalf("who does not queue would have place %d, want 2", g.Place)
	}
	l.server.Del(t.Context(), l.key) // run out
	g := l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
	if g.Place != 1 || g.Holder.Fence == 0 || g.Holder.Left > handed {
		t.Fatalf("%+v, want the first waiter as the holder", g)
	}
	l.wantHolder(first)
	ear.wantGranted(first)
	l.release(first, store.Released)
	l.release(holder, store.NotOurs)

	l.held()
	first = l.waits(ear.name)
	l.server.Del(t.Context(), l.key)
	second := l.claim("")
	if g := l.acquire(second, store.Busy); g.Place != 1 || g.NotListening {
		t.Fatalf("%+v", g)
	}
	l.wantHolder(first)
	l.wantQueued("-"+first.Owner, second.Owner)
	ear.wantGranted(first)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.release(second, store.Released)
	l.wantQueued()
}

func TestWhoQueuesAndFindsTheKeyFreeGetsIt(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	c := l.claim(ear.name)
	first := l.acquire(c, store.Granted)
	if again := l.acquire(c, store.Granted); again.Fence != first.Fence || again.FenceCount != first.FenceCount {
		t.Fatalf("fence %d became %d", first.Fence, again.Fence)
	}
	l.wantQueued()
	waiter := l.waits(ear.name)
	l.server.Del(t.Context(), l.key) // the holder has died, and the waiter asks again
	l.acquire(waiter, store.Granted)
	l.wantQueued()
	ear.wantSilence()
	if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handed {
		t.Fatalf("the lease lives for %v: it was not handed over, but taken", left)
	}
}

func TestTheDeadAreSkippedAtOnceWithAllTheirEntries(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	dead, ear := l.listen(), l.listen()
	holder := l.held()
	l.waits(dead.name)
	alive := l.waits(ear.name)
	l.waits(dead.name)
	poller := l.waits("")
	l.waits(dead.name)

	// Whoever listens to everything listens for nobody.
	monitor := l.server.PSubscribe(t.Context(), "*")
	defer monitor.Close()
	if _, err := monitor.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), dead.name).Val()[dead.name] == 0
	})

	l.release(holder, store.Released)
	l.wantHolder(alive)
	ear.wantGranted(alive)
	l.wantQueued("-"+alive.Owner, poller.Owner)

	// When all are dead, a newcomer is served.
	l.release(poller, store.NotOurs)
	ear.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), ear.name).Val()[ear.name] == 0
	})
	l.server.Del(t.Context(), l.key)
	l.held()
	l.wantQueued()
}

func TestWhoLetsAHandedKeyLapseLosesAllItsPlaces(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	stopped, ear := l.listen(), l.listen() // stopped: the server still counts its connection
	holder := l.held()
	first := l.waits(stopped.name)
	l.waits(stopped.name)
	next := l.waits(ear.name)
	l.waits(stopped.name)
	l.release(holder, store.Released)
	stopped.wantGranted(first)
	l.server.Del(t.Context(), l.key) // lapsed

	g := l.acquire(next, store.Granted) // it is the first that is left, and asks
	if g.Fence == 0 {
		t.Fatalf("%+v", g)
	}
	l.wantQueued()
	l.release(next, store.Released)

	// A stranger comes first: the next one is served all the same.
	holder = l.held()
	first = l.waits(stopped.name)
	next = l.waits(ear.name)
	mine := l.waits(stopped.name)
	l.release(holder, store.Released)
	stopped.wantGranted(first)
	l.server.Del(t.Context(), l.key)
	l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
	ear.wantGranted(next)
	l.wantQueued("-" + next.Owner)
	if g := l.acquire(mine, store.Busy); g.Place != 1 { // it lives after all: it queues again, behind
		t.Fatalf("%+v", g)
	}
	l.release(next, store.Released)
	stopped.wantGranted(mine)
}

func TestAPollerThatLetsAHandedKeyLapseLosesOnlyThatPlace(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	first, second := l.waits(""), l.waits("")
	l.release(holder, store.Released)
	l.wantHolder(first)
	l.server.Del(t.Context(), l.key)
	l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
	l.wantHolder(second)
	l.wantQueued("-" + second.Owner)
}

func TestASignOfLifeEndsTheHandOver(t *testing.T) {
	t.Parallel()
	for name, sign := range map[string]func(l *line, c store.Claim){
		"acquire": func(l *line, c store.Claim) { l.acquire(c, store.Granted) },
		"confirm": func(l *line, c store.Claim) { c.ByHandoff = true; l.renew(c, store.Granted) },
		"release": func(l *line, c store.Claim) { l.release(c, store.Released) },
		"keep":    func(l *line, c store.Claim) { c.KeepFor = time.Minute; l.release(c, store.Released) },
		"break": func(l *line, c store.Claim) {
			i, _ := l.store.(store.Inspector).Inspect(l.Context(), l.key)
			if g, err := l.store.(store.Revoker).Revoke(l.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
				l.Fatal(g, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sharedLine(t)
			ear := l.listen()
			holder := l.held()
			c := l.waits(ear.name)
			l.release(holder, store.Released)
			ear.wantGranted(c)
			l.wantQueued("-" + c.Owner)
			l.renew(c, store.Granted) // an ordinary renewal looks at no queue
			l.wantQueued("-" + c.Owner)
			other := l.claim(ear.name)
			if name != "release" && name != "break" {
				l.acquire(other, store.Busy)
				sign(l, c)
				l.wantQueued(other.Owner)
			} else {
				sign(l, c)
				l.wantQueued()
				l.held()
				l.acquire(other, store.Busy)
			}
			l.server.Del(t.Context(), l.key) // the lease runs out, but was confirmed: nobody is punished
			l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
			l.wantHolder(other)
		})
	}
}

func TestAConfirmationRenewsInABatch(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	var claims []store.Claim
	base := l.key
	for i := range 9 {
		l.key = fmt.Sprint(base, i)
		holder := l.held()
		c := holder
		switch i % 3 {
		case 0: // handed over
			c = l.waits(ear.name)
			l.release(holder, store.Released)
			ear.wantGranted(c)
			c.ByHandoff = true
		case 1: // somebody else's
			c.Owner, c.ByHandoff = rand.Text(), i > 4
		}
		c.TTL = time.Hour
		claims = append(claims, c)
	}
	l.server.Del(t.Context(), locker.QueueOf(claims[3].Key)) // a queue that is none must end nobody's renewal
	l.server.Set(t.Context(), locker.QueueOf(claims[3].Key), "data", 0)
	defer l.server.Del(t.Context(), locker.QueueOf(claims[3].Key))
	gs, err := l.store.Renew(t.Context(), claims)
	if err != nil || len(gs) != len(claims) {
		t.Fatal(gs, err)
	}
	for i, g := range gs {
		want := store.Granted
		if i%3 == 1 {
			want = store.NotOurs
		}
		if g.State != want || g.At.IsZero() {
			t.Errorf("claim %d: %+v, want %v", i, g, want)
		}
		l.key = claims[i].Key
		if left := l.server.PTTL(t.Context(), l.key).Val(); (left > 30*time.Minute) != (want == store.Granted) {
			t.Errorf("claim %d has %v left", i, left)
		}
		if i%3 == 0 && i != 3 {
			l.wantQueued()
		}
	}
}

// Whoever was handed the key may be stopped. The next process that has waited for long looks after it.
func TestTheNextProcessIsToldThatItIsTheHead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waited time.Duration
		fresh  bool // the next process and the one behind have not waited
		dead   bool // the next process
		told   string
	}{
		"after a short wait nobody":     {waited: 0},
		"after a long wait":             {waited: 600 * time.Millisecond, told: "next"},
		"only the winner's have waited": {waited: 600 * time.Millisecond, fresh: true},
		"the one behind, if it lives":   {waited: 600 * time.Millisecond, dead: true, told: "last"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sharedLine(t)
			ears := map[string]*ear{"winner": l.listen(), "next": l.listen(), "last": l.listen()}
			holder := l.held()
			first := l.waits(ears["winner"].name)
			for range 20 {
				l.waits(ears["winner"].name)
			}
			if c.fresh {
				l.age(time.Hour + c.waited)
			}
			l.waits("")
			claims := map[string]store.Claim{"next": l.waits(ears["next"].name), "last": l.waits(ears["last"].name)}
			if c.fresh || c.waited == 0 { // they come an hour from now, however long this machine takes
				l.age(-time.Hour)
			} else {
				l.age(c.waited)
			}
			if c.dead {
				ears["next"].sub.Close()
				eventually(t, "the server knows that it is dead", func() bool {
					return l.server.PubSubNumSub(t.Context(), ears["next"].name).Val()[ears["next"].name] == 0
				})
				delete(ears, "next")
			}
			l.release(holder, store.Released)
			ears["winner"].wantGranted(first)
			for name, ear := range ears {
				if name == c.told {
					want := fmt.Sprintf("head %d %s %s", handed.Milliseconds(), claims[name].Owner, l.key)
					if got := ear.next(); got != want {
						t.Errorf("%s was told %q, want %q", name, got, want)
					}
				}
				ear.wantSilence()
			}
		})
	}
}

func TestWhoGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.held()
	first, second, third := l.waits(ear.name), l.waits(ear.name), l.waits("")
	l.release(second, store.NotOurs)
	l.wantQueued(first.Owner, third.Owner)
	l.release(second, store.NotOurs)
	third.TombstoneTTL = time.Minute
	l.release(third, store.NotOurs)
	l.wantQueued(first.Owner)
	l.acquire(third, store.Undone) // a late execution
	l.wantQueued(first.Owner)

	// A grant that crosses the cancellation is handed on by it.
	fourth := l.waits(ear.name)
	l.release(holder, store.Released)
	ear.wantGranted(first)
	l.release(first, store.Released)
	ear.wantGranted(fourth)
	l.release(fourth, store.Released)
	if l.holder() != "" {
		t.Fatalf("%s holds the key", l.holder())
	}
	l.wantQueued()
}

// The key is free, and who was to find that out goes away.
func TestWhoGivesUpAFreeKeyHandsItOn(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.held()
	first, second, third := l.waits(ear.name), l.waits(ear.name), l.waits(ear.name)
	l.server.Del(t.Context(), l.key) // as if its time was over
	l.release(second, store.NotOurs)
	ear.wantGranted(first)
	l.release(first, store.Released)
	ear.wantGranted(third)
	l.release(holder, store.NotOurs) // a late one, which has nothing to do with it
	l.wantHolder(third)
	l.release(third, store.Released)
	ear.wantSilence()
	l.wantQueued()
	if l.holder() != "" {
		t.Fatalf("%s holds the key", l.holder())
	}

	holder = l.held()
	holder.KeepFor = 20 * time.Millisecond
	first, second = l.waits(ear.name), l.waits(ear.name)
	l.release(holder, store.Released)
	if told, _ := locker.EventOf(ear.next()); told.Kind != store.EventHead || told.Owner != first.Owner {
		t.Fatalf("told %+v", told)
	}
	eventually(t, "the kept key is free", func() bool { return l.holder() == "" })
	l.release(first, store.NotOurs)
	ear.wantGranted(second)
}

func TestReleaseWithNext(t *testing.T) {
	t.Parallel()
	with := func(c, next store.Claim) store.Claim { c.Next = &next; return c }

	t.Run("when nobody waits it is granted", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		ear := l.listen()
		c, next := l.claim(ear.name), l.claim(ear.name)
		next.FenceCount, next.Metadata = 3, "me"
		first := l.acquire(c, store.Granted)
		g := l.release(with(c, next), store.Released).Next
		if g == nil || g.State != store.Granted || g.Fence <= first.Fence || g.FenceCount != 3 || g.At.IsZero() {
			t.Fatalf("%+v", g)
		}
		want := fmt.Sprintf("%s:%d:3:me", next.Owner, g.Fence)
		if got := l.server.Get(t.Context(), l.key).Val(); got != want {
			t.Fatalf("the lease is %q, want %q", got, want)
		}
		if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handed {
			t.Fatalf("the lease lives for %v, want the full TTL", left)
		}
		l.wantQueued()
		ear.wantSilence()

		// A repetition, after a lost answer, lets it in no second time; the engine asks with an acquire then.
		if g := l.release(with(c, next), store.NotOurs); g.Next != nil {
			t.Fatalf("%+v", g.Next)
		}
		if again := l.acquire(next, store.Granted); again.Fence != g.Fence || again.FenceCount != g.FenceCount {
			t.Fatalf("fence %d became %d", g.Fence, again.Fence)
		}
	})

	t.Run("when only the dead wait it is granted", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		c := l.held()
		l.waits("latchkit:i:dead")
		if g := l.release(with(c, l.claim("")), store.Released).Next; g == nil || g.State != store.Granted {
			t.Fatalf("%+v", g)
		}
		l.wantQueued()
	})

	t.Run("it stands behind whoever waits", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		ear, mine := l.listen(), l.listen()
		holder := l.held()
		first, second := l.claim(ear.name), l.claim(ear.name)
		first.Metadata = "first"
		l.acquire(first, store.Busy)
		l.acquire(second, store.Busy)
		next := l.claim(mine.name)
		g := l.release(with(holder, next), store.Released).Next
		e := ear.wantGranted(first)
		want := store.Holder{Fence: e.Fence, Left: handed, Metadata: "first"}
		if g == nil || g.State != store.Busy || g.Place != 2 || g.NotListening || g.At.IsZero() || g.Holder != want {
			t.Fatalf("%+v, want place 2 behind %+v", g, want)
		}
		l.wantQueued("-"+first.Owner, second.Owner, next.Owner)
		l.release(with(holder, next), store.NotOurs)
		l.wantQueued("-"+first.Owner, second.Owner, next.Owner)
		l.release(first, store.Released)
		l.release(second, store.Released)
		mine.wantGranted(next)
	})

	t.Run("a handed key is released so, too", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		ear := l.listen()
		holder := l.held()
		c := l.waits(ear.name)
		l.release(holder, store.Released)
		next := l.claim("latchkit:i:nobody")
		if g := l.release(with(c, next), store.Released).Next; g == nil || g.State != store.Granted {
			t.Fatalf("%+v", g)
		}
		other := l.waits(ear.name)
		again := l.claim("latchkit:i:nobody")
		if g := l.release(with(next, again), store.Released).Next; g == nil || g.State != store.Busy || !g.NotListening || g.Place != 1 {
			t.Fatalf("%+v, want to hear that nobody listens", g)
		}
		l.wantQueued("-"+other.Owner, again.Owner)
	})

	t.Run("it is refused when it was undone", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		for _, others := range []bool{false, true} {
			c := l.held()
			next := l.claim("")
			next.TombstoneTTL = time.Minute
			l.release(next, store.NotOurs)
			if others {
				l.waits("")
			}
			if g := l.release(with(c, next), store.Released).Next; g == nil || g.State != store.Undone {
				t.Fatalf("%+v", g)
			}
			if h := l.holder(); h == next.Owner || (h != "") != others {
				t.Fatalf("%q holds the key", h)
			}
		}
		l.wantQueued("-" + l.holder())
	})

	t.Run("nothing comes in with a release of what is not ours", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		l.held()
		if g := l.release(with(l.claim(""), l.claim("")), store.NotOurs); g.Next != nil {
			t.Fatalf("%+v", g.Next)
		}
		l.wantQueued()
	})

	t.Run("work that is done is not done again", func(t *testing.T) {
		t.Parallel()
		l := sharedLine(t)
		c := l.held()
		c.Complete, c.Once = true, time.Minute
		next := l.claim("")
		next.Once = time.Minute
		if g := l.release(with(c, next), store.Released).Next; g == nil || g.State != store.Done {
			t.Fatalf("%+v", g)
		}
	})
}

func TestWorkThatIsDoneEndsTheWaitOfWhoAskedForOnce(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.claim(ear.name)
	holder.Once = time.Minute
	l.acquire(holder, store.Granted)
	var once []store.Claim
	var other store.Claim
	for i := range 4 {
		if i == 2 {
			other = l.waits(ear.name)
		}
		c := l.claim(ear.name)
		if c.Once = time.Minute; i == 3 {
			c.Inbox = ""
		}
		l.acquire(c, store.Busy)
		once = append(once, c)
	}
	holder.Complete = true
	l.release(holder, store.Released)
	for _, c := range once[:3] {
		if e, ok := locker.EventOf(ear.next()); !ok || e != (store.Event{Kind: store.EventDone, Key: l.key, Owner: c.Owner}) {
			t.Fatalf("told %#v, want that the work of %s is done", e, c.Owner)
		}
	}
	ear.wantGranted(other)
	ear.wantSilence()
	l.wantQueued("-" + other.Owner)
	for _, c := range once {
		l.acquire(c, store.Done)
	}
	l.wantQueued("-" + other.Owner)
}

func TestAKeptKeyIsAnnouncedToTheHead(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	dead, ear := l.listen(), l.listen()
	holder := l.claim("")
	l.acquire(holder, store.Granted)
	l.waits(dead.name)
	head := l.waits(ear.name)
	l.waits(ear.name)
	dead.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), dead.name).Val()[dead.name] == 0
	})
	holder.KeepFor = 5 * time.Second
	next := l.claim("")
	holder.Next = &next
	if g := l.release(holder, store.Released); g.Next != nil {
		t.Fatalf("%+v comes in although the key is kept", g.Next)
	}
	want := fmt.Sprintf("head 5000 %s %s", head.Owner, l.key)
	if got := ear.next(); got != want {
		t.Fatalf("told %q, want %q", got, want)
	}
	ear.wantSilence()
	if l.holder() != "kept" || len(l.queued()) != 3 {
		t.Fatalf("%s holds the key, and %v wait", l.holder(), l.queued())
	}
	if g := l.acquire(head, store.Busy); g.Holder.Left > 5*time.Second || g.Holder.Foreign {
		t.Fatalf("%+v", g)
	}
	// A broken kept key is handed on.
	i, err := l.store.(store.Inspector).Inspect(t.Context(), l.key)
	if err != nil || !i.Kept || i.Waiters != 3 {
		t.Fatalf("%+v %v", i, err)
	}
	if g, err := l.store.(store.Revoker).Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	ear.wantGranted(head)
}

func TestABrokenKeyIsHandedOn(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.held()
	first, second := l.waits(ear.name), l.waits(ear.name)
	inspector, breaker := l.store.(store.Inspector), l.store.(store.Revoker)
	i, err := inspector.Inspect(t.Context(), l.key)
	if err != nil || i.Waiters != 2 {
		t.Fatalf("%+v %v", i, err)
	}
	for n, want := range []store.State{store.Released, store.NotOurs} { // a repetition hits nobody else
		if g, err := breaker.Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != want {
			t.Fatal(n, g, err)
		}
		l.wantHolder(first)
		ear.wantGrantedOrNothing(n == 0, first)
	}
	l.release(holder, store.Revoked)
	// So is one that was handed over and not confirmed yet: its process did not let it lapse, and loses no place.
	if i, err = inspector.Inspect(t.Context(), l.key); err != nil || i.Waiters != 1 {
		t.Fatalf("%+v %v, want one waiter: who was handed the key waits no more", i, err)
	}
	if g, err := breaker.Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	ear.wantGranted(second)
	l.wantQueued("-" + second.Owner)
	if g := l.release(first, store.Revoked); g.Reason != "drill" {
		t.Fatalf("%+v", g)
	}
}

func (e *ear) wantGrantedOrNothing(granted bool, c store.Claim) {
	e.Helper()
	if granted {
		e.wantGranted(c)
	} else {
		e.wantSilence()
	}
}

func TestAnythingFitsIntoMetadata(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	for _, text := range []string{"a|b|c", "|", "with spaces: and colons ::", "\x00\xff\n", "1|2|3|4|5|6|7|8", "{ü}", " "} {
		ear := l.listen()
		holder := l.held()
		c := l.claim(ear.name)
		c.Metadata, c.FenceCount = text, 2
		l.acquire(c, store.Busy)
		l.release(holder, store.Released)
		e := ear.wantGranted(c)
		if h := l.acquire(l.claim(""), store.Busy).Holder; h.Metadata != text || h.Fence != e.Fence || e.FenceCount != 2 {
			t.Fatalf("%q became %+v", text, h)
		}
		l.server.Del(t.Context(), l.key, locker.QueueOf(l.key))
		l.acquire(c, store.Granted)
		next := c
		next.Owner = rand.Text()
		c.Next = &next
		if g := l.release(c, store.Released).Next; g == nil || g.State != store.Granted {
			t.Fatalf("%+v", g)
		}
		if h := l.acquire(l.claim(""), store.Busy).Holder; h.Metadata != text {
			t.Fatalf("%q became %+v", text, h)
		}
		l.server.Del(t.Context(), l.key, locker.QueueOf(l.key))
	}
}

func TestTheServerSaysThatNobodyListens(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	l.held()
	ear := l.listen()
	for inbox, deaf := range map[string]bool{ear.name: false, "latchkit:i:nobody": true, "": false} {
		c := l.claim(inbox)
		if g := l.acquire(c, store.Busy); g.NotListening != deaf {
			t.Errorf("%q: %+v", inbox, g)
		}
		c.Owner, c.Queue = rand.Text(), false
		if g := l.acquire(c, store.Busy); g.NotListening {
			t.Errorf("who does not queue is not asked: %+v", g)
		}
	}
}

func TestAQueueIsForgottenWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	l.held()
	c := l.waits("")
	q := locker.QueueOf(l.key)
	for range 2 {
		if ttl := l.server.PTTL(t.Context(), q).Val(); ttl < 50*time.Second || ttl > time.Minute {
			t.Fatalf("the queue lives for %v", ttl)
		}
		l.server.PExpire(t.Context(), q, 5*time.Second)
		l.acquire(c, store.Busy) // a repetition keeps it alive
	}
	l.server.PExpire(t.Context(), q, time.Millisecond)
	eventually(t, "it is gone", func() bool { return l.server.Exists(t.Context(), q).Val() == 0 })
	if g := l.acquire(c, store.Busy); g.Place != 1 {
		t.Fatalf("%+v", g)
	}
}

// Another program that deletes and sets the key takes part in no queue.
func TestAForeignHolderBetweenDoesNotCostThePlace(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.held()
	first, second := l.waits(ear.name), l.waits("")
	l.release(holder, store.Released)
	ear.wantGranted(first)
	l.server.Set(t.Context(), l.key, "foreign", time.Minute)
	if g := l.acquire(second, store.Busy); g.Place != 1 || !g.Holder.Foreign {
		t.Fatalf("%+v", g)
	}
	if g := l.acquire(first, store.Busy); g.Place != 1 {
		t.Fatalf("%+v", g)
	}
	l.wantQueued(first.Owner, second.Owner)
	l.server.Del(t.Context(), l.key)
	l.acquire(second, store.Busy)
	ear.wantGranted(first)
	l.wantQueued("-"+first.Owner, second.Owner)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.wantQueued("-" + second.Owner)
	ear.wantSilence() // it is not handed the key again
}

// The same with Engines: who is put first is served once, and those behind it after that.
func TestAForeignHolderBetweenDoesNotMakeAGrantRepeat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	holder := acquire(t, newSingle(t, client), locker.Rule{Key: "a"})
	rule := locker.Rule{Key: "a", AtMost: time.Minute} // what is not renewed is confirmed by its release
	first := queues(t, newSingle(t, server.Client(t)), rule, client)
	second := queues(t, newSingle(t, server.Client(t)), rule, client)
	q := locker.QueueOf("a")
	entry := client.ZRange(t.Context(), q, 0, 0).Val()[0]
	for _, score := range []float64{-1, 0} { // a handed lease that lapsed, and what an older version made of it
		client.ZAdd(t.Context(), q, redis.Z{Score: score, Member: entry})
		if score < 0 {
			_, err := newSingle(t, server.Client(t)).Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
			wantErr(t, err, "a", locker.ErrBusy)
		}
	}
	release(t, holder)
	release(t, first.granted(0))
	release(t, second.granted(0))
	nothingLeftBut(t, client)
}

// Whatever stands in a queue and is no entry leaves it, and harms nobody.
func TestWhatIsNoEntryIsDropped(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	ear := l.listen()
	holder := l.held()
	q := locker.QueueOf(l.key)
	for i, junk := range []string{"", "junk", "T|inbox|0|0|1|0|", "T|-|x|0|1|0|", "T|-|5|0|0|0|", "|-|5|0|1|0|"} {
		l.server.ZAdd(t.Context(), q, redis.Z{Score: float64(i), Member: junk})
	}
	c := l.waits(ear.name)
	l.release(holder, store.Released)
	ear.wantGranted(c)
	l.wantQueued("-" + c.Owner)
}

// What one call has lengthened no other one shortens: its holder counts on it.
func TestARepeatedAcquireDoesNotShortenALease(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.held()
	longer := holder
	longer.TTL = time.Hour
	l.renew(longer, store.Granted)
	l.acquire(holder, store.Granted)
	if left := l.server.PTTL(t.Context(), l.key).Val(); left < 50*time.Minute {
		t.Fatalf("%v left", left)
	}
}

// Who was thrown out hears so however often it asks, also after it has undone what it did not hear of.
func TestAnUndoDoesNotHideARevocation(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	c := l.held()
	i, err := l.store.(store.Inspector).Inspect(t.Context(), l.key)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := l.store.(store.Revoker).Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	c.TombstoneTTL = time.Minute
	for range 2 {
		if g := l.release(c, store.Revoked); g.Reason != "drill" {
			t.Fatalf("%+v", g)
		}
	}
}
