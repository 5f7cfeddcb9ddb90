package queue

import (
	"crypto/rand"
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

// TestQueueInMemory compares lockertest's Store with the model.
func TestQueueInMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		play(t, inMemory(t), newModel(""))
	})
}

func inMemory(t *rapid.T) *storeSubject {
	m := lockertest.NewMemory()
	return newStores(t, stores{
		open: func() (store.Store, func()) {
			p := m.NewProcess()
			return p, p.Die
		},
		expireKey: func(key string) { m.Free(key) },
	})
}

// TestQueueOnRedis compares the scripts with the model, on a real server.
func TestQueueOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	direct := server.Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		play(rt, newStores(rt, stores{
			open: func() (store.Store, func()) {
				c := redis.NewClient(&redis.Options{Addr: server.Addr()})
				rt.Cleanup(func() { c.Close() })
				return singleStore(rt, c), nil
			},
			expireKey: func(key string) { direct.Del(t.Context(), key) },
			unsubscribed: func(channel string) bool {
				return direct.PubSubNumSub(t.Context(), channel).Val()[channel] == 0
			},
		}), newModel(""))
	})
}

// singleStore makes the Store of locker.New. The test uses the Store without an Engine, because an
// Engine would ask again by itself.
func singleStore(t *rapid.T, c *redis.Client) store.Store {
	s, err := redisstore.New(c, redisstore.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stores makes the Stores of processes that share a server.
type stores struct {
	open         func() (s store.Store, die func()) // die may be nil, if the end of the subscription is enough to end the process
	expireKey    func(key string)                   // ends the lease of a key, as if it had expired
	unsubscribed func(inbox string) bool            // ends the subscription of an inbox; nil: a subscription ends as soon as its process has died
}

// storeSubject is a subject that runs each step on a store.Store, the interface that an Engine
// uses.
type storeSubject struct {
	*rapid.T
	stores
	key       string
	processes []*storeProcess
}

type storeProcess struct {
	store  store.Store
	inbox  string
	events chan store.Event
	die    func()
}

func newStores(t *rapid.T, s stores) *storeSubject {
	subject := &storeSubject{T: t, stores: s, key: "queue:" + rand.Text()}
	t.Cleanup(func() {
		for p := range subject.processes {
			subject.kill(p)
		}
	})
	return subject
}

// tokenOf returns a token of the right length for the name of an owner.
func tokenOf(owner string) string { return strings.Repeat("-", 26-len(owner)) + owner }

func ownerOf(token string) string { return strings.TrimLeft(token, "-") }

func (s *storeSubject) start(int) {
	backend, die := s.open()
	p := &storeProcess{store: backend, events: make(chan store.Event, 1000)}
	n := store.CapabilitiesOf(backend).Notifier
	stop := n.Listen(func(e store.Event) {
		if e.Kind == store.EventGranted && e.Key == s.key {
			p.events <- e
		}
	})
	inbox, err := n.Open(s.Context(), s.key)
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

func (s *storeSubject) kill(process int) {
	p := s.processes[process]
	if p.die == nil {
		return
	}
	p.die()
	p.die = nil
	for began := time.Now(); s.unsubscribed != nil && !s.unsubscribed(p.inbox); {
		if time.Since(began) > 10*time.Second {
			s.Fatal("somebody listens there still")
		}
	}
}

// caller returns the Store that makes the calls of a process. For a dead process, whose earlier
// calls may run late, and for an owner without an inbox, any process can make the calls.
func (s *storeSubject) caller(process int) store.Store {
	if process != noInbox && s.processes[process].die != nil {
		return s.processes[process].store
	}
	for _, p := range s.processes {
		if p.die != nil {
			return p.store
		}
	}
	s.Fatal("nobody lives")
	return nil
}

func (s *storeSubject) claim(process int, owner string, queue bool) store.Claim {
	c := store.Claim{Key: s.key, Owner: tokenOf(owner), TTL: 30 * time.Second, FenceCount: blockOf}
	if queue {
		c.Queue, c.HandoffTTL = true, 20*time.Second
		if process != noInbox {
			c.Inbox = s.processes[process].inbox
		}
	}
	return c
}

func (s *storeSubject) answer(g store.Grant, err error) answer {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	a := answer{State: g.State, Place: g.Place, Fence: g.Fence}
	return a
}

func (s *storeSubject) acquire(process int, owner string, queue bool) answer {
	return s.answer(s.caller(process).Acquire(s.Context(), s.claim(process, owner, queue)))
}

func (s *storeSubject) renew(process int, owner string, handed bool) answer {
	c := s.claim(process, owner, true)
	c.ByHandoff = handed
	gs, err := s.caller(process).Renew(s.Context(), []store.Claim{c})
	if err != nil || len(gs) != 1 {
		s.Fatalf("Renew: %v, %v", gs, err)
	}
	return s.answer(gs[0], nil)
}

func (s *storeSubject) release(process int, owner string, undo bool) answer {
	c := s.claim(process, owner, true)
	if undo {
		c.TombstoneTTL = time.Minute
	}
	return s.answer(s.caller(process).Release(s.Context(), c))
}

func (s *storeSubject) expire() { s.expireKey(s.key) }

func (s *storeSubject) nextGrant(process int) (owner string, fence uint64) {
	select {
	case e := <-s.processes[process].events:
		return ownerOf(e.Owner), e.Fence
	case <-time.After(10 * time.Second):
		return "", 0
	}
}

func (s *storeSubject) unexpectedGrants() (odd []string) {
	for _, p := range s.processes {
		for len(p.events) > 0 {
			odd = append(odd, ownerOf((<-p.events).Owner))
		}
	}
	return odd
}

// TestHistoriesSeeEachRule leaves out one rule of the model after the other. lockertest's Store must
// then differ from the model, because otherwise the histories detect too little.
func TestHistoriesSeeEachRule(t *testing.T) {
	t.Parallel()
	for _, r := range []rule{"", tombstones, noOvertaking, lapsedLoses, deadAreLeft, confirms, leaverHands} {
		t.Run(string(r), func(t *testing.T) {
			differs := false
			history := rapid.Custom(func(t *rapid.T) bool {
				defer func() { differs = differs || recover() != nil }()
				play(t, inMemory(t), newModel(r))
				return true
			})
			for seed := 0; seed < 2000 && !differs; seed++ {
				history.Example(seed)
			}
			if differs != (r != "") {
				t.Errorf("a history sees it: %v", differs)
			}
		})
	}
}
