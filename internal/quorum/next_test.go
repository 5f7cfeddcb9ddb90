package quorum_test

import (
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// No node can grant the key to the next by itself, so a release does not ask for it, and does not
// wait for its votes.
func TestAReleaseDoesNotWaitForTheVotesOfNext(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	s := quorumStore(cs, locker.DefaultNodeTimeout)
	holder, next := claimOn("a"), claimOn("a")
	if g, err := s.Acquire(t.Context(), holder); err != nil || g.State != store.Granted {
		t.Fatal(g.State, err)
	}
	for _, m := range ms {
		eventually(t, "the node has voted", func() bool { return m.Exists(t.Context(), "a").Val() == 1 })
		m.with(func(script string, run func() error) error {
			if script == "quorum_vote" {
				t.Error("the release has asked for a vote")
			}
			return run()
		})
	}
	holder.Next = &next
	if g, err := s.Release(t.Context(), holder); err != nil || g.State != store.Released || g.Next != nil {
		t.Errorf("%v, Next %v, %v", g.State, g.Next, err)
	}
	if err := s.(store.Closer).Close(t.Context()); err != nil {
		t.Error(err)
	}
}
