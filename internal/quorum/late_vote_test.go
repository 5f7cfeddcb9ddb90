package quorum_test

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// straggler is a client whose first release of a vote gets no answer. The server executes this
// release when the test calls the function in the field late.
type straggler struct {
	*redis.Client
	sha string

	mu     sync.Mutex
	late   func() error
	second chan struct{} // closed when the release was repeated
}

func (s *straggler) Process(ctx context.Context, cmd redis.Cmder) error {
	args := cmd.Args()
	if len(args) < 2 || args[0] != "evalsha" || args[1] != any(s.sha) {
		return s.Client.Process(ctx, cmd)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late == nil {
		s.late = func() error { return s.Client.Do(context.Background(), args...).Err() }
		return os.ErrDeadlineExceeded
	}
	err := s.Client.Process(ctx, cmd)
	select {
	case <-s.second:
	default:
		close(s.second)
	}
	return err
}

// A vote is given back after a lost round. Then the node may vote for the same token again, while
// the first withdrawal of the old vote is still under way.
func TestALateGiveBackTakesNoLaterVote(t *testing.T) {
	servers := enrolled(t, 3)
	direct := clientsOf(t, servers)
	if err := direct[2].Do(t.Context(), "script", "load", quorum.ScriptTexts["release"]).Err(); err != nil {
		t.Fatal(err)
	}
	slow := &straggler{Client: servers[2].Client(t), sha: scriptSHA("release"), second: make(chan struct{})}
	s := quorumStore([]locker.Client{servers[0].Client(t), servers[1].Client(t), slow}, nodeTimeout)
	checkSettled(t, s)

	const foreign = "somebody else"
	for _, c := range direct[:2] {
		if err := c.Set(t.Context(), "a", foreign, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
	}
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Busy {
		t.Fatalf("%v %v while two nodes are taken", g.State, err)
	}
	<-slow.second
	if err := direct[0].Del(t.Context(), "a").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token has two votes", func() bool {
		g, err := s.Acquire(t.Context(), claim)
		return err == nil && g.State == store.Granted
	})
	if err := slow.late(); err != nil {
		t.Fatal(err)
	}
	if direct[2].Exists(t.Context(), "a").Val() != 1 {
		t.Error("a release of the vote before has taken one that counts")
	}
	if err := direct[1].Del(t.Context(), "a").Err(); err != nil {
		t.Fatal(err)
	}
	other := store.Claim{Key: "a", Owner: "UUUUUUUUUUUUUUUUUUUUUUUUUU", TTL: 30 * time.Second, FenceCount: 1}
	if g, err := s.Acquire(t.Context(), other); err == nil && g.State == store.Granted {
		t.Error("two hold the key")
	}
	for _, c := range []store.Claim{claim, other} {
		if _, err := s.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
}

// An acquire may be undone before it has asked any node. In this test, all nodes have refused its
// token before, so no node needs an undo.
func TestAnAcquireThatBeginsAfterItsUndoTakesNothing(t *testing.T) {
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	s := openQuorum(t, cs)
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	for _, c := range cs { // make each server full, so that it refuses the acquire
		if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := s.Acquire(t.Context(), claim); err == nil {
		t.Fatalf("%v, on full servers", g.State)
	}
	undo := claim
	undo.TombstoneTTL = time.Minute
	if _, err := s.Release(t.Context(), undo); err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		if err := c.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Undone {
		t.Errorf("%v %v after the undo", g.State, err)
	}
	for i, c := range cs {
		if c.Exists(t.Context(), "a").Val() != 0 {
			t.Errorf("node %d has given its vote", i)
		}
	}
}

// latecomer is a client that sends its request for a vote only when the channel late is closed.
type latecomer struct {
	*redis.Client
	sha   string
	asked chan struct{}
	late  chan struct{}
}

func (l *latecomer) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == any(l.sha) {
		close(l.asked)
		<-l.late
	}
	return l.Client.Process(ctx, cmd)
}

// Two nodes have granted and released the lease when Close begins. The vote of the third node is
// still on its way.
func TestCloseReleasesAVoteThatComesLate(t *testing.T) {
	servers := enrolled(t, 3)
	direct := servers[2].Client(t)
	if err := direct.Do(t.Context(), "script", "load", quorum.ScriptTexts["vote"]).Err(); err != nil {
		t.Fatal(err)
	}
	slow := &latecomer{
		Client: servers[2].Client(t), sha: scriptSHA("vote"), asked: make(chan struct{}), late: make(chan struct{}),
	}
	s := quorumStore([]locker.Client{servers[0].Client(t), servers[1].Client(t), slow}, nodeTimeout)
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
		t.Fatalf("%v %v", g.State, err)
	}
	if g, err := s.Release(t.Context(), claim); err != nil || g.State != store.Released {
		t.Fatalf("%v %v", g.State, err)
	}
	<-slow.asked
	closed := make(chan error, 1)
	go func() { closed <- s.(calls.Steps).Close(t.Context()) }()
	select {
	case err := <-closed:
		t.Fatalf("Close returned %v while a vote was on its way", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(slow.late)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if direct.Exists(t.Context(), "a").Val() != 0 {
		t.Error("the late vote keeps the key until the lease's end")
	}
}

// deafNode is a client that loses the first requests of one script.
type deafNode struct {
	*redis.Client
	sha  string
	lose atomic.Int32 // number of requests that are still to be lost
}

func (d *deafNode) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == any(d.sha) && d.lose.Add(-1) >= 0 {
		cmd.SetErr(os.ErrDeadlineExceeded)
		return os.ErrDeadlineExceeded
	}
	return d.Client.Process(ctx, cmd)
}

// The third vote of a holder comes while an operator revokes the lease, and another node misses the
// revocation. These two votes must not keep the lease alive.
func TestAVoteThatComesDuringARevocationKeepsNoLease(t *testing.T) {
	servers := enrolled(t, 3)
	for _, script := range []string{"vote", "release"} {
		for _, c := range clientsOf(t, servers) {
			if err := c.Do(t.Context(), "script", "load", quorum.ScriptTexts[script]).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	slow := &latecomer{
		Client: servers[2].Client(t), sha: scriptSHA("vote"), asked: make(chan struct{}), late: make(chan struct{}),
	}
	s := quorumStore([]locker.Client{servers[0].Client(t), servers[1].Client(t), slow}, lawPatience)
	checkSettled(t, s)
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	g, err := s.Acquire(t.Context(), claim)
	if err != nil || g.State != store.Granted {
		t.Fatalf("%v %v", g.State, err)
	}
	<-slow.asked

	deaf := &deafNode{Client: servers[0].Client(t), sha: scriptSHA("release")}
	deaf.lose.Store(1)
	held := &locktest.HeldBack{Client: servers[2].Client(t), Gate: make(chan struct{}), Arrived: new(sync.WaitGroup), SHA: scriptSHA("release")}
	held.Arrived.Add(1)
	operator := quorumStore([]locker.Client{deaf, servers[1].Client(t), held}, lawPatience)
	checkSettled(t, operator)
	revoked := make(chan error, 1)
	go func() {
		_, err := store.CapabilitiesOf(operator).Revoke(t.Context(), "a", g.Fence, "stuck")
		revoked <- err
	}()
	held.Arrived.Wait() // the operator has seen two votes, and its call to the third node is on its way
	close(slow.late)
	checkHeldByAll(t, servers[2:], "a")
	close(held.Gate)
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if deaf.lose.Load() != 0 {
		t.Fatal("no node has missed the revocation")
	}
	if gs, err := s.Renew(t.Context(), []store.Claim{claim}); err != nil || gs[0].State != store.Revoked {
		t.Errorf("a renewal after the revocation: %+v %v", gs, err)
	}
	if _, err := s.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}
}
