package quorum_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// meddler is a client whose scripts a test can delay. The test can also let a script fail, before
// or after it has run.
type meddler struct {
	*redis.Client
	names map[any]string

	mu     sync.Mutex
	meddle func(script string, run func() error) error
}

// setMeddle makes f be called in place of each script. The function f gets the script's name and a
// function that executes the script. If f is nil, scripts run as usual.
func (m *meddler) setMeddle(f func(script string, run func() error) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meddle = f
}

func (m *meddler) Process(ctx context.Context, cmd redis.Cmder) error {
	m.mu.Lock()
	f := m.meddle
	m.mu.Unlock()
	name, ok := m.names[cmd.Args()[min(1, len(cmd.Args())-1)]]
	if f == nil || !ok {
		return m.Client.Process(ctx, cmd)
	}
	err := f(name, func() error { return m.Client.Process(context.WithoutCancel(ctx), cmd) })
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

func meddlerOf(t testing.TB, s *redistest.Server) *meddler {
	t.Helper()
	m := &meddler{Client: s.Client(t), names: make(map[any]string)}
	loadScripts(t, m.Client)
	for name := range quorum.ScriptTexts {
		m.names[scriptSHA(name)] = name
	}
	return m
}

// meddlers makes a meddler for each of three servers. The servers may vote at once.
func meddlers(t testing.TB, servers []*redistest.Server) (ms []*meddler, cs []locker.Client) {
	t.Helper()
	for _, s := range servers {
		m := meddlerOf(t, s)
		ms, cs = append(ms, m), append(cs, m)
	}
	return ms, cs
}

func claimOn(key string) store.Claim {
	return store.Claim{Key: key, Owner: rand.Text(), TTL: 30 * time.Second, FenceCount: 1}
}

// Only one node has a done mark. A quorum of the other two nodes does not find this mark, so the
// work would be done again. Therefore a repeated Complete must not report success because of this
// mark.
func TestWorkIsNotDoneBecauseOneNodeSaysSo(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	ms, cs := meddlers(t, servers)
	s := quorumStore(cs, nodeTimeout)
	checkSettled(t, s)
	claim := claimOn("a")
	claim.OnceFor = time.Hour
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
		t.Fatal(g.State, err)
	}
	for _, m := range ms {
		eventually(t, "it has voted", func() bool { return m.Exists(t.Context(), "a").Val() == 1 })
	}
	for _, m := range ms[1:] {
		m.setMeddle(func(name string, run func() error) error {
			if name == "release" {
				return os.ErrDeadlineExceeded
			}
			return run()
		})
	}
	complete := claim
	complete.Complete = true
	if g, err := s.Release(t.Context(), complete); err == nil {
		t.Fatalf("%v by one node of three", g.State)
	}
	for _, m := range ms[1:] {
		m.setMeddle(nil)
		if err := m.Del(t.Context(), "a").Err(); err != nil { // as if the lease had expired
			t.Fatal(err)
		}
	}
	g, err := s.Release(t.Context(), complete)
	var again store.Claim
	eventually(t, "nodes without the mark are a quorum", func() bool {
		again = claimOn("a")
		again.OnceFor = time.Hour
		next, err := s.Acquire(t.Context(), again)
		return err == nil && next.State == store.Granted
	})
	if err == nil && (g.State == store.Released || g.State == store.Done) {
		t.Errorf("the release reports that the work is done (%v), and the next waiter is granted it as well", g.State)
	}
	if _, err := s.Release(t.Context(), again); err != nil {
		t.Error(err)
	}
}

// An abandoned acquire continues until its round ends. Its repetition is refused meanwhile, so that
// it gives no vote back that the other one counts. Afterwards the token can be asked for again.
func TestATokenHasOneAcquireAtATime(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	s := quorumStore(cs, lawPatience)
	checkSettled(t, s)
	asked, answer := make(chan struct{}, 3), make(chan struct{})
	for _, m := range ms {
		m.setMeddle(func(script string, run func() error) error {
			err := run()
			if script == "vote" {
				asked <- struct{}{}
				<-answer
			}
			return err
		})
	}
	claim := claimOn("a")
	first := make(chan store.Grant, 1)
	go func() {
		g, _ := s.Acquire(context.WithoutCancel(t.Context()), claim)
		first <- g
	}()
	for range ms {
		<-asked
	}
	var no *store.Refusal
	if g, err := s.Acquire(t.Context(), claim); !errors.As(err, &no) || !no.Temporary {
		t.Errorf("a repetition: %v, %v", g.State, err)
	}
	close(answer)
	g := <-first
	for _, m := range ms {
		m.setMeddle(nil)
	}
	if g.State != store.Granted {
		t.Fatal(g.State)
	}
	if again, err := s.Acquire(t.Context(), claim); err != nil || again.State != store.Granted || again.Fence != g.Fence {
		t.Errorf("afterwards: %+v, %v, want the fence %d", again, err, g.Fence)
	}
	if _, err := s.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}
}

