package readers

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// unit is a unit of the model's time. The test does not wait for a unit: it steps the clock of the
// Memory, and makes all expiries on Redis earlier. A history must take much less real time than
// a unit, so that nothing expires by itself.
const unit = 20 * time.Second

// drawn is a source that lets rapid make the choices.
type drawn struct{ *rapid.T }

func (d drawn) choose(n int, what string) int { return rapid.IntRange(0, n-1).Draw(d.T, what) }

// compare draws a random history of calls and faults with the abilities can, and plays it on the
// Stores s and on the model m. It fails the test if an invariant breaks, or if s and m differ.
func compare(t *rapid.T, s *stores, m *model, can abilities) {
	began := time.Now()
	h := newHistory(drawn{t}, s, m, can)
	play(h, 40)
	switch {
	case h.fine():
	case time.Since(began) > unit/2:
		t.Log("no verdict: this machine is so slow that something may have run out by itself")
	default:
		t.Fatal(h)
	}
}

// TestReadersInMemory compares lockertest's Store with the model.
func TestReadersInMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		compare(t, inMemory(t), newModel(0), abilities{mute: rapid.Bool().Draw(t, "some are told nothing")})
	})
}

// TestReadersOnRedis compares the scripts with the model, on a real server.
func TestReadersOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	direct := server.Client(t)
	rapid.Check(t, func(t *rapid.T) {
		compare(t, onRedis(t, server, direct), newModel(0), abilitiesOf(rapid.Uint64Range(0, 11).Draw(t, "abilities")))
	})
}

// fataler has the methods of a test that stores need.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// stores runs the steps of the model on a store.Store, the interface that an Engine uses. Each
// process has a Store of its own.
type stores struct {
	fataler
	open          func() (with, without store.Store, die func()) // without is a Store without readers, on the same keys; die ends the process
	removeLease   func()                                         // removes the lease
	removeReaders func()                                         // removes the readers of the lease
	occupyFor     func(ttl time.Duration) bool                   // makes another program take the key, if it is free
	advance       func(d time.Duration)
	unsubscribed  func(inbox string) bool // reports whether the inbox has no subscriber; nil: an inbox has no subscriber as soon as its process has died

	key       string
	processes []*process
	messages  chan message
	patience  time.Duration // how long takeMessages waits for messages
}

type process struct {
	readers, plain store.Store
	inbox          string
	die            func()
}

func inMemory(t fataler) *stores {
	m := lockertest.NewMemory()
	s := newStores(t)
	s.open = func() (store.Store, store.Store, func()) {
		p := m.NewProcess()
		return p, nil, p.Die
	}
	s.removeLease = func() { m.Free(s.key) }
	s.occupyFor = func(ttl time.Duration) bool {
		if s.inspect().Held {
			return false
		}
		m.Occupy(s.key, ttl)
		return true
	}
	s.advance = m.StepClock
	return s
}

// age makes all expiries earlier, and removes what has expired. KEYS: strings · a sorted set whose
// scores are times in ms; ARGV: ms.
var age = redis.NewScript(`
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left >= 0 and left <= tonumber(ARGV[1]) then
    redis.call('DEL', key)
  elseif left >= 0 then
    redis.call('PEXPIRE', key, left - ARGV[1])
    if string.sub(key, 1, 11) == 'latchkit:r:' then
      for _, member in ipairs(redis.call('ZRANGE', key, '0', '-1')) do
        redis.call('ZINCRBY', key, '-' .. ARGV[1], member)
      end
    end
  end
end
return 1`)

