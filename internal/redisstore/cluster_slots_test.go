package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// answers counts the error replies of all nodes of a cluster, by their first word. It loses the first
// answer to the script lose.
type answers struct {
	lose string
	lost atomic.Bool
	mu   sync.Mutex
	n    map[string]int
}

// countErrors changes the options o so that the client counts the errors that its nodes answer,
// including the errors that the client handles by itself.
func (a *answers) countErrors(o *redis.ClusterOptions) {
	a.n = make(map[string]int)
	o.ReadTimeout = 10 * time.Second // longer than an acknowledgement may take
	o.NewClient = func(o *redis.Options) *redis.Client {
		node := redis.NewClient(o)
		node.AddHook(a)
		return node
	}
}

func (a *answers) note(err error) {
	if err == nil || err == redis.Nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	word, _, _ := strings.Cut(err.Error(), " ")
	a.n[word]++
}

func (a *answers) countOf(word string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[word]
}

func (a *answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		a.note(err)
		if a.lose != "" && err == nil && len(cmd.Args()) > 1 {
			if word := cmd.Args()[1]; (word == scriptSHA(a.lose) || word == redisstore.ScriptTexts[a.lose]) && a.lost.CompareAndSwap(false, true) {
				cmd.SetErr(io.EOF)
				return io.EOF
			}
		}
		return err
	}
}

func (a *answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			a.note(cmd.Err())
		}
		return err
	}
}

// listenersIn returns the number of subscribers that the node has in the slot of a key.
func listenersIn(t *testing.T, node *redistest.Server, key string) (n int) {
	t.Helper()
	tag := strings.TrimPrefix(redisstore.CounterKey(key), "latchkit:f:")
	c := node.Client(t)
	return len(c.PubSubShardChannels(t.Context(), "latchkit:s:"+tag+":*").Val()) + len(c.PubSubChannels(t.Context(), "latchkit:i:"+tag+":*").Val())
}

// While a slot moves, no script of several keys runs there. Nevertheless leases are held, renewed
// and released, and no caller notices the move.
func TestALeaseIsKeptAndGivenUpWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for name, carry := range map[string]bool{"before its keys are carried": false, "after its keys were carried": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "moves " + name
			from, i := cluster.Owner(int(redisstore.SlotOf(key)))
			to := cluster.Masters[(i+1)%3]
			var seen answers
			client := cluster.Client(t, seen.countErrors)
			l := newSingle(t, client)
			holder := acquire(t, l, locker.Rule{Key: key})
			head := queues(t, newSingle(t, client), locker.Rule{Key: key}, client)
			waiter := queues(t, newSingle(t, client), locker.Rule{Key: key}, client)

			move := cluster.Migrate(t, int(redisstore.SlotOf(key)), from, to)
			if carry && move.Carry() == 0 {
				t.Fatal("there was nothing to carry")
			}
			release(t, holder)
			if n := client.Exists(t.Context(), key).Val(); n != 0 {
				t.Error("the key is still there")
			}
			eventually(t, "a script is refused", func() bool { return seen.countOf("TRYAGAIN") > 0 })
			newcomer := asks(t, l, locker.Rule{Key: key + "{" + key + "}"}) // a key in the same slot
			// This pause is longer than the time that is allowed for a first answer. During the
			// pause, the newcomer must not get its lease.
			time.Sleep(1500 * time.Millisecond) //nolint:forbidigo // see above
			newcomer.WaitsStill()
			head.WaitsStill()
			waiter.WaitsStill()
			move.Finish()

			// The waiters may be served in any order, because some waiters may still be subscribing
			// at the other node when another waiter asks.
			served := make(chan error)
			for _, p := range []*pending{head, waiter, newcomer} {
				go func() {
					if <-p.Done; p.Err != nil {
						served <- p.Err
						return
					}
					served <- p.Lease.Release(context.Background())
				}()
			}
			for range 3 {
				if err := <-served; err != nil {
					t.Error(err)
				}
			}
			if n := seen.countOf("CROSSSLOT"); n > 0 {
				t.Errorf("%d scripts went across slots", n)
			}
		})
	}
}

