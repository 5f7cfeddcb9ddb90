package quorum_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker"
)

// A node whose clock steps ahead drops leases too early. When its clock is right again, nothing in
// the node's own marker would show the step. So a client that has seen the step writes a marker
// whose wait has not begun, and the node waits when its clock is right.
func TestAClockThatWasSeenToStepIsNotBelievedAtOnce(t *testing.T) {
	t.Parallel()
	opts := []locker.QuorumOption{locker.WithTTL(3 * time.Second), locker.WithMaxTTL(3 * time.Second), locker.WithNodeTimeout(500 * time.Millisecond), locker.WithMaxSkew(100 * time.Millisecond)}
	servers := enrolled(t, 3, opts...)
	cs := clientsOf(t, servers)
	clock := &wrongClock{Client: cs[0]}
	other := newRedlock(t, replaceNodes(cs, map[int]locker.Client{0: clock}), opts...)
	release(t, acquire(t, other, locker.Rule{Key: "warm"}))
	lease := acquire(t, newRedlock(t, replaceNodes(cs, map[int]locker.Client{2: deadNode(t)}), opts...), locker.Rule{Key: "x"})
	clock.offset.Store(int64(time.Minute))
	cs[0].Del(t.Context(), "x") // a lease of 3 s has ended because of the step
	eventually(t, "the client has seen the step", func() bool {
		if l, err := other.Acquire(t.Context(), locker.Rule{Key: "y", Wait: locker.NoWait}); err == nil {
			release(t, l)
		}
		return strings.Contains(cs[0].Get(t.Context(), "latchkit:node").Val(), "/9999999999999999/")
	})
	clock.offset.Store(0)
	if _, err := other.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait}); err == nil && lease.Context().Err() == nil {
		t.Errorf("two hold the key: the first has %v left", time.Until(lease.Expires()))
	}
	eventually(t, "the node votes again", func() bool {
		if l, err := other.Acquire(t.Context(), locker.Rule{Key: "y", Wait: locker.NoWait}); err == nil {
			release(t, l)
		}
		return allVote(t, other)
	})
}

// Between a grant and the next request, a clock may move from one end of the range that WithMaxSkew
// allows to the other end.
func TestAStepWithinTheSkewEndsNoLease(t *testing.T) {
	t.Parallel()
	const ttl, skew = time.Second, 500 * time.Millisecond
	opts := []locker.QuorumOption{locker.WithTTL(ttl), locker.WithoutRenewal(), locker.WithNodeTimeout(500 * time.Millisecond)}
	servers := enrolled(t, 3, opts...)
	cs := clientsOf(t, servers)
	other := redlockOn(t, servers, opts...)
	release(t, acquire(t, other, locker.Rule{Key: "warm"}))
	lease := acquire(t, newRedlock(t, replaceNodes(cs, map[int]locker.Client{2: deadNode(t)}), opts...), locker.Rule{Key: "x"})
	left := cs[0].PTTL(t.Context(), "x").Val() - 2*skew + 20*time.Millisecond // as if the clock were set ahead
	cs[0].PExpire(t.Context(), "x", left)
	for lease.Context().Err() == nil {
		if next, err := other.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait}); err == nil {
			if left := time.Until(lease.Expires()); lease.Context().Err() == nil && left > 0 {
				t.Errorf("two hold the key: the first has %v left", left)
			}
			release(t, next)
			return
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // the pause between two checks
	}
}

// If votes have different fences, a second round trip raises them to one fence, which is larger
// than every fence that a node has given.
func TestNodesThatDisagreeAboutTheFenceAgreeInASecondRound(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	recorder := newRounds()
	l := newRedlock(t, clients(cs), locker.WithObserver(recorder))
	lease := acquire(t, l, locker.Rule{Key: "a"})
	release(t, lease)
	if recorder.last() != 1 {
		t.Errorf("%d round trips, want 1", recorder.last())
	}
	ahead := lease.Fence() + 60_000_000
	for i, c := range cs[:2] { // as if the first two nodes had made grants without the third node
		if err := c.Set(t.Context(), redisstore.CounterKey("a"), ahead+uint64(i), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	before := lease.Fence()
	seconds := 0
	for range 20 {
		lease = acquire(t, l, locker.Rule{Key: "a"})
		if lease.Fence() <= before {
			t.Fatalf("fence %d after %d", lease.Fence(), before)
		}
		before = lease.Fence()
		if recorder.last() > 1 {
			seconds++
			shown := 0
			for _, c := range cs {
				if strings.Contains(c.Get(t.Context(), "a").Val(), fmt.Sprintf(":%d:", before)) {
					shown++
				}
			}
			if shown < 2 {
				t.Errorf("the fence %d lies on %d nodes", before, shown)
			}
		}
		release(t, lease)
	}
	if seconds == 0 || before <= ahead {
		t.Errorf("%d second rounds; fence %d, a node was at %d", seconds, before, ahead)
	}
}

func TestASingleServersClockIsNotBelievedAgainstTheOthers(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	wrong := &wrongClock{Client: cs[0]}
	wrong.offset.Store(int64(time.Hour))
	l := newRedlock(t, []locker.Client{wrong, cs[1], cs[2]}, locker.WithNodeTimeout(100*time.Millisecond))
	release(t, acquire(t, l, locker.Rule{Key: "warm", Wait: 5 * time.Second}))
	eventually(t, "an answer has another time", func() bool {
		release(t, acquire(t, l, locker.Rule{Key: "a", Wait: 5 * time.Second}))
		return wrong.changed.Load() > 0
	})
	servers[2].Kill() // now a quorum needs the vote of the first node
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: 300 * time.Millisecond})
	wantErr(t, err, "b", locker.ErrQuorum)
	if text := err.Error(); !strings.Contains(text, "clock differs by 1h0m") && !strings.Contains(text, "clock differs by 59m") &&
		!strings.Contains(text, "clock was wrong") && !strings.Contains(text, "may have forgotten") { // the first reading was an answer that wrongClock does not change
		t.Error(err)
	}
	for i := range 2 {
		waitUntilEmpty(t, servers[i])
	}
}

// wrongClock shows the times of a server as if its clock were set wrong.
type wrongClock struct {
	*redis.Client
	offset  atomic.Int64 // in ns; 0: the clock is right
	changed atomic.Int32
}

func (w *wrongClock) Process(ctx context.Context, cmd redis.Cmder) error {
	err := w.Client.Process(ctx, cmd)
	if answer, ok := cmd.(interface {
		Val() string
		SetVal(string)
	}); ok && err == nil {
		words := strings.SplitN(answer.Val(), " ", 3)
		for i, word := range words[:min(len(words), 2)] { // the time is the first word or the second
			if at, err := strconv.ParseInt(word, 10, 64); err == nil && at > 1e15 && at < 1e17 && w.offset.Load() != 0 {
				words[i] = strconv.FormatInt(at+time.Duration(w.offset.Load()).Microseconds(), 10)
				answer.SetVal(strings.Join(words, " "))
				w.changed.Add(1)
				break
			}
		}
	}
	return err
}