// A lost round gives its vote back. Until the node has confirmed this, it is not asked again: the late
// withdrawal could take a vote that counts.
func TestANodeIsNotAskedBeforeItHasConfirmed(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	s := quorumStore(cs, nodeTimeout)
	checkSettled(t, s)
	for _, m := range ms[:2] {
		m.Set(t.Context(), "a", "another program", time.Minute)
	}
	withdrawn, gate := make(chan struct{}, 10), make(chan struct{})
	var votes atomic.Int32
	ms[2].setMeddle(func(script string, run func() error) error {
		switch script {
		case "vote":
			votes.Add(1)
		case "release":
			withdrawn <- struct{}{}
			<-gate
		}
		return run()
	})
	claim := claimOn("a")
	ask := func() {
		t.Helper()
		if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Busy {
			t.Fatal(g.State, err)
		}
	}
	ask()
	<-withdrawn
	ask()
	if n := votes.Load(); n != 1 {
		t.Errorf("the node was asked %d times before it has confirmed the withdrawal", n)
	}
	close(gate)
	eventually(t, "it is asked again", func() bool { ask(); return votes.Load() > 1 })
	if _, err := s.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}
}

// When the votes are split so that no contender can have won, the same call asks again at once. A
// caller that got "busy" would wait longer.
func TestVotesThatWereSplitAreCollectedAgainAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holders     []string
		down        bool // the last node is down
		secondRound bool
	}{
		"three contenders":                   {holders: []string{"x", "y"}, secondRound: true},
		"three others":                       {holders: []string{"x", "y", "z"}, secondRound: true},
		"two contenders, and a node is down": {holders: []string{"x"}, down: true, secondRound: true},
		"there is a holder":                  {holders: []string{"x", "x"}},
		"there is a holder, a node is down":  {holders: []string{"x", "x"}, down: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := enrolled(t, 3)
			cs := clients(clientsOf(t, servers))
			direct := clientsOf(t, servers)
			if c.down {
				cs[2] = deadNode(t)
			}
			s := quorumStore(cs, nodeTimeout)
			checkSettled(t, s)
			for i, holder := range c.holders {
				if err := direct[i].Set(t.Context(), "a", holder, time.Minute).Err(); err != nil {
					t.Fatal(err)
				}
			}
			g, err := s.Acquire(t.Context(), claimOn("a"))
			// The second round may find too few nodes, because the vote of the first round is still
			// being given back.
			if g.State == store.Granted || err != nil && !c.secondRound || g.Rounds > 1 != c.secondRound {
				t.Errorf("%v %v after %d rounds", g.State, err, g.Rounds)
			}
		})
	}
}

// Two nodes have voted, with different fences, so the vote with the lower fence must be raised. If
// this vote has expired, there is no grant. If its node does not answer, the result must not claim
// that there is no grant.
func TestAVoteThatWasNotRaisedDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent  bool
		unclear bool
	}{
		"it has run out":           {},
		"its node does not answer": {silent: true, unclear: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ms, cs := meddlers(t, enrolled(t, 3))
			cs[2] = deadNode(t)
			s := quorumStore(cs, 200*time.Millisecond)
			checkSettled(t, s)
			// The counter of one node is an hour ahead of its clock. So the votes of every later
			// round have different fences, and one of them must be raised.
			ahead := time.Now().Add(time.Hour).UnixMicro()
			if err := ms[0].Set(t.Context(), redisstore.CounterKey("a"), ahead, 0).Err(); err != nil {
				t.Fatal(err)
			}
			var asked sync.Once
			confirming, ended := make(chan struct{}), make(chan struct{})
			ms[1].setMeddle(func(script string, run func() error) error {
				if script == "confirm" {
					asked.Do(func() { close(confirming) })
					if c.silent {
						<-ended
					} else if err := ms[1].Del(t.Context(), "a").Err(); err != nil {
						return err
					}
				}
				return run()
			})
			claim := claimOn("a")
			g, err := s.Acquire(t.Context(), claim)
			close(ended)
			select {
			case <-confirming:
			default:
				t.Error("positive control: nothing was raised")
			}
			var no *store.Refusal
			if g.State == store.Granted || c.unclear && (err == nil || errors.As(err, &no)) {
				t.Errorf("%v %v", g.State, err)
			}
			eventually(t, "it is released, although a node was late", func() bool {
				_, err := s.Release(t.Context(), claim)
				return err == nil
			})
		})
	}
}
