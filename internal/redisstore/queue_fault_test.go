package redisstore_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// A server whose memory is full lets callers wait, and grants the key to one waiter after the
// other. It refuses only callers that find the key free.
func TestAFullServerServesTheQueue(t *testing.T) {
	t.Parallel()
	l := newLine(t, redistest.Start(t))
	listener := l.listen()
	holder := l.newHolder()
	first := l.newWaiter(listener.name)
	kept := l.key
	l.key = "another"
	expired := l.newHolder()
	waits := l.newWaiter(listener.name)
	l.key = "once"
	done := l.newHolder()
	asksOnce := l.claim(listener.name)
	asksOnce.OnceFor = time.Minute
	l.acquire(asksOnce, store.Busy)
	full := func(limit string) {
		if err := l.server.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	full("1")
	defer full("0")

	newcomer := store.Claim{Key: "free", Owner: rand.Text(), TTL: time.Minute, Queue: true, HandoffTTL: handedTTL}
	if _, err := l.store.Acquire(t.Context(), newcomer); !refused(err, "out of memory") {
		t.Fatalf("a new lease on a full server: %v", err)
	}
	if n := l.server.Exists(t.Context(), "free").Val(); n != 0 {
		t.Fatal("the lease is there")
	}

	l.key = kept
	second, third := l.newWaiter(listener.name), l.newWaiter(listener.name)
	l.release(holder, store.Released)
	e := listener.wantGranted(first)
	text := l.server.Get(t.Context(), l.key).Val()
	if text != fmt.Sprintf("%s:%d:1:", first.Owner, e.Fence) { // the message must not announce a lease that the server refused
		t.Fatalf("event %+v, and the lease is %q", e, text)
	}
	i, err := store.CapabilitiesOf(l.store).Inspect(t.Context(), l.key)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := store.CapabilitiesOf(l.store).Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	listener.wantGranted(second)
	l.wantHolder(second)
	second.KeepFor = time.Minute
	l.release(second, store.Released)
	if got := listener.nextMessage(); !strings.HasPrefix(got, "head 60000 "+third.Owner) {
		t.Fatalf("told %q", got)
	}

	l.key = "another"
	l.server.Del(t.Context(), l.key) // as if the lease had expired
	l.acquire(l.claim(""), store.Busy)
	listener.wantGranted(waits)
	l.wantHolder(waits)
	l.release(expired, store.NotOurs)

	l.key = "once"
	done.Complete, done.OnceFor = true, time.Minute
	l.release(done, store.Released)
	if got := listener.nextMessage(); got != "done "+asksOnce.Owner+" once" {
		t.Fatalf("told %q", got)
	}
	l.acquire(asksOnce, store.Done)
}

func refused(err error, text string) bool {
	no, ok := errors.AsType[*store.Refusal](err)
	return ok && !no.Temporary && strings.Contains(err.Error(), text)
}

// A replica must not answer a waiter's call from its own data.
func TestAReplicaServesNobody(t *testing.T) {
	t.Parallel()
	l := newLine(t, redistest.Start(t))
	listener := l.listen()
	holder := l.newHolder()
	first := l.newWaiter(listener.name)
	l.release(holder, store.Released)
	listener.wantGranted(first)
	second := l.newWaiter(listener.name)
	busy := l.key
	l.key = "free but queued"
	freed := l.newHolder()
	third := l.newWaiter(listener.name)
	l.server.Del(t.Context(), l.key)
	queued := l.queuedTokens()
	if err := l.server.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}

	first.ByHandoff = true
	calls := map[string]func() error{
		"the holder asks again": func() error { _, err := l.store.Acquire(t.Context(), first); return err },
		"a waiter asks again":   func() error { _, err := l.store.Acquire(t.Context(), second); return err },
		"the head asks again":   func() error { _, err := l.store.Acquire(t.Context(), third); return err },
		"a confirmation":        func() error { _, err := l.store.Renew(t.Context(), []store.Claim{first}); return err },
		"a stranger confirms": func() error {
			c := freed
			c.ByHandoff = true
			_, err := l.store.Renew(t.Context(), []store.Claim{c})
			return err
		},
		"a release":           func() error { _, err := l.store.Release(t.Context(), first); return err },
		"a waiter gives up":   func() error { _, err := l.store.Release(t.Context(), second); return err },
		"a stranger releases": func() error { _, err := l.store.Release(t.Context(), freed); return err },
		"a newcomer asks": func() error {
			_, err := l.store.Acquire(t.Context(), store.Claim{Key: third.Key, Owner: rand.Text(), TTL: time.Minute})
			return err
		},
	}
	for name, call := range calls {
		if no, ok := errors.AsType[*store.Refusal](call()); !ok || !no.Temporary {
			t.Errorf("%s: a replica answers %v", name, no)
		}
	}
	listener.wantSilence()
	if got := l.queuedTokens(); !slices.Equal(got, queued) || l.holder() != "" {
		t.Fatalf("%v became %v, and %q holds the key", queued, got, l.holder())
	}
	l.key = busy
	l.wantHolder(first)
	l.wantQueued("-"+first.Owner, second.Owner)
}

