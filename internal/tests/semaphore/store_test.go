package semaphore

import (
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// unit is a unit of the histories' time. The test does not wait for this time: it steps the clock
// of the Memory, and makes all expiries on Redis earlier. A history must take much less real
// time than a unit, so that nothing expires by itself.
const unit = 20 * time.Second

// fataler has the methods of a test that stores need.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(f func())
}

// stores runs the steps of the model on a store.Store, the interface that an Engine uses. Each
// process has a Store of its own.
type stores struct {
	fataler
	key          string
	open         func() (s store.Store, die func())
	unsubscribed func(inbox string) bool // reports whether the inbox has no subscriber; nil: an inbox has no subscriber as soon as its process has died
	advance      func(d time.Duration)
	occupy       func(ttl time.Duration)
	evict        func(part string) // evicts L, P or U; nil: the Store does not evict
	processes    []*member
	events       chan store.Event
}

// member is a process of stores.
type member struct {
	store store.Store
	inbox string
	die   func()
}

func newStores(t fataler) *stores {
	s := &stores{fataler: t, key: "sem:" + crand.Text(), events: make(chan store.Event, 1000)}
	t.Cleanup(s.killAll)
	return s
}

// killAll kills all processes.
func (s *stores) killAll() {
	for i := range s.processes {
		s.kill(i)
	}
}

func inMemory(t fataler) *stores {
	s, m := newStores(t), lockertest.NewMemory()
	s.open = func() (store.Store, func()) {
		p := m.NewProcess()
		return p, p.Die
	}
	s.advance = m.StepClock
	s.occupy = func(ttl time.Duration) { m.Occupy(s.key, ttl) }
	return s
}

// age makes all expiries earlier by some ms, and removes what has expired. KEYS: keys with
// expiries, the permits, the uses; ARGV: ms.
var age = redis.NewScript(`
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left >= 0 and left <= tonumber(ARGV[1]) then
    redis.call('DEL', key)
  elseif left >= 0 then
    redis.call('PEXPIRE', key, left - ARGV[1])
  end
end
for _, token in ipairs(redis.call('ZRANGE', KEYS[#KEYS - 1], '0', '-1')) do
  redis.call('ZINCRBY', KEYS[#KEYS - 1], '-' .. ARGV[1], token)
end
local all, seen = string.match(redis.call('HGET', KEYS[#KEYS], '=') or '', '^(.*|)(%d+)$')
if all and seen ~= '0' then
  redis.call('HSET', KEYS[#KEYS], '=', all .. string.format('%.0f', seen - ARGV[1]))
end
return 1`)

func onRedis(t fataler, server *redistest.Server, direct *redis.Client) *stores {
	s, ctx := newStores(t), context.Background()
	s.open = func() (store.Store, func()) {
		c := redis.NewClient(&redis.Options{Addr: server.Addr()})
		sem, err := redisstore.NewSemaphore(c, redisstore.Settings{})
		if err != nil {
			t.Fatalf("%v", err)
		}
		return sem, func() { _ = c.Close() }
	}
	s.unsubscribed = func(inbox string) bool { return direct.PubSubNumSub(ctx, inbox).Val()[inbox] == 0 }
	s.advance = func(d time.Duration) {
		keys := direct.Keys(ctx, "latchkit:x:{"+s.key+"}:*").Val()
		keys = append(keys, s.key, redisstore.QueueKey(s.key), redisstore.PermitsKey(s.key), redisstore.UsesKey(s.key))
		if err := age.Run(ctx, direct, keys, d.Milliseconds()).Err(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	s.occupy = func(ttl time.Duration) { direct.SetNX(ctx, s.key, "program", ttl) }
	s.evict = func(part string) {
		direct.Del(ctx, map[string]string{"L": s.key, "P": redisstore.PermitsKey(s.key), "U": redisstore.UsesKey(s.key)}[part])
	}
	return s
}

func (s *stores) start() {
	opened, die := s.open()
	n := store.CapabilitiesOf(opened).Notifier
	stop := n.Listen(func(e store.Event) {
		if e.Kind == store.EventGranted {
			s.events <- e
		}
	})
	inbox, err := n.Open(context.Background(), s.key)
	if err != nil || inbox == "" {
		s.Fatalf("Open: %q %v", inbox, err)
	}
	s.processes = append(s.processes, &member{opened, inbox, func() {
		stop()
		die()
	}})
}

func (s *stores) kill(i int) {
	p := s.processes[i]
	if p.die == nil {
		return
	}
	p.die()
	p.die = nil
	for began := time.Now(); s.unsubscribed != nil && !s.unsubscribed(p.inbox); {
		if time.Since(began) > 10*time.Second {
			s.Fatalf("somebody listens there still")
		}
	}
}

// caller returns the Store that makes the calls of process i. If this process is dead, the Store
// of another process makes its late calls.
func (s *stores) caller(i int) store.Store {
	if s.processes[i].die != nil {
		return s.processes[i].store
	}
	return s.processes[len(s.processes)-1].store
}

func tokenOf(owner string) string { return strings.Repeat("-", 26-len(owner)) + owner }

func timesOf(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// claimOf returns the claim c of the model in the form for a Store. queue reports whether the
// claim joins the queue.
func (s *stores) claimOf(c claim, queue bool) store.Claim {
	l := store.Claim{
		Key: s.key, Owner: tokenOf(c.token), TTL: timesOf(c.ttl), FenceCount: blockOf, Limit: c.limit, Weight: c.weight, Queue: queue,
	}
	if queue {
		l.HandoffTTL = timesOf(c.hand)
	}
	if queue && !c.deaf {
		l.Inbox = s.processes[c.proc].inbox
	}
	return l
}

// drawn is a source that lets rapid make the choices.
type drawn struct{ *rapid.T }

func (d drawn) choose(n int, what string) int { return rapid.IntRange(0, n-1).Draw(d.T, what) }

// compare plays a history on a Store and on the model. The test fails if the Store and the
// model differ.
func compare(t *rapid.T, s *stores) {
	began, h := time.Now(), newHistory(drawn{t}, s, 0)
	switch h.play(40); {
	case h.differs == "":
	case time.Since(began) > unit/4:
		t.Log("no verdict: this machine is so slow that something may have run out by itself")
	default:
		t.Fatal(h)
	}
}

// TestSemaphoreInMemory compares lockertest's Store with the model.
func TestSemaphoreInMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { compare(t, inMemory(t)) })
}

// TestSemaphoreOnRedis compares the scripts with the model, on a real server.
func TestSemaphoreOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	direct := server.Client(t)
	rapid.Check(t, func(t *rapid.T) { compare(t, onRedis(t, server, direct)) })
}

// chance is a source that makes its choices by a random generator with a fixed seed.
type chance struct{ *rand.Rand }

func (c chance) choose(n int, _ string) int { return c.IntN(n) }

// TestHistoriesSeeEachRule leaves out one rule of the model's server after the other. The scripts
// must then differ from the model, because otherwise these histories detect too little.
func TestHistoriesSeeEachRule(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	direct := server.Client(t)
	for r := Rule(1); r < rulesEnd; r++ {
		t.Run(r.String(), func(t *testing.T) {
			for seed := range uint64(2000) {
				h := newHistory(chance{rand.New(rand.NewPCG(seed, 0))}, onRedis(t, server, direct), r)
				h.play(40)
				if h.stores.killAll(); h.differs != "" {
					t.Logf("seed %d: %s", seed, h.differs)
					return
				}
			}
			t.Error("no history sees it")
		})
	}
}