// The release has freed the key when its answer is lost, so it is no loss that the next one finds nothing.
func TestAReleaseWhoseAnswerIsLostWhileItsSlotMovesIsNoLoss(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	from, i := cluster.Owner(int(redisstore.SlotOf("moves")))
	seen := answers{lose: "free"}
	holder := acquire(t, newSingle(t, cluster.Client(t, seen.countErrors)), locker.Rule{Key: "moves"})
	queues(t, newSingle(t, cluster.Client(t)), locker.Rule{Key: "moves"}, cluster.Client(t))
	move := cluster.Migrate(t, int(redisstore.SlotOf("moves")), from, cluster.Masters[(i+1)%3])
	ended := make(chan error)
	go func() { ended <- holder.Release(t.Context()) }()
	eventually(t, "the answer is lost", seen.lost.Load)
	move.Finish()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Some keys of a batch are on one node, and some on the other. The batch is refused, but each
// renewal alone succeeds.
func TestLeasesAreRenewedWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	var seen answers
	client := cluster.Client(t, seen.countErrors)
	l := newSingle(t, client)
	slot := int(redisstore.SlotOf("{batch}"))
	from, i := cluster.Owner(slot)
	var leases []*locker.Lease
	var half []string
	for n := range 60 { // so many leases that some of their renewals are due together
		rule := locker.Rule{Key: fmt.Sprintf("{batch}:%d", n), TTL: 3 * time.Second}
		leases = append(leases, acquire(t, l, rule))
		if n%2 == 0 {
			half = append(half, rule.Key)
		}
	}
	live := func() {
		t.Helper()
		before := make(map[*locker.Lease]time.Time)
		for _, l := range leases {
			before[l] = l.Expires()
		}
		for _, l := range leases {
			eventually(t, "it is renewed", func() bool {
				if l.Context().Err() != nil {
					t.Fatal(context.Cause(l.Context()))
				}
				return l.Expires().After(before[l])
			})
		}
	}
	move := cluster.Migrate(t, slot, from, cluster.Masters[(i+1)%3])
	live()
	if n := move.Carry(half...); n != len(half) {
		t.Fatalf("%d keys were carried", n)
	}
	live()
	live()
	if seen.countOf("TRYAGAIN") == 0 || seen.countOf("ASK") == 0 {
		t.Fatal("positive control: no batch was refused, or no call was sent to the target")
	}
	move.Finish()
	live()
	if command := from.AtomicMove(t); command != "" {
		cluster.MoveAtomically(t, command, slot, cluster.Masters[(i+1)%3], from)
		live()
	}
	for _, l := range leases {
		release(t, l)
	}
	if n := seen.countOf("CROSSSLOT"); n > 0 {
		t.Errorf("%d scripts went across slots", n)
	}
}

// While a slot moves, writers are renewed. The parts of readers, and permits, have several keys, so
// their renewals and releases wait until the slot has moved.
func TestReadersAndPermitsWaitUntilTheirSlotHasMoved(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	slot := int(redisstore.SlotOf("{parts}"))
	from, i := cluster.Owner(slot)
	readers, permits := locktest.ReadWriteStore(client), locktest.SemaphoreStore(client)
	claims := map[string]store.Claim{
		"a writer": {Key: "{parts}:written", Owner: rand.Text(), TTL: time.Minute},
		"a reader": {Key: "{parts}:read", Owner: rand.Text(), TTL: time.Minute, Mode: locker.Shared},
		"a permit": {Key: "{parts}:permit", Owner: rand.Text(), TTL: time.Minute, Limit: 2, Weight: 1},
	}
	backends := map[string]store.Store{"a writer": readers, "a reader": readers, "a permit": permits}
	for name, c := range claims {
		g, err := backends[name].Acquire(t.Context(), c)
		if err != nil || g.State != store.Granted {
			t.Fatal(name, g.State, err)
		}
		if c.Mode == locker.Shared {
			c.Fence = g.Fence
			claims[name] = c
		}
	}
	move := cluster.Migrate(t, slot, from, cluster.Masters[(i+1)%3])
	if n := move.Carry("{parts}:written", "{parts}:read", redisstore.UsesKey("{parts}:permit")); n != 3 {
		t.Fatalf("%d keys were carried", n)
	}
	renewed := func(name string) bool {
		gs, err := backends[name].Renew(t.Context(), []store.Claim{claims[name]})
		if err != nil && !errors.Is(err, store.ErrMoving) || err == nil && gs[0].State != store.Granted {
			t.Errorf("the renewal of %s: %v, %v", name, gs, err)
		}
		return err == nil
	}
	for name := range claims {
		if waits := !renewed(name); waits != (name != "a writer") {
			t.Errorf("the renewal of %s waits: %v", name, waits)
		}
		if name == "a writer" {
			continue
		}
		if _, err := backends[name].Release(t.Context(), claims[name]); !errors.Is(err, store.ErrMoving) {
			t.Errorf("the release of %s: %v", name, err)
		}
	}
	// An owner that has lost its lease cannot renew it.
	stranger := claims["a writer"]
	stranger.Owner = rand.Text()
	if gs, err := readers.Renew(t.Context(), []store.Claim{stranger}); err != nil || gs[0].State != store.NotOurs {
		t.Errorf("a stranger: %v, %v", gs, err)
	}
	move.Finish()
	for name, c := range claims {
		if !renewed(name) {
			t.Errorf("%s is not renewed after the move", name)
		}
		if g, err := backends[name].Release(t.Context(), c); err != nil || g.State != store.Released {
			t.Errorf("the release of %s after the move: %v, %v", name, g.State, err)
		}
	}
}

func TestAHandOverIsConfirmedWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	backend := locktest.SingleStore(client)
	const key = "confirmed"
	holder := store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
	winner := store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1, Queue: true, HandoffTTL: time.Minute}
	want := func(state store.State, g store.Grant, err error) {
		t.Helper()
		if err != nil || g.State != state {
			t.Fatalf("%v %v, want %v", g.State, err, state)
		}
	}
	g, err := backend.Acquire(t.Context(), holder)
	want(store.Granted, g, err)
	g, err = backend.Acquire(t.Context(), winner)
	want(store.Busy, g, err)
	g, err = backend.Release(t.Context(), holder)
	want(store.Released, g, err)

	slot := int(redisstore.SlotOf(key))
	from, i := cluster.Owner(slot)
	move := cluster.Migrate(t, slot, from, cluster.Masters[(i+1)%3])
	if move.Carry(key) != 1 {
		t.Fatal("the lease was not carried, or the queue with it")
	}
	renewal := store.Claim{Key: key, Owner: winner.Owner, TTL: 2 * time.Minute, ByHandoff: true}
	gs, err := backend.Renew(t.Context(), []store.Claim{renewal})
	want(store.Granted, gs[0], err)
	if left := client.PTTL(t.Context(), key).Val(); left < 90*time.Second {
		t.Errorf("%v are left", left)
	}
	if n := client.ZCard(t.Context(), redisstore.QueueKey(key)).Val(); n != 0 {
		t.Errorf("%d entries are left", n)
	}

	// A release that changes more than L and the entry waits until the slot has moved.
	kept := winner
	kept.KeepFor = time.Minute
	undone := store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, Queue: true, HandoffTTL: time.Minute, TombstoneTTL: time.Minute}
	once := winner
	once.OnceFor, once.Complete = time.Minute, true
	stranger := store.Claim{Key: key, Owner: rand.Text()}
	for _, c := range []store.Claim{kept, undone, once, stranger} {
		if _, err := backend.Release(t.Context(), c); !errors.Is(err, store.ErrMoving) {
			t.Errorf("%v: the release ended with %v", c, err)
		}
	}
	if client.Exists(t.Context(), key).Val() != 1 {
		t.Error("a refused release has freed the key")
	}
	g, err = backend.Release(t.Context(), winner)
	want(store.Released, g, err)
	if client.Exists(t.Context(), key).Val() != 0 {
		t.Error("the key is still there")
	}
}

