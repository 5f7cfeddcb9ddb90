package chaos_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

// nemesis is a kind of fault.
type nemesis struct {
	name string
	// on says where the fault makes sense.
	on func(w *world) bool
	// begin causes the fault. The function that it returns ends the fault; nil: there was nothing
	// to harm, or nothing to end.
	begin func(w *world) (end func())
	// loses is true if a server may forget leases: then two holders are documented for a while.
	loses bool
	alone bool // it does not go together with other faults
}

func always(*world) bool       { return true }
func onSentinel(w *world) bool { return w.sentinel != nil }
func onCluster(w *world) bool  { return w.cluster != nil }
func onPairs(w *world) bool    { return w.replicas != nil }
func withClock(w *world) bool  { return len(w.clocks) > 0 }
func blank(w *world) bool      { return len(w.clocks) > 0 && !w.durable }

// withScripts is false where no call is one of latchkit's scripts.
func withScripts(w *world) bool { return w.Kind != kindPolling && w.Kind != kindScriptless }

const workerStopped = "worker stopped (SIGSTOP)"

// twoRestarts empties two nodes one after the other, before the first one votes again. It is a
// fault for controls: more than a minority has forgotten its leases.
const twoRestarts = "two nodes restarted"

// These faults make replicas masters, which lack what their masters granted last.
const (
	promotion      = "replicas promoted"
	promotedBeside = "replica promoted beside its master"
)

// twoMasters is the loss that promotedBeside causes.
const twoMasters = "two masters of one node"

// restarts are the faults that restart servers.
const (
	restartBlank    = "restart without data"
	restartWithData = "restart with all data"
	rollingRestart  = "rolling restart"
)

