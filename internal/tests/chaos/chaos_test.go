package chaos_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var (
	runFor   = flag.Duration("for", 6*time.Second, "how long TestChaos begins new rounds")
	roundFor = flag.Duration("round", 6*time.Second, "how long the faults of a round last")
	topology = flag.String("topology", "", "TestChaos uses only this one, such as Cluster; empty: all")
	kindFlag = flag.String("kind", "", "TestChaos uses only this one, such as exclusive; empty: all")
	seedFlag = flag.Uint64("seed", 0, "the seed of the first round; 0: a new one")
	record   = flag.String("record", "", "a file to which each round adds its result, as a line of JSON")
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	redistest.Main(sqltest.Main(proc.Main(m)))
}

func (w *world) migrate() {
	w.Helper()
	engine, err := locker.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})) // Migrate takes no lock
	if err == nil {
		var h *sqllock.DB
		if h, err = sqllock.New(engine, w.db); err == nil {
			err = h.Migrate(w.Context())
		}
	}
	if err != nil {
		w.Fatal(err)
	}
}

// result is what a round has shown.
type result struct {
	Control  string // the name of the control; "": the rounds of TestChaos
	Commit   string // of the code that ran
	Round    round
	Server   string
	Database string
	Lasted   time.Duration
	Faults   map[string]*faultStat
	Troubles int
	Verdict  *verdict
	Worst    []bar // the holds around the longest overlap
}

// faultStat is what happened during one kind of fault.
type faultStat struct {
	Injected     int
	Operations   int // grants, refusals and transactions that began during the fault, or just after it
	Overlaps     int
	Undocumented int
	Recovery     []time.Duration // until every key was granted again
}

// run runs a round.
func run(t *testing.T, r round) *result {
	t.Helper()
	r.Keys = max(r.Keys, 1)
	w := newWorld(t, r)
	began := now()
	for now() < began.add(r.For) {
		w.trouble()
	}
	w.noteFailovers()
	lasted := now().since(began)
	left := w.stop()
	w.noteFailovers() // two masters may have served until the workers ended
	h, err := readHistory(w.dir, w.killed)
	if err != nil {
		t.Fatal(err)
	}
	if w.isHeadless() { // so nobody has answered the last releases
		h.wrong = slices.DeleteFunc(h.wrong, func(text string) bool {
			t.Logf("without a master: %s", text)
			return strings.Contains(text, ": Close: ")
		})
	}
	limit := 0
	if r.Kind == kindSemaphore {
		limit = units
	}
	rows, late, final := w.rows()
	if len(h.wrong) > 0 {
		w.describeCluster()
	}
	v := check(h, limit, w.losses, rows, final)
	v.checkLate(h, late)
	if r.Library == "" && r.Patch[0] == "" {
		for _, key := range left {
			v.violated("left behind: %s", key)
		}
	}
	res := &result{Round: r, Server: w.version(), Database: w.driver, Lasted: lasted, Verdict: v, Troubles: len(w.troubles)}
	res.Faults = statistics(h, v, w.troubles, r.Brisk)
	res.Worst = worst(h, v, w.troubles)
	return res
}

func (w *world) version() (text string) {
	return w.admin(w.masters()[0], func(ctx context.Context, c *redis.Client) string {
		info := c.InfoMap(ctx, "server").Val()["Server"]
		if v := info["valkey_version"]; v != "" {
			return "Valkey " + v
		}
		return "Redis " + info["redis_version"]
	})
}

// statistics counts, for each kind of fault, what happened in its time.
func statistics(h *history, v *verdict, troubles []trouble, brisk bool) map[string]*faultStat {
	all := map[string]*faultStat{}
	for _, t := range troubles {
		reach := span{t.from, t.to.add(roundTTL)}
		ops := 0
		in := func(at instant) {
			if reach.from <= at && at <= reach.to {
				ops++
			}
		}
		for _, one := range h.holds {
			in(one.granted)
		}
		for _, one := range h.waits {
			in(one.asked)
		}
		for _, one := range h.writes {
			in(one.called)
		}
		for _, name := range t.Names {
			s := all[name]
			if s == nil {
				s = &faultStat{}
				all[name] = s
			}
			s.Injected++
			s.Operations += ops
			if !brisk { // with many keys, it takes long until each of them is wanted
				if took := h.recovery(t.to); took >= 0 {
					s.Recovery = append(s.Recovery, took)
				}
			}
			for _, o := range v.Overlaps {
				if reach.from <= o.At && o.At <= reach.to {
					s.Overlaps++
					if o.Documented == "" {
						s.Undocumented++
					}
				}
			}
		}
	}
	return all
}

// combinations are the topologies with the kinds of locks that they have, without those that the
// flags leave out.
func combinations() []round {
	return slices.DeleteFunc(possible(), func(r round) bool {
		return *topology != "" && r.Topology != *topology || *kindFlag != "" && r.Kind != *kindFlag
	})
}

// possible are the topologies with the kinds of locks that they have.
func possible() (all []round) {
	for _, on := range topologies[:3] {
		for _, kind := range kinds {
			if kind != kindAcks || on != oneServer {
				all = append(all, round{Topology: on, Kind: kind})
			}
		}
	}
	for _, on := range topologies[3:] { // quorums
		for _, kind := range []string{kindExclusive, kindReentrant, kindStriped, kindLead} {
			all = append(all, round{Topology: on, Kind: kind})
		}
	}
	return all
}

