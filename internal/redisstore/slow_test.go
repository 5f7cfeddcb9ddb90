package redisstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// far is a process whose network is slow.
type far struct {
	*testing.T
	direct *redis.Client
	proxy  *chaos.Proxy
	near   *locker.Engine // a process with a fast network
	far    *locker.Engine
	asked  *atomic.Int32 // counts the acquires that the far process has sent
}

func newFar(t *testing.T) *far {
	t.Helper()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	spy := &acquires{Client: through(t, server, proxy)}
	return &far{t, server.Client(t), proxy, newSingle(t, server.Client(t)), newSingle(t, spy), &spy.n}
}

// acquires counts the acquires that are sent through a client.
type acquires struct {
	*redis.Client
	n   atomic.Int32
	lag time.Duration // the delay of the answers to these acquires
}

func (a *acquires) Process(ctx context.Context, cmd redis.Cmder) error {
	words := cmd.Args()
	acquires := len(words) > 1 && words[1] == scriptSHA("acquire")
	if acquires {
		a.n.Add(1)
	}
	err := a.Client.Process(ctx, cmd)
	if acquires && a.lag > 0 {
		<-time.After(a.lag)
	}
	return err
}

// withinTheServers checks that the holder's lease ends before the server's lease ends.
func withinTheServers(t *testing.T, c *redis.Client, lease *locker.Lease) {
	t.Helper()
	here, there := lease.Expires(), c.PTTL(t.Context(), lease.Key()).Val()
	if latest := time.Now().Add(there + time.Millisecond); here.After(latest) { // by now, the lease may have less time left on the server than the answer said
		t.Errorf("the lease lives %v longer here than on the server, where it has %v left", here.Sub(latest), there)
	}
}

// When the message of a grant comes at once, the waiter has its lease without a call. When the
// message comes late, the waiter asks the server first.
func TestAGrantThatIsToldLateIsConfirmedByACall(t *testing.T) {
	t.Parallel()
	f := newFar(t)
	inTime := 0
	for n := range 12 {
		key, late := fmt.Sprint("slow:", n), n%4 == 3
		holder := acquire(t, f.near, locker.Rule{Key: key})
		w := queues(t, f.far, locker.Rule{Key: key, TTL: time.Minute}, f.direct)
		asked := f.asked.Load()
		var hole *chaos.Fault
		if late {
			hole = f.proxy.BlackHole()
		}
		release(t, holder)
		if late {
			hole.Await(t, 1)
			<-time.After(200 * time.Millisecond) // how late the message is
			w.WaitsStill()
			hole.Lift()
		}
		lease := w.Granted(time.Second)
		switch again := f.asked.Load() > asked; {
		case late && !again:
			t.Error("the message came late, and the server was not asked")
		case !late && !again:
			inTime++
		}
		if i, err := f.near.Inspect(t.Context(), key); err != nil || i.Fence != lease.Fence() {
			t.Errorf("the server shows %+v %v, the lease has fence %d", i, err, lease.Fence())
		}
		withinTheServers(t, f.direct, lease)
		release(t, lease)
	}
	if inTime == 0 { // one of nine messages in time is enough, because on a slow machine some messages are late anyway
		t.Error("positive control: a waiter with a message in time has asked the server")
	}
	nothingLeftBut(t, f.direct)
}

// The message comes so late that the server has granted the key to another token. Such an old
// message has no effect.
func TestAGrantThatIsToldTooLateIsNone(t *testing.T) {
	t.Parallel()
	f := newFar(t)
	const key = "slow:lapsed"
	holder := acquire(t, f.near, locker.Rule{Key: key})
	w := queues(t, f.far, locker.Rule{Key: key, TTL: time.Minute}, f.direct)
	// The waiter's TTL differs from the holder's, so the waiter and the holder do not share a
	// lease.
	next := queues(t, f.near, locker.Rule{Key: key, TTL: time.Minute}, f.direct)
	hole := f.proxy.BlackHole()
	release(t, holder)
	lease := next.Granted(3250 * time.Millisecond)
	w.WaitsStill()
	hole.Lift()
	eventually(t, "it waits again", func() bool { return inLine(t, f.direct, key) == 1 })
	w.WaitsStill()
	if i, err := f.near.Inspect(t.Context(), key); err != nil || i.Fence != lease.Fence() || lease.Context().Err() != nil {
		t.Fatalf("the key was taken from its holder: %+v %v", i, err)
	}
	if hole.Hits() == 0 {
		t.Error("positive control: nothing was held up")
	}
	release(t, lease)
	last := w.Granted(0)
	if last.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", last.Fence(), lease.Fence())
	}
	release(t, last)
	// The last message can come before the answer to an acquire of the same token. The release of
	// this token then leaves a tombstone for a while, so that the acquire takes nothing if the
	// server executes it later.
	nothingLeftBut(t, f.direct, "latchkit:x:")
}

// The answer to the acquire that queued the waiter was slow. If the waiter counted the TTL from the
// arrival of the message, it would use the lease after its end.
func TestALeaseCountsFromBeforeASlowAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	spy := &acquires{Client: server.Client(t), lag: 80 * time.Millisecond}
	near, slow := newSingle(t, client), newSingle(t, spy)
	for n := range 5 {
		key := fmt.Sprint("slow:answer:", n)
		holder := acquire(t, near, locker.Rule{Key: key})
		w := queues(t, slow, locker.Rule{Key: key, TTL: time.Minute}, client)
		if n > 0 { // for n = 0, the message of the grant comes before the answer to the acquire
			<-time.After(2 * spy.lag)
		}
		release(t, holder)
		lease := w.Granted(time.Second)
		withinTheServers(t, client, lease)
		release(t, lease)
	}
	if spy.n.Load() < 5 {
		t.Errorf("positive control: %d answers were slow", spy.n.Load())
	}
}

// When the server restarts without its data, a process loses all its leases at once. The notes
// about these leases are read at the same time, and not in one round trip after another.
func TestNotesAboutManyLostLeasesAreReadTogether(t *testing.T) {
	t.Parallel()
	const trip, many = 50 * time.Millisecond, 100
	client := redistest.Start(t).Client(t)
	var trips atomic.Int32
	client.AddHook(slowTrips{trip, &trips})
	var claims []store.Claim
	for i := range many {
		claims = append(claims, store.Claim{Key: fmt.Sprint("lost:", i), Owner: rand.Text(), TTL: time.Minute})
	}
	began := time.Now()
	grants, err := locktest.SingleStore(client).Renew(t.Context(), claims)
	took := time.Since(began)
	if err != nil || took > many*trip/2 {
		t.Errorf("%d lost leases took %v, in %d trips of %v: %v", many, took, trips.Load(), trip, err)
	}
	for i, g := range grants {
		if g.State != store.NotOurs {
			t.Errorf("%s: %+v", claims[i].Key, g)
		}
	}
	if trips.Load() < 2 {
		t.Errorf("positive control: %d trips", trips.Load())
	}
}

// slowTrips makes each round trip of a client slow.
type slowTrips struct {
	delay time.Duration
	n     *atomic.Int32
}

func (s slowTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slowTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.n.Add(1)
		<-time.After(s.delay)
		return next(ctx, cmd)
	}
}

func (s slowTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.n.Add(1)
		<-time.After(s.delay)
		return next(ctx, cmds)
	}
}
