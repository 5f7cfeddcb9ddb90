package quorum

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
)

// onGoroutine turns call, which waits for its answer, into a function begin for fanOut, which runs
// each call on a new goroutine.
func onGoroutine(call func(n *node) (int, error)) func(n *node, answered func(int, error)) {
	return func(n *node, answered func(int, error)) { go func() { answered(call(n)) }() }
}

// Most answers do not wake a caller that waits for a quorum. But each answer that may decide the
// step must wake the caller. In a bubble, a missing wake-up shows as a wait until the step's time
// is over.
func TestWhoeverWaitsForAQuorumIsWokenByWhatMayDecide(t *testing.T) {
	no := errors.New("no")
	for _, c := range []struct {
		name    string
		late    nodes   // the nodes that have not answered an earlier call in time
		targets nodes   // the nodes that are asked
		replies []error // the answers of the nodes, in their order, a millisecond apart; nodes without an answer here hang
		quiet   bool
		want    int           // number of answers that together wake the caller
		limit   time.Duration // the time within which these answers come
	}{
		{name: "three of five agree", targets: 31, replies: []error{nil, nil, nil}, quiet: true, want: 3, limit: 3 * time.Millisecond},
		{name: "what three say does not decide", targets: 31, replies: []error{nil, nil, nil, nil, nil}, quiet: true, want: 5, limit: 5 * time.Millisecond},
		{name: "one objects", targets: 31, replies: []error{nil, no}, quiet: true, want: 2, limit: 2 * time.Millisecond},
		{name: "one objects first", targets: 31, replies: []error{no, nil}, quiet: true, want: 2, limit: 2 * time.Millisecond},
		{name: "only two are asked", targets: 3, replies: []error{nil, nil}, quiet: true, want: 2, limit: 2 * time.Millisecond},
		{name: "of those that are asked two are late", late: 24, targets: 30, replies: []error{nil, nil}, quiet: true, want: 2, limit: 2 * time.Millisecond},
		{name: "all that are asked are late", late: 31, targets: 31, replies: []error{nil}, quiet: true, want: 1, limit: time.Millisecond},
		{name: "no answer is quiet", targets: 31, replies: []error{nil}, want: 1, limit: time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &quorum{need: 3, patience: time.Second}
				for i := range 5 {
					n := &node{index: i}
					if c.late.has(i) {
						n.failed.Store(fewFailures)
					}
					q.nodes = append(q.nodes, n)
				}
				hangs := make(chan struct{})
				turns := make(map[int]int)
				for n := range q.eachNode(c.targets) {
					turns[n.index] = len(turns)
				}
				quiet := func(_ int, err error) bool { return err == nil }
				if !c.quiet {
					quiet = nil
				}
				began := time.Now()
				f := fanOut(q, c.targets, quiet, onGoroutine(func(n *node) (int, error) {
					turn := turns[n.index]
					if turn >= len(c.replies) {
						<-hangs
						return 0, no
					}
					time.Sleep(time.Duration(turn+1) * time.Millisecond) //nolint:forbidigo // costs nothing in a bubble
					return turn, c.replies[turn]
				}))
				for i := range c.want {
					if a, ok := f.next(); !ok || a.value != i {
						t.Errorf("answer %d of %d: %+v, %v", i, c.want, a, ok)
					}
				}
				if waited := time.Since(began); waited != c.limit {
					t.Errorf("%d answers were taken after %v, and are there after %v", c.want, waited, c.limit)
				}
				f.stop()
				close(hangs)
			})
		})
	}
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
			f := fanOut(q, q.allNodes(), nil, onGoroutine(func(n *node) (int, error) {
				if n.index == 2 {
					return 0, last()
				}
				return 0, nil
			}))
			defer f.stop()
			for range q.nodes {
				if _, ok := f.next(); !ok {
					break
				}
			}
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
		if n := q.nodes[2]; n.failed.Load() != 0 || n.underWay.Load() != 0 {
			t.Errorf("%d calls failed, %d are under way", n.failed.Load(), n.underWay.Load())
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
	q.whole = newRoster(q, "")
	a := q.newAppeal(store.Claim{Key: "k", Owner: "o", TTL: time.Second, FenceCount: 64}, 1000, 1)
	texts := []string{"a", "b", "c"}
	first := a.callTo(q.nodes[0], &texts[0]).Words
	for i, n := range q.nodes {
		words := a.callTo(n, &texts[i]).Words
		if &words[0] == &a.call.Words[0] || &words[0] == &first[0] {
			t.Errorf("node %d is sent the words of another one", i)
		}
		if words[9] != first[9] {
			t.Errorf("node %d is sent texts of its own", i)
		}
		if got := *words[textIndex].(*string); got != texts[i] {
			t.Errorf("node %d is asked under %q, not %q", i, got, texts[i])
		}
		if got := *words[textIndex+4].(*string); got != "1063" {
			t.Errorf("the proposal's block of 64 from 1000 ends with %s", got)
		}
	}
}