func onRedis(t *rapid.T, server *redistest.Server, direct *redis.Client) *stores {
	s := newStores(t)
	ctx := t.Context()
	s.open = func() (store.Store, store.Store, func()) {
		c := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		with, err := redisstore.NewReadWrite(c, redisstore.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		without, err := redisstore.New(c, redisstore.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		return with, without, nil
	}
	s.removeLease = func() { direct.Del(ctx, s.key) }
	s.removeReaders = func() { direct.Del(ctx, s.companion("r")) }
	s.occupyFor = func(ttl time.Duration) bool { return direct.SetNX(ctx, s.key, "program", ttl).Val() }
	s.advance = func(d time.Duration) {
		keys := append([]string{s.key, s.companion("q"), s.companion("r"), s.companion("d")}, direct.Keys(ctx, "latchkit:x:{"+s.key+"}:*").Val()...)
		if err := age.Run(ctx, direct, keys, d.Milliseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.unsubscribed = func(channel string) bool { return direct.PubSubNumSub(ctx, channel).Val()[channel] == 0 }
	return s
}

// companion returns the name of a key that latchkit stores beside the lock, such as its queue.
func (s *stores) companion(kind string) string {
	return "latchkit:" + kind + ":{" + s.key + "}:" + s.key
}

func newStores(t fataler) *stores {
	s := &stores{fataler: t, key: "read:" + rand.Text(), messages: make(chan message, 1000), patience: 2 * unit / 5}
	t.Cleanup(func() {
		for p := range s.processes {
			s.kill(p)
		}
	})
	return s
}

func (s *stores) start(n int) {
	with, without, die := s.open()
	p := &process{readers: with, plain: without}
	listener := store.CapabilitiesOf(with).Notifier
	stop := listener.Listen(func(e store.Event) {
		if e.Key == s.key {
			s.messages <- message{process: n, kind: e.Kind, owner: ownerOf(e.Owner), fence: int(e.Fence), writer: e.Writer}
		}
	})
	inbox, err := listener.Open(background, s.key)
	if err != nil || inbox == "" {
		s.Fatalf("Open: %q, %v", inbox, err)
	}
	p.inbox = inbox
	p.die = func() {
		if die != nil {
			die()
		}
		stop()
	}
	s.processes = append(s.processes, p)
}

func (s *stores) kill(n int) {
	p := s.processes[n]
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

// caller returns the Store that makes the calls of a process. For a dead process, whose earlier
// calls may run late, and for an owner without an inbox, any process can make the calls.
func (s *stores) caller(c claim) store.Store {
	for n := range s.processes {
		p := s.processes[len(s.processes)-1-n]
		if c.process != noInbox && s.processes[c.process].die != nil {
			p = s.processes[c.process]
		}
		switch {
		case p.die == nil:
		case c.plain:
			return p.plain
		default:
			return p.readers
		}
	}
	s.Fatalf("nobody lives")
	return nil
}

func units(n int) time.Duration { return time.Duration(n) * unit }

// ownerOf returns the owner from whose name tokenOf has made a token.
func ownerOf(token string) string { return strings.TrimLeft(token, "-") }

func tokenOf(owner string) string { return strings.Repeat("-", 26-len(owner)) + owner }

func (s *stores) claim(c claim) store.Claim {
	l := store.Claim{Key: s.key, Owner: tokenOf(c.owner), Mode: c.mode, TTL: units(c.ttl), FenceCount: blockOf, Fence: uint64(c.phase), Queue: c.queue}
	if c.mode == locker.Shared {
		l.FenceCount = 1
	}
	if c.once {
		l.OnceFor = units(doneLife)
	}
	if c.queue {
		l.HandoffTTL = units(c.hand)
	}
	if c.process != noInbox {
		l.Inbox = s.processes[c.process].inbox
	}
	return l
}

func (s *stores) answer(g store.Grant, err error) answer {
	s.Helper()
	if err != nil {
		s.Fatalf("%v", err)
	}
	a := answer{State: g.State, Writer: g.Writer, Place: g.Place, Fence: int(g.Fence), Holder: int(g.Holder.Fence)}
	if g.State == store.Busy {
		a.Left = ceil(g.Holder.Left)
	}
	return a
}

func ceil(d time.Duration) int { return int((d + unit - 1) / unit) }

func (s *stores) acquire(c claim) answer {
	return s.answer(s.caller(c).Acquire(background, s.claim(c)))
}

func (s *stores) renew(c claim, ttl int) answer {
	l := s.claim(c)
	l.TTL, l.ByHandoff = units(ttl), true
	gs, err := s.caller(c).Renew(background, []store.Claim{l})
	if err != nil || len(gs) != 1 {
		s.Fatalf("Renew: %v, %v", gs, err)
	}
	a := s.answer(gs[0], gs[0].Err)
	a.Fence = 0
	return a
}

func (s *stores) release(c claim, g releaseArgs) answer {
	l := s.claim(c)
	l.KeepFor, l.Complete = units(g.keep), g.setsDone
	if g.undo {
		l.TombstoneTTL = units(noteLife)
	}
	return s.answer(s.caller(c).Release(background, l))
}

func (s *stores) breakHolder(fence int) answer {
	return s.answer(store.CapabilitiesOf(s.caller(claim{process: noInbox})).Revoke(background, s.key, uint64(fence), "because"))
}

func (s *stores) inspect() info {
	i, err := store.CapabilitiesOf(s.caller(claim{process: noInbox})).Inspect(background, s.key)
	if err != nil {
		s.Fatalf("Inspect: %v", err)
	}
	return info{
		Held: i.Held, Kept: i.Kept, Foreign: i.Foreign, Shared: i.Mode == locker.Shared, Fence: int(i.Fence),
		Left: ceil(i.Left), Waiters: i.Waiters, Readers: i.Readers,
	}
}

func (s *stores) occupy(ttl int) bool { return s.occupyFor(units(ttl)) }
func (s *stores) evictLease()         { s.removeLease() }
func (s *stores) evictReaders()       { s.removeReaders() }
func (s *stores) pass(n int)          { s.advance(units(n)) }

// takeMessages returns the messages since its last call. It waits until the wanted messages have
// arrived, or until the patience is over.
func (s *stores) takeMessages(want []message) (got []message) {
	missing := slices.Clone(want)
	slow := time.NewTimer(s.patience)
	defer slow.Stop()
	for {
		var m message
		if len(missing) > 0 {
			select {
			case m = <-s.messages:
			case <-slow.C:
				return got
			}
		} else {
			select {
			case m = <-s.messages:
			default:
				return got
			}
		}
		got = append(got, m)
		if i := slices.IndexFunc(missing, m.matches); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		}
	}
}

var background = context.Background()