// Data of another type at a companion key is refused before anything is done, and stays.
func TestDataOfAnotherTypeAtACompanionKeyIsRefusedAndStays(t *testing.T) {
	t.Parallel()
	type keys struct{ l, q, c, x, d string }
	acquire := func(c store.Claim) func(l *line) (store.Grant, error) {
		return func(l *line) (store.Grant, error) { c.Key = l.key; return l.store.Acquire(l.Context(), c) }
	}
	me := rand.Text()
	claim := store.Claim{Owner: me, TTL: time.Minute, Queue: true, HandoffTTL: handedTTL, OnceFor: time.Minute}
	releases := func(change func(c *store.Claim)) func(l *line) (store.Grant, error) {
		return func(l *line) (store.Grant, error) {
			c := claim
			c.Key = l.key
			change(&c)
			return l.store.Release(l.Context(), c)
		}
	}
	breaks := func(l *line) (store.Grant, error) {
		text := l.server.Get(l.Context(), l.key).Val()
		fence := uint64(0)
		_, _ = fmt.Sscanf(strings.Split(text, ":")[1], "%d", &fence)
		return store.CapabilitiesOf(l.store).Revoke(l.Context(), l.key, fence, "drill")
	}
	plain := func(*store.Claim) {}
	for name, c := range map[string]struct {
		spoil func(k keys) string
		mine  bool // true: the owner of the call holds the lease
		free  bool // true: no owner holds the lease
		queue bool // true: a caller waits
		call  func(l *line) (store.Grant, error)
	}{
		"acquire, lease":                  {spoil: func(k keys) string { return k.l }, free: true, call: acquire(claim)},
		"acquire, lease with a queue":     {spoil: func(k keys) string { return k.l }, free: true, queue: true, call: acquire(claim)},
		"acquire, queue of a free key":    {spoil: func(k keys) string { return k.q }, free: true, call: acquire(claim)},
		"acquire, queue of a busy key":    {spoil: func(k keys) string { return k.q }, call: acquire(claim)},
		"acquire, queue of a key of ours": {spoil: func(k keys) string { return k.q }, mine: true, call: acquire(claim)},
		"acquire, counter":                {spoil: func(k keys) string { return k.c }, free: true, call: acquire(claim)},
		"acquire, counter with a queue":   {spoil: func(k keys) string { return k.c }, free: true, queue: true, call: acquire(claim)},
		"acquire, tombstone":              {spoil: func(k keys) string { return k.x }, free: true, call: acquire(claim)},
		"acquire, mark":                   {spoil: func(k keys) string { return k.d }, free: true, call: acquire(claim)},
		"release, queue":                  {spoil: func(k keys) string { return k.q }, mine: true, call: releases(plain)},
		"release, counter":                {spoil: func(k keys) string { return k.c }, mine: true, queue: true, call: releases(plain)},
		"release, tombstone":              {spoil: func(k keys) string { return k.x }, mine: true, call: releases(func(c *store.Claim) { c.TombstoneTTL = time.Minute })},
		"release, mark":                   {spoil: func(k keys) string { return k.d }, mine: true, call: releases(func(c *store.Claim) { c.Complete = true })},
		"release, queue, not ours":        {spoil: func(k keys) string { return k.q }, call: releases(plain)},
		"break, queue":                    {spoil: func(k keys) string { return k.q }, call: breaks},
		"break, counter":                  {spoil: func(k keys) string { return k.c }, queue: true, call: breaks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sharedLine(t)
			l.key = "spoiled:" + rand.Text()
			k := keys{
				l.key, redisstore.QueueKey(l.key), redisstore.CounterKey(l.key), redisstore.TombstoneKey(l.key, me), redisstore.DoneKey(l.key),
			}
			at := c.spoil(k)
			if at == k.c { // all keys of a slot share the counter, so this case has a server of its own
				l = newLine(t, redistest.Start(t))
				l.key = k.l
			}
			if at != k.q {
				l.newHolder()
				if c.queue {
					l.newWaiter("")
				}
				l.server.Del(t.Context(), l.key)
			}
			holder := store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}
			if c.mine {
				holder.Owner = me
			}
			if !c.free { // the test sets the key without a script, because there may be waiters
				l.server.Set(t.Context(), l.key, holder.Owner+":7:1", time.Minute)
			}
			l.server.Del(t.Context(), at)
			if err := l.server.RPush(t.Context(), at, "data").Err(); err != nil {
				t.Fatal(err)
			}
			if at == k.q {
				l.server.Del(t.Context(), at)
				l.server.Set(t.Context(), at, "data", 0)
			}
			before := dump(l)
			g, err := c.call(l)
			if no, ok := errors.AsType[*store.Refusal](err); !ok || no.Temporary || !errors.Is(err, locker.ErrInvalidKey) {
				t.Fatalf("%+v %v, want a refusal that is ErrInvalidKey", g, err)
			}
			if after := dump(l); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Fatalf("%q\nbecame\n%q", before, after)
			}
		})
	}
}