// Several processes lock, and write under their locks, while servers, processes, connections and
// clocks fail. No write of an old holder reaches the database, no increment is lost, fences grow,
// and two hold a lock only in the cases that docs/guarantees.md names.
func TestChaos(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano() / 1e6 % 1e9)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	sum := &verdict{}
	troubles, rounds := 0, 0
	var order []int
	for began := time.Now(); time.Since(began) < *runFor; rounds++ {
		all := combinations()
		if len(order) == 0 {
			order = rng.Perm(len(all))
		}
		r := all[order[0]]
		order = order[1:]
		r.Seed, r.For, r.Keys, r.LongHold = seed+uint64(rounds), *roundFor, 3+rng.IntN(3), rng.IntN(5) == 0
		if r.Brisk = !r.LongHold && r.Kind != kindLead && rng.IntN(2) == 0; r.Brisk {
			r.Keys = briskKeys
		}
		t.Run(fmt.Sprintf("%s %s %d", r.Topology, r.Kind, r.Seed), func(t *testing.T) {
			res := run(t, r)
			v := res.Verdict
			t.Logf("%s, %s, %d keys: %d grants, %d hand-offs, %d lost, %d increments, %d reads, %d late writes, %d of them stale, %d unclear, %d overlaps, %d troubles in %v",
				res.Server, res.Database, r.Keys, v.Grants, v.Handoffs, v.Losses, v.Writes, v.Reads, v.Late, v.LateStale, v.Unclear, len(v.Overlaps), res.Troubles, res.Lasted.Round(time.Second))
			for i, text := range v.Violations {
				if i == 20 {
					t.Errorf("and %d more", len(v.Violations)-i)
					break
				}
				t.Error(text)
			}
			if t.Failed() {
				t.Errorf("repeat it: go test ./internal/tests/chaos -run TestChaos -seed %d -for %v -round %v -topology %q -kind %q -v", seed, *runFor, *roundFor, *topology, *kindFlag)
			}
			if v.Grants < 20 {
				t.Errorf("only %d grants: the round shows nothing", v.Grants)
			}
			sum.add(v)
			troubles += res.Troubles
			keep(t, res)
		})
	}
	t.Logf("seed %d: %d rounds, %d troubles, %d grants, %d hand-offs, %d increments, %d late writes, %d of them stale, %d unclear, %d leases lost, of these %d told before the next grant, %d unanswered, %d overlaps",
		seed, rounds, troubles, sum.Grants, sum.Handoffs, sum.Writes, sum.Late, sum.LateStale, sum.Unclear, sum.Losses, sum.Told, sum.Unanswered, len(sum.Overlaps))
	// A run in which little has happened shows nothing. A few rounds may have no fault that costs a
	// lease or an answer.
	long := rounds >= 8
	for what, is := range map[string]bool{
		"grants": sum.Grants >= 50*rounds, "faults": troubles >= 2*rounds, "hand-offs": sum.Handoffs >= rounds,
		"increments": !long || sum.Writes >= 10*rounds, "refused old fences": !long || sum.LateStale >= rounds,
		"lost leases": !long || sum.Losses >= rounds/4, "unclear answers": !long || sum.Unclear+sum.Unanswered >= rounds/4,
	} {
		if !is {
			t.Errorf("the run is void: too few %s", what)
		}
	}
}

func (v *verdict) add(o *verdict) {
	v.Grants += o.Grants
	v.Writes += o.Writes
	v.Reads += o.Reads
	v.Stale += o.Stale
	v.Late += o.Late
	v.LateStale += o.LateStale
	v.Unclear += o.Unclear
	v.Refused += o.Refused
	v.Losses += o.Losses
	v.Told += o.Told
	v.Unanswered += o.Unanswered
	v.Handoffs += o.Handoffs
	v.Killed += o.Killed
	v.Behind += o.Behind
	v.Waits += o.Waits
	v.Overdue = append(v.Overdue, o.Overdue...)
	v.LostUpdates += o.LostUpdates
	v.ForNobody += o.ForNobody
	v.Overlaps = append(v.Overlaps, o.Overlaps...)
	v.Violations = append(v.Violations, o.Violations...)
}

// keep adds the result to the record.
func keep(t *testing.T, res *result) {
	t.Helper()
	if *record == "" {
		return
	}
	commit, err := exec.CommandContext(t.Context(), "git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*").Output()
	if err != nil {
		t.Fatal(err)
	}
	res.Commit = strings.TrimSpace(string(commit))
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(*record, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
}

// bar is one hold in the picture of the worst history, or one fault.
type bar struct {
	Process, Label string
	From, To       time.Duration // since the start of the picture
	Fence          uint64
	Wrote          string
}

// worst returns the holds and faults around the longest overlap.
func worst(h *history, v *verdict, troubles []trouble) (bars []bar) {
	var longest *overlap
	for i := range v.Overlaps {
		if o := &v.Overlaps[i]; longest == nil || o.Length > longest.Length {
			longest = o
		}
	}
	if longest == nil {
		return nil
	}
	start, end := longest.first.granted.add(-100*time.Millisecond), longest.At.add(longest.Length+400*time.Millisecond)
	around := span{start, end}
	for _, t := range troubles {
		if t.meets(around) {
			bars = append(bars, bar{Process: "fault", Label: fmt.Sprint(t.Names), From: max(t.from, start).since(start), To: min(t.to, end).since(start)})
		}
	}
	for _, one := range h.holds {
		if one.key != longest.first.key || !(span{one.granted, one.alive}).meets(around) {
			continue
		}
		b := bar{Process: one.process, Label: one.reason, From: max(one.granted, start).since(start), To: min(one.alive, end).since(start), Fence: one.fence}
		if i := slices.IndexFunc(h.writes, func(w write) bool { return w.op == one.id+"/0" && !w.late }); i >= 0 {
			b.Wrote = h.writes[i].result
		}
		bars = append(bars, b)
	}
	return bars
}
