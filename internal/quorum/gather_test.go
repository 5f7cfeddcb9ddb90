package quorum

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// onGoroutine turns call, which waits for its answer, into a function for gather, which runs each
// call on a new goroutine.
func onGoroutine(call func(n *node) (int, error)) func(n *node, onAnswer func(int, error)) {
	return func(n *node, onAnswer func(int, error)) { go func() { onAnswer(call(n)) }() }
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
			gatherAll(q, q.patience, onGoroutine(func(n *node) (int, error) {
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