// dump returns all data about a key on the server. The counter is left out, because it may have
// increased: an unused fence does no harm.
func dump(l *line) map[string]string {
	all := make(map[string]string)
	for _, key := range l.server.Keys(l.Context(), "*").Val() {
		counts := key == redisstore.CounterKey(l.key) && l.server.Type(l.Context(), key).Val() == "string"
		if strings.Contains(key, l.key) || key == redisstore.CounterKey(l.key) && !counts {
			all[key] = l.server.Dump(l.Context(), key).Val()
		}
	}
	return all
}

// Redis forbids scripts to call some commands.
func TestNoScriptCallsACommandThatIsForbiddenThere(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	info, err := client.Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)
	seen := make(map[string]bool)
	for name, text := range redisstore.ScriptTexts {
		for _, found := range call.FindAllStringSubmatch(text, -1) {
			c, ok := info[strings.ToLower(found[1])]
			if !ok || slices.Contains(c.Flags, "noscript") {
				t.Errorf("%s calls %s", name, found[1])
			}
			seen[found[1]] = true
		}
	}
	if !seen["PUBSUB"] || !slices.Contains(info["subscribe"].Flags, "noscript") {
		t.Error("positive control: nothing was looked at")
	}
}

// A release, or the call by which a waiter gives up, takes effect once, even if its answer is lost
// and the call is repeated.
func TestTheQueueSurvivesRepetitions(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	holder := l.newHolder()
	first, second := l.newWaiter(listener.name), l.newWaiter(listener.name)
	for range 3 {
		l.acquire(first, store.Busy)
		l.acquire(second, store.Busy)
	}
	l.release(holder, store.Released)
	e := listener.wantGranted(first)
	for range 3 {
		l.release(holder, store.NotOurs)
		if g := l.acquire(first, store.Granted); g.Fence != e.Fence || g.FenceCount != e.FenceCount {
			t.Fatalf("event %+v, answer %+v", e, g)
		}
		if g := l.acquire(second, store.Busy); g.Place != 1 || g.Holder.Fence != e.Fence {
			t.Fatalf("%+v", g)
		}
		l.renew(first, store.Granted)
	}
	listener.wantSilence()
	l.wantQueued(second.Owner)
	if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handedTTL {
		t.Fatalf("the lease lasts %v: an owner that asks gets the full TTL", left)
	}
}

// Several calls may be sent together. On a full server, too, each call gets the same answer as a
// call that is sent alone. The lease of a free key is refused, and a caller for a held key learns
// the key's holder.
func TestAFullServerAnswersEachOfTheCallsThatMeet(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := locktest.SingleStore(client)
	held := store.Claim{Key: "held", Owner: rand.Text(), TTL: time.Minute}
	if g, err := s.Acquire(t.Context(), held); err != nil || g.State != store.Granted {
		t.Fatal(g, err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c := store.Claim{Key: "held", Owner: rand.Text(), TTL: time.Minute}
			switch i % 4 {
			case 0:
				c.Key = fmt.Sprint("free", i)
				if _, err := s.Acquire(t.Context(), c); !refused(err, "out of memory") {
					t.Errorf("a new lease: %v", err)
				}
			case 1:
				if g, err := s.Acquire(t.Context(), held); err != nil || g.State != store.Granted {
					t.Errorf("the holder's own call: %+v, %v", g, err)
				}
			default:
				if g, err := s.Acquire(t.Context(), c); err != nil || g.State != store.Busy {
					t.Errorf("a call for a key that is held: %+v, %v", g, err)
				}
			}
		})
	}
	wg.Wait()
}
