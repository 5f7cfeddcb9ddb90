package quorum_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// A vote is given back after a lost round. Then the node may vote for the same token again, while
// the first withdrawal of the old vote is still under way.
func TestALateGiveBackTakesNoLaterVote(t *testing.T) {
	direct, cs := meddlers(t, enrolled(t, 3))
	s := quorumStore(cs, nodeTimeout)
	checkSettled(t, s)
	var releases atomic.Int32
	late, second, ran := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	direct[2].setMeddle(func(script string, run func() error) error {
		if script != "release" {
			return run()
		}
		switch releases.Add(1) {
		case 1: // the server executes this release later
			go func() { <-late; ran <- run() }()
			return os.ErrDeadlineExceeded
		case 2:
			defer close(second)
		}
		return run()
	})

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
	<-second
	if err := direct[0].Del(t.Context(), "a").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token has two votes", func() bool {
		g, err := s.Acquire(t.Context(), claim)
		return err == nil && g.State == store.Granted
	})
	close(late)
	if err := <-ran; err != nil {
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

// comesLate holds the request for a vote back until the channel late is closed. The channel asked is
// closed when the request has come.
func comesLate(m *meddler) (asked, late chan struct{}) {
	asked, late = make(chan struct{}), make(chan struct{})
	m.setMeddle(func(script string, run func() error) error {
		if script == "vote" {
			close(asked)
			<-late
		}
		return run()
	})
	return asked, late
}

// Two nodes have granted and released the lease when Close begins. The vote of the third node is
// still on its way.
func TestCloseReleasesAVoteThatComesLate(t *testing.T) {
	ms, cs := meddlers(t, enrolled(t, 3))
	asked, late := comesLate(ms[2])
	s := quorumStore(cs, nodeTimeout)
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
		t.Fatalf("%v %v", g.State, err)
	}
	if g, err := s.Release(t.Context(), claim); err != nil || g.State != store.Released {
		t.Fatalf("%v %v", g.State, err)
	}
	<-asked
	closed := make(chan error, 1)
	go func() { closed <- s.(calls.Steps).Close(t.Context()) }()
	select {
	case err := <-closed:
		t.Fatalf("Close returned %v while a vote was on its way", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(late)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if ms[2].Exists(t.Context(), "a").Val() != 0 {
		t.Error("the late vote keeps the key until the lease's end")
	}
}

// The third vote of a holder comes while an operator revokes the lease, and another node misses the
// revocation. These two votes must not keep the lease alive.
func TestAVoteThatComesDuringARevocationKeepsNoLease(t *testing.T) {
	servers := enrolled(t, 3)
	ms, cs := meddlers(t, servers)
	asked, late := comesLate(ms[2])
	s := quorumStore(cs, lawPatience)
	checkSettled(t, s)
	claim := store.Claim{Key: "a", Owner: "TTTTTTTTTTTTTTTTTTTTTTTTTT", TTL: 30 * time.Second, FenceCount: 1}
	g, err := s.Acquire(t.Context(), claim)
	if err != nil || g.State != store.Granted {
		t.Fatalf("%v %v", g.State, err)
	}
	<-asked

	operators, cs := meddlers(t, servers)
	var missed atomic.Bool
	operators[0].setMeddle(func(script string, run func() error) error {
		if script == "release" && missed.CompareAndSwap(false, true) {
			return os.ErrDeadlineExceeded
		}
		return run()
	})
	arrived, gate := make(chan struct{}), make(chan struct{})
	operators[2].setMeddle(func(script string, run func() error) error {
		if script == "release" {
			close(arrived)
			<-gate
		}
		return run()
	})
	operator := quorumStore(cs, lawPatience)
	checkSettled(t, operator)
	revoked := make(chan error, 1)
	go func() {
		_, err := store.CapabilitiesOf(operator).Revoke(t.Context(), "a", g.Fence, "stuck")
		revoked <- err
	}()
	<-arrived // the operator has seen two votes, and its call to the third node is on its way
	close(late)
	checkHeldByAll(t, servers[2:], "a")
	close(gate)
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if !missed.Load() {
		t.Fatal("no node has missed the revocation")
	}
	if gs, err := s.Renew(t.Context(), []store.Claim{claim}); err != nil || gs[0].State != store.Revoked {
		t.Errorf("a renewal after the revocation: %+v %v", gs, err)
	}
	if _, err := s.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}
}