// The channels of a cluster are sharded since Redis 7. Older clusters have plain channels, and no
// node ends a plain subscription when a slot moves.
func TestAWaiterFollowsItsSlot(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"by a sharded channel": nil,
		"by a plain channel":   {"--rename-command", "SSUBSCRIBE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, args...)
			client := cluster.Client(t)
			const key = "follows"
			slot := int(redisstore.SlotOf(key))
			from, i := cluster.Owner(slot)
			to := cluster.Masters[(i+1)%3]
			holder := acquire(t, newSingle(t, client), locker.Rule{Key: key})
			waiter := queues(t, newSingle(t, cluster.Client(t)), locker.Rule{Key: key}, client)
			if n := listenersIn(t, from, key); n != 1 {
				t.Fatalf("%d listen at the first node", n)
			}
			follows := func(from, to *redistest.Server) {
				eventually(t, "the waiter listens at the other node", func() bool { return listenersIn(t, to, key) == 1 })
				eventually(t, "and at the first no more", func() bool { return listenersIn(t, from, key) == 0 })
			}
			cluster.Migrate(t, slot, from, to).Finish()
			follows(from, to)
			if command := from.AtomicMove(t); command != "" {
				cluster.MoveAtomically(t, command, slot, to, from)
				follows(to, from)
			}
			release(t, holder)
			release(t, waiter.Granted(5*time.Second))
		})
	}
}

func TestMovesAndFailoversUnderLoadHarmNobody(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]locker.SingleOption{
		"":             nil,
		"acknowledged": {locker.WithReplicaAck(1, 4*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			moveUnderLoad(t, locker.Rule{TTL: 10 * time.Second}, func(c *redis.ClusterClient) *locker.Engine { return newSingle(t, c, opts...) })
		})
	}
}

// This test does for units of a semaphore what the test above does for leases: holders keep their
// units, and all waiters are granted units.
func TestMovesAndFailoversUnderLoadHarmNoPermits(t *testing.T) {
	t.Parallel()
	const n = 3
	moveUnderLoad(t, locker.Rule{TTL: 10 * time.Second, Limit: n}, func(c *redis.ClusterClient) *locker.Engine {
		return locktest.Semaphore(t, c, n)
	})
}

// moveUnderLoad moves a slot to and fro, key by key, and in one step if the servers have a command
// for it, and then promotes replicas. Meanwhile callers of two processes lock keys of the slot. The
// names of the subtests are the commands that moved the slot: make matrix prints them.
func moveUnderLoad(t *testing.T, rule locker.Rule, process func(*redis.ClusterClient) *locker.Engine) {
	t.Helper()
	cluster := redistest.StartCluster(t)
	var seen, other answers
	client, another := cluster.Client(t, seen.countErrors), cluster.Client(t, other.countErrors)
	keys := []string{"{moving}:1", "{moving}:2", "elsewhere"}
	c := startBustle(t, []*locker.Engine{process(client), process(another)}, keys, 3, rule)
	c.awaitSections()

	slot := int(redisstore.SlotOf(keys[0]))
	from, i := cluster.Owner(slot)
	to := cluster.Masters[(i+1)%3]
	answered := func(word string) int { return seen.countOf(word) + other.countOf(word) }
	refused := 0
	met := func() bool { // reports whether there were errors since the last call
		before := refused
		refused = answered("TRYAGAIN")
		return refused > before
	}
	t.Run("CLUSTER SETSLOT", func(t *testing.T) {
		for range 4 {
			move := cluster.Migrate(t, slot, from, to)
			eventually(t, "callers meet a slot on the move", func() bool { return met() })
			move.Carry()
			eventually(t, "callers meet one whose keys are elsewhere", func() bool { return met() })
			move.Finish()
			c.awaitSections()
			from, to = to, from
		}
	})
	if command := from.AtomicMove(t); command != "" {
		t.Run(command, func(t *testing.T) {
			met() // refusals of the other way
			for range 4 {
				redirected := answered("MOVED")
				cluster.MoveAtomically(t, command, slot, from, to)
				c.awaitSections()
				if answered("MOVED") == redirected {
					t.Error("positive control: no caller has met the move")
				}
				from, to = to, from
			}
			if met() {
				t.Error("a caller has met half of a slot")
			}
		})
	}
	for n, replica := range cluster.Replicas {
		if cluster.Masters[n] == from || cluster.Masters[n] == to {
			cluster.Failover(t, replica)
			c.awaitSections()
		}
	}
	c.checkUnharmed()
	for _, word := range []string{"MOVED", "ASK", "TRYAGAIN"} {
		if answered(word) == 0 {
			t.Errorf("positive control: no call was answered %s", word)
		}
	}
	if n := answered("CROSSSLOT"); n > 0 {
		t.Errorf("%d scripts went across slots", n)
	}
}
