package quorum

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
)

// onGoroutine turns call, which waits for its answer, into a function for gather, which runs each
// call on a new goroutine.
func onGoroutine(call func(n *node) (int, error)) func(n *node, answered func(int, error) bool) {
	return func(n *node, answered func(int, error) bool) { go func() { answered(call(n)) }() }
}

// While the other nodes are enough for a quorum, steps stop waiting for a bad node: after one call
// without an answer in time, or after three calls in a row that failed. When the node answers a
// call again, steps wait for this node again.
func TestANodeIsWaitedForAgainWhenItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quorum{need: 2, patience: time.Second}
		for i := range 3 {
			q.nodes = append(q.nodes, &node{index: i})
		}
		// waitsFor returns how long a step waits for all three nodes. The parameter last returns
		// the third node's answer.
		waitsFor := func(last func() error) time.Duration {
			began := time.Now()
			gather(q, q.patience, q.allNodes(), onGoroutine(func(n *node) (int, error) {
				if n.index == 2 {
					return 0, last()
				}
				return 0, nil
			}), func() bool { return false }, func(int, int, error) {})
			return time.Since(began)
		}
		hangs, no := make(chan struct{}), errors.New("no")
		slow := func(err error) func() error {
			return func() error {
				<-time.After(10 * time.Millisecond)
				return err
			}
		}
		for i, step := range []struct {
			last func() error
			want time.Duration
			then func()
		}{
			{last: slow(nil), want: 10 * time.Millisecond},
			{last: func() error { <-hangs; return nil }, want: time.Second},
			{last: slow(nil), want: 0, then: func() { close(hangs) }},
			{last: slow(no), want: 10 * time.Millisecond},
			{last: slow(no), want: 10 * time.Millisecond},
			{last: slow(nil), want: 10 * time.Millisecond},
			{last: slow(no), want: 10 * time.Millisecond},
			{last: slow(no), want: 10 * time.Millisecond},
			{last: slow(no), want: 10 * time.Millisecond},
			{last: slow(nil), want: 0},
			{last: slow(nil), want: 10 * time.Millisecond},
		} {
			if got := waitsFor(step.last); got != step.want {
				t.Errorf("step %d waited for %v, want %v", i, got, step.want)
			}
			if step.then != nil {
				step.then()
			}
			<-time.After(20 * time.Millisecond) // late answers arrive meanwhile
		}
		if n := q.nodes[2]; n.failed.Load() != 0 || n.behind.Load() != 0 || n.calls.Idle() != nil {
			t.Errorf("%d calls failed, %d are late", n.failed.Load(), n.behind.Load())
		}
	})
}

// unused is a client that sends nothing.
type unused struct{}

func (unused) Process(context.Context, redis.Cmder) error { return errors.New("unused") }

// All nodes that get the same request share its texts. But each node has its own copy of the list
// of words, because hooks of the node's client may change the list.
func TestNodesAreSentTheSameTexts(t *testing.T) {
	q := &quorum{need: 2, clocks: newClocks(3)}
	for i := range 3 {
		q.nodes = append(q.nodes, newNode(unused{}, i, q))
	}
	r := q.newRequest(store.Claim{Key: "k", Owner: "o", TTL: time.Second, FenceCount: 64})
	first := r.callTo(q.nodes[0].standing(0), false).Words
	for i, n := range q.nodes {
		words := r.callTo(n.standing(0), false).Words
		if &words[0] == &r.call.Words[0] || &words[0] == &first[0] {
			t.Errorf("node %d is sent the words of another one", i)
		}
		if words[8] != first[8] {
			t.Errorf("node %d is sent texts of its own", i)
		}
		if got := *words[11].(*string); got != strconv.FormatUint(r.fence+63, 10) {
			t.Errorf("the proposal's block of 64 from %d ends with %s", r.fence, got)
		}
		if checks := r.callTo(n.standing(0), true).Words; len(checks) != len(words)+1 {
			t.Errorf("%d words, and %d with a wait", len(words), len(checks))
		}
	}
}