// nemeses are all faults. Their names are those of docs/faults.md.
var nemeses = []nemesis{
	{name: workerStopped, on: always, begin: func(w *world) func() {
		n := 1
		if w.Only != nil { // a control: nearly always the holder is among them
			n = len(w.workers) - 1
		}
		var stopped []*seat
		for range n {
			s := w.anyWorker()
			s.child.Pause()
			stopped = append(stopped, s)
		}
		return func() {
			for _, s := range stopped {
				s.child.Resume()
			}
		}
	}},
	{name: "worker killed (SIGKILL)", on: always, begin: func(w *world) func() {
		s := w.anyWorker()
		w.killed[s.name()] = now()
		s.child.Kill()
		return func() {
			s.number++
			w.start(s)
		}
	}},
	{name: "connections cut", on: always, begin: onWays(func(p *chaos.Proxy) *chaos.Fault { p.Cut(); return nil })},
	{name: "reply cut half-way", on: withScripts, begin: onWays(func(p *chaos.Proxy) *chaos.Fault { return p.HalveReplies(5, chaos.Command("EVALSHA")) })},
	{name: "replies swallowed", on: withScripts, begin: onWays(func(p *chaos.Proxy) *chaos.Fault { return p.SwallowReplies(chaos.Every, chaos.Command("EVALSHA")) })},
	{name: "requests delayed", on: withScripts, begin: onWays(func(p *chaos.Proxy) *chaos.Fault { return p.HoldRequests(20, chaos.Command("EVALSHA")) })},
	{name: "black hole", on: always, begin: onWays((*chaos.Proxy).BlackHole)},
	{name: "reply of acquire lost", on: withScripts, begin: loseReplies("acquire", "vote", "confirm", "rw_acquire", "sem_acquire")},
	{name: "reply of renewal lost", on: withScripts, begin: loseReplies("renew")},
	{name: "reply of release lost", on: withScripts, begin: loseReplies("release", "rw_release", "sem_release")},
	{name: "answer of COMMIT lost", on: func(w *world) bool { return w.driver == "pgx" }, begin: func(w *world) func() {
		for _, s := range w.workers {
			s.wire.Strike(chaos.CutAnswer, false)
		}
		return nil
	}},
	{name: "server stopped (SIGSTOP)", on: always, begin: onServers(func(_ *world, s *redistest.Server) func() {
		s.Pause()
		return s.Resume
	})},
	{name: "CLIENT KILL", on: always, begin: command("client", "kill", "type", "normal")},
	{name: "CLIENT PAUSE", on: always, begin: command("client", "pause", 300)},
	{name: "SCRIPT FLUSH", on: withScripts, begin: command("script", "flush")},
	{name: restartBlank, on: blank, loses: true, begin: onServers(func(_ *world, s *redistest.Server) func() {
		s.Restart()
		return nil
	})},
	{name: restartWithData, on: func(w *world) bool { return w.durable }, begin: onServers(func(_ *world, s *redistest.Server) func() {
		s.Restart()
		return nil
	})},
	{name: "FLUSHALL", on: always, loses: true, begin: command("flushall")},
	{name: "keys evicted", on: func(w *world) bool { return !w.quorum() }, // a quorum's server that may evict does not vote
		loses: true, begin: onServers(func(w *world, s *redistest.Server) func() {
			w.admin(s, func(ctx context.Context, c *redis.Client) string {
				for keys := c.Scan(ctx, 0, "*", 1000).Iterator(); keys.Next(ctx); {
					if w.rng.IntN(2) == 0 {
						c.Unlink(ctx, keys.Val())
					}
				}
				return ""
			})
			return nil
		})},
	{name: "memory full", on: always, begin: onServers(func(w *world, s *redistest.Server) func() {
		limit := func(bytes string) {
			w.admin(s, func(ctx context.Context, c *redis.Client) string {
				return c.ConfigSet(ctx, "maxmemory", bytes).String()
			})
		}
		limit("1") // the policy is noeviction
		return func() { limit("0") }
	})},
	{name: "clock of the server stepped", on: withClock, loses: true, alone: true, begin: onServers(func(w *world, s *redistest.Server) func() {
		w.clocks[s].Set(time.Duration(w.rng.IntN(5000)-2000) * time.Millisecond)
		return func() { w.clocks[s].Set(0) }
	})},
	{name: "clock of the server strobed", on: withClock, loses: true, alone: true, begin: onServers(func(w *world, s *redistest.Server) func() {
		for range 20 {
			w.clocks[s].Set(time.Duration(w.rng.IntN(1000)-500) * time.Millisecond)
			w.sleep(20 * time.Millisecond)
		}
		return func() { w.clocks[s].Set(0) }
	})},
	{name: "planned failover", on: onSentinel, alone: true, loses: true, begin: func(w *world) func() {
		w.admin(w.sentinel.Sentinels[0], func(ctx context.Context, c *redis.Client) string {
			return c.Do(ctx, "sentinel", "failover", redistest.SentinelName).String()
		})
		w.sleep(2 * time.Second)
		return nil
	}},
	{name: "failover: master killed", on: func(w *world) bool { return w.sentinel != nil || w.cluster != nil }, alone: true, loses: true, begin: onServers(func(w *world, s *redistest.Server) func() {
		s.Kill()
		w.sleep(3 * time.Second)
		return s.Restart
	})},
	{name: "failover: master stopped", on: func(w *world) bool { return w.sentinel != nil || w.cluster != nil }, alone: true, loses: true, begin: onServers(func(w *world, s *redistest.Server) func() {
		s.Pause()
		w.sleep(3 * time.Second)
		return s.Resume
	})},
	{name: "slot moved", on: onCluster, alone: true, begin: moveSlot},
	{name: "slot moved atomically", on: func(w *world) bool { return w.cluster != nil && w.atomic != "" }, alone: true, begin: moveAtomically},
	{name: rollingRestart, on: func(w *world) bool { return w.quorum() && blank(w) }, alone: true, begin: func(w *world) func() {
		for _, s := range w.servers {
			s.Restart()
			if !w.awaitVotes() {
				w.Errorf("after the restart of %s, not all nodes vote", s.Addr())
			}
		}
		return nil
	}},
	{name: promotion, on: onPairs, alone: true, begin: func(w *world) func() { return w.promote(2, false) }},
	{name: promotedBeside, on: onPairs, alone: true, begin: func(w *world) func() { return w.promote(1, true) }},
	{name: twoRestarts, on: func(w *world) bool { return w.quorum() && w.Only != nil }, alone: true, begin: func(w *world) func() {
		for _, i := range w.rng.Perm(len(w.servers))[:2] {
			w.servers[i].Restart()
		}
		return nil
	}},
}

// promote makes the replicas of n nodes masters. Before that, they are cut off for so long that they
// lack all leases. If their masters serve on, workers whose connections are not cut ask them until
// the end of the trouble. Such a node has two masters, and docs/quorum.md says what follows: from
// the end of the new master's wait on, a lease with the vote of the old one does not exclude others.
func (w *world) promote(n int, serve bool) (end func()) {
	chosen := w.rng.Perm(len(w.servers))[:n]
	for _, i := range chosen {
		w.follow(w.replicas[i], "")
	}
	w.sleep(2 * roundTTL)
	former := slices.Clone(w.servers)
	for _, i := range chosen {
		if !serve {
			w.servers[i].Kill()
		}
		w.servers[i], w.replicas[i] = w.replicas[i], w.servers[i]
		lead := func(p *chaos.Proxy, cut bool) {
			if p.Lead(w.servers[i].Addr()); cut {
				p.Cut()
			}
		}
		lead(w.own[i], true)
		for _, worker := range w.workers {
			lead(worker.proxies[former[i].Addr()], !serve || w.rng.IntN(2) == 0)
		}
	}
	promoted := now()
	if serve {
		w.sleep(quorumWait)
	}
	return func() {
		for _, i := range chosen {
			if serve {
				former[i].Kill()
				w.losses = append(w.losses, loss{twoMasters, span{promoted.add(quorumWait), now()}})
			}
			former[i].Restart()
			w.follow(former[i], w.servers[i].Addr())
		}
	}
}

