package quorum_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