func (w *world) sleep(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the length of a fault
}

// anyWorker returns a worker that has no other fault.
func (w *world) anyWorker() *seat {
	free := slices.DeleteFunc(slices.Clone(w.workers), func(s *seat) bool { return s.faulty })
	s := free[w.rng.IntN(len(free))]
	s.faulty = true
	return s
}

// victims returns the servers that a fault may hit: on a quorum the same minority for all faults of
// a trouble, or else the master or one of the masters.
func (w *world) victims() []*redistest.Server {
	all := w.masters()
	if w.quorum() {
		var chosen []*redistest.Server
		for _, s := range all {
			if w.busy[s] {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) > 0 {
			return chosen
		}
		for _, i := range w.rng.Perm(len(all))[:len(all)/2] {
			chosen = append(chosen, all[i])
			w.busy[all[i]] = true
		}
		return chosen
	}
	if len(all) == 0 {
		return nil
	}
	s := all[w.rng.IntN(len(all))]
	w.busy[s] = true
	return []*redistest.Server{s}
}

// onServers returns the beginning of a fault of servers.
func onServers(harm func(w *world, s *redistest.Server) func()) func(*world) func() {
	return func(w *world) func() {
		var ends []func()
		for _, s := range w.victims() {
			if end := harm(w, s); end != nil {
				ends = append(ends, end)
			}
		}
		return func() {
			for _, end := range ends {
				end()
			}
		}
	}
}

func command(words ...any) func(*world) func() {
	return onServers(func(w *world, s *redistest.Server) func() {
		w.admin(s, func(ctx context.Context, c *redis.Client) string { return c.Do(ctx, words...).String() })
		return nil
	})
}

// onWays returns the beginning of a fault of the network: about half of the workers cannot reach a
// server. On a quorum, a worker cannot reach a minority of the servers.
func onWays(harm func(*chaos.Proxy) *chaos.Fault) func(*world) func() {
	return func(w *world) func() {
		var faults []*chaos.Fault
		for _, s := range w.victims() {
			for _, worker := range w.workers {
				if w.rng.IntN(2) == 0 {
					continue
				}
				if f := harm(worker.proxies[s.Addr()]); f != nil {
					faults = append(faults, f)
				}
			}
		}
		return func() {
			for _, f := range faults {
				f.Lift()
			}
		}
	}
}

// loseReplies loses the next replies to scripts with one of the names.
func loseReplies(names ...string) func(*world) func() {
	return func(w *world) func() {
		match := scriptCall("", names...)
		n := 1 + w.rng.IntN(3)
		return onWays(func(p *chaos.Proxy) *chaos.Fault { return p.LoseReplies(n, match) })(w)
	}
}

// digestsOf returns the SHA-1 of the scripts with the given names, and of their variants.
func digestsOf(names []string) (all []string) {
	for _, path := range []string{"../../redisstore/lua/digests", "../../quorum/lua/digests"} {
		file, err := os.Open(path)
		if err != nil {
			panic(err)
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			digest, name, _ := strings.Cut(lines.Text(), "  ")
			if slices.Contains(names, strings.TrimSuffix(name, "_silent")) {
				all = append(all, digest)
			}
		}
		_ = file.Close()
	}
	return all
}

// slotToMove returns the slot of a key, its master and another master; -1 if there is none now.
func (w *world) slotToMove() (slot int, source, target *redistest.Server) {
	masters := w.masters()
	if len(masters) < 2 {
		return -1, nil, nil
	}
	w.admin(masters[0], func(ctx context.Context, c *redis.Client) string {
		slot = int(c.ClusterKeySlot(ctx, fmt.Sprint("chaos:", w.rng.IntN(w.Keys))).Val())
		shards := c.ClusterSlots(ctx).Val() //nolint:staticcheck // it shows the owner of a slot
		for _, shard := range shards {
			for _, s := range masters {
				if len(shard.Nodes) > 0 && shard.Nodes[0].Addr == s.Addr() {
					if shard.Start <= slot && slot <= shard.End {
						source = s
					} else if target == nil || w.rng.IntN(2) == 0 {
						target = s
					}
				}
			}
		}
		return ""
	})
	if source == nil || target == nil || source == target {
		return -1, nil, nil
	}
	return slot, source, target
}

// moveSlot moves the slot of a key to another master, slowly.
func moveSlot(w *world) func() {
	slot, source, target := w.slotToMove()
	if slot < 0 {
		return nil
	}
	// A failover that an earlier trouble has caused may come in between. Then the move is
	// abandoned, as an operator does. Otherwise the slot would refuse all scripts for ever.
	try := &tolerant{TB: w.T}
	move := w.cluster.Migrate(try, slot, source, target)
	w.sleep(50 * time.Millisecond)
	move.Carry()
	w.sleep(50 * time.Millisecond)
	return func() {
		if move.Finish(); try.failed {
			move.Abandon()
		}
	}
}

// moveAtomically moves the slot of a key to another master with all its keys in one step. A failover
// that comes in between ends the move, and the slot stays.
func moveAtomically(w *world) func() {
	if slot, source, target := w.slotToMove(); slot >= 0 {
		w.cluster.MoveAtomically(&tolerant{TB: w.T}, w.atomic, slot, source, target)
	}
	return nil
}

// tolerant logs errors, and remembers that there was one.
type tolerant struct {
	testing.TB
	failed bool
}

func (t *tolerant) Errorf(format string, args ...any) {
	t.Helper()
	t.failed = true
	t.Logf(format, args...)
}

func (t *tolerant) Error(args ...any) {
	t.Helper()
	t.Errorf("%s", fmt.Sprint(args...))
}

// fits returns the faults that make sense in this world.
func (w *world) fits() (all []nemesis) {
	for _, n := range nemeses {
		if n.on(w) && (w.Only == nil || slices.Contains(w.Only, n.name)) {
			all = append(all, n)
		}
	}
	return all
}

// trouble causes one to three faults together, and ends them.
func (w *world) trouble() {
	w.Helper()
	all := w.fits()
	chosen := []nemesis{all[w.rng.IntN(len(all))]}
	for !chosen[0].alone && len(chosen) < 3 && w.rng.IntN(3) == 0 {
		if next := all[w.rng.IntN(len(all))]; !next.alone && !slices.ContainsFunc(chosen, func(n nemesis) bool { return n.name == next.name }) {
			chosen = append(chosen, next)
		} else {
			break
		}
	}
	t := trouble{span: span{from: now()}}
	w.noteFailovers()
	lost := ""
	var ends []func()
	for _, n := range chosen {
		t.Names = append(t.Names, n.name)
		if n.loses && (!w.quorum() || strings.HasPrefix(n.name, "clock")) {
			lost = n.name
		}
		if end := n.begin(w); end != nil {
			ends = append(ends, end)
		}
	}
	if w.Only != nil {
		w.sleep(roundTTL)
	}
	w.sleep(50*time.Millisecond + short(w.rng, 2*roundTTL))
	for _, end := range slices.Backward(ends) {
		end()
	}
	clear(w.busy)
	for _, s := range w.workers {
		s.faulty = false
	}
	t.to = now()
	w.troubles = append(w.troubles, t)
	if lost != "" {
		w.losses = append(w.losses, loss{lost, t.span})
	}
	w.noteFailovers()
	if w.quorum() && w.Patch[0] == "" && w.Library == "" {
		w.awaitVotes()
	}
	w.sleep(100*time.Millisecond + short(w.rng, 400*time.Millisecond))
}

// noteFailovers records a loss if the masters are not those of the look before, or if a former
// master still serves. Sentinels and Clusters fail over by themselves when a server was slow, also
// some time after the trouble. A master that does not answer, because it is stopped, serves on when
// it continues, until it hears of its successor.
func (w *world) noteFailovers() {
	if w.sentinel == nil && w.cluster == nil {
		return
	}
	began := now() // a server may change while the others are asked
	var serving []string
	for _, s := range w.servers {
		role := w.role(s)
		if role == "master" || role == "" && slices.Contains(w.serving, s.Addr()) {
			serving = append(serving, s.Addr())
		}
	}
	most := 1
	if w.cluster != nil {
		most = len(w.cluster.Masters)
	}
	if w.serving != nil && !slices.Equal(serving, w.serving) || len(serving) > most {
		i := slices.IndexFunc(w.losses, func(l loss) bool { return l.what == "failover" && w.looked <= l.to })
		if i < 0 { // otherwise it is the same failover, which lasts
			i = len(w.losses)
			w.losses = append(w.losses, loss{"failover", span{from: w.looked}})
		}
		w.losses[i].to = now()
	}
	w.serving, w.looked = serving, began
}
