package main

import (
	"context"
	"os"
	"sync"
	"time"
)

// library is the specification of a process with readers and writers. The readers and the writers
// lock one key again and again until the turn ends.
type library struct {
	Contestant       string
	Settings         settings
	Readers, Writers int
	Key              string
	Arena            string
	Turn             time.Duration
}

// lending has the results of the readers and writers of one process.
type lending struct {
	Reads, Writes         []int // for each worker: how many locks it has acquired
	ReadWaits, WriteWaits histogram
	MostPhases            int64 // the largest number of reader phases that began while one writer waited
	CPU                   time.Duration
	Violations            int
}

// writerPause is the pause of a writer between two locks. Without this pause, the writer would
// lock again at once, and readers would rarely get the lock.
const writerPause = time.Millisecond

func libraryPart(s *stage) error {
	var lib library
	if err := s.read(&lib); err != nil {
		return err
	}
	contestant, err := contestantNamed(lib.Contestant)
	if err != nil {
		return err
	}
	l, err := contestant.open(lib.Settings)
	if err != nil {
		return err
	}
	a, err := openArena(lib.Arena)
	if err != nil {
		return err
	}
	if err := warmUp(l, lib.Readers+lib.Writers); err != nil {
		return err
	}
	s.say("ready", nil)
	start, err := s.awaitStart()
	if err != nil {
		return err
	}
	done, err := lib.run(l, a, start)
	if err != nil {
		return err
	}
	s.say("done", done)
	return nil
}

func (lib library) run(l locks, a *arena, start time.Duration) (lending, error) {
	visitors := make([]visitor, lib.Readers+lib.Writers)
	for i := range visitors {
		visitors[i] = visitor{locks: l, key: lib.Key, arena: a, writes: i >= lib.Readers}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begin := make(chan time.Time)
	var working sync.WaitGroup
	for i := range visitors {
		working.Go(func() { visitors[i].work(ctx, <-begin) })
	}
	sleepUntil(start)
	cpu, err := ownCPU()
	if err != nil {
		return lending{}, err
	}
	end := time.Now().Add(lib.Turn)
	defer time.AfterFunc(lib.Turn, cancel).Stop()
	for range visitors {
		begin <- end
	}
	working.Wait()
	used, err := ownCPU()
	if err != nil {
		return lending{}, err
	}
	done := lending{CPU: used - cpu}
	for i := range visitors {
		v := &visitors[i]
		if v.err != nil {
			return lending{}, v.err
		}
		if v.writes {
			done.Writes = append(done.Writes, v.count)
			done.WriteWaits.merge(v.waits)
		} else {
			done.Reads = append(done.Reads, v.count)
			done.ReadWaits.merge(v.waits)
		}
		done.MostPhases = max(done.MostPhases, v.mostPhases)
		done.Violations += v.violations
	}
	return done, nil
}

// visitor is one goroutine that reads or writes.
type visitor struct {
	locks  locks
	key    string
	arena  *arena
	writes bool

	count      int
	waits      histogram
	mostPhases int64
	violations int
	err        error
}

// lock acquires the lock in the mode that the visitor needs. A contestant without readers locks the
// key exclusively.
func (v *visitor) lock(ctx context.Context) (hold, error) {
	if r, ok := v.locks.(readLocks); ok && !v.writes {
		return r.RLock(ctx, v.key)
	}
	return v.locks.Lock(ctx, v.key)
}

// work acquires and releases locks, and counts those that it has released before end, as
// worker.work does.
func (v *visitor) work(ctx context.Context, end time.Time) {
	for {
		asked, phases := time.Now(), v.arena.phases.Load()
		h, err := v.lock(ctx)
		v.waits.add(time.Since(asked))
		if err != nil {
			if ctx.Err() == nil {
				v.err = err
			}
			return
		}
		if v.writes {
			v.mostPhases = max(v.mostPhases, v.arena.phases.Load()-phases)
			v.violations += v.arena.enterWriter(h)
			v.violations += v.arena.leaveWriter()
		} else {
			v.violations += v.arena.enterReader(h)
			v.arena.readers.Add(-1)
		}
		err = h.Release(context.Background())
		if !time.Now().Before(end) {
			return
		}
		if err != nil {
			v.err = err
			return
		}
		v.count++
		if v.writes {
			time.Sleep(writerPause)
		}
	}
}

// shelf is the size of a row with readers: the number of processes, the readers in each
// process, and the writers in the first process.
type shelf struct{ processes, readers, writers int }

// lendingTurn has the result and the cost of one turn.
type lendingTurn struct {
	took   time.Duration
	lent   lending
	server load
	sends  []string
}

// take runs one turn of c on srv, for the time length.
func (s shelf) take(ctx context.Context, srv server, c contestant, length time.Duration) (t lendingTurn, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return t, err
	}
	arena, err := makeArena()
	if err != nil {
		return t, err
	}
	defer func() { _ = os.Remove(arena) }()
	specs := make([]library, s.processes)
	for i := range specs {
		specs[i] = library{
			Contestant: c.name, Settings: settings{Addr: srv.Addr(), TTL: lockTTL, Process: i}, Readers: s.readers, Key: "wanted", Arena: arena, Turn: length,
		}
	}
	specs[0].Writers = s.writers
	all, err := launchAll("library", specs)
	defer func() { _ = all.end() }()
	if err != nil {
		return t, err
	}
	said, used, err := observe[lending](ctx, srv, all)
	if err != nil {
		return t, err
	}
	t = lendingTurn{took: length, server: used, sends: c.sends}
	for _, l := range said {
		t.lent.Reads, t.lent.Writes = append(t.lent.Reads, l.Reads...), append(t.lent.Writes, l.Writes...)
		t.lent.ReadWaits.merge(l.ReadWaits)
		t.lent.WriteWaits.merge(l.WriteWaits)
		t.lent.MostPhases = max(t.lent.MostPhases, l.MostPhases)
		t.lent.CPU += l.CPU
		t.lent.Violations += l.Violations
	}
	return t, nil
}

func sum(counts []int) (n float64) {
	for _, c := range counts {
		n += float64(c)
	}
	return n
}

func (t lendingTurn) reads() float64       { return sum(t.lent.Reads) / t.took.Seconds() }
func (t lendingTurn) writes() float64      { return sum(t.lent.Writes) / t.took.Seconds() }
func (t lendingTurn) writeP50() float64    { return millis(t.lent.WriteWaits.percentile(50)) }
func (t lendingTurn) writeP99() float64    { return millis(t.lent.WriteWaits.percentile(99)) }
func (t lendingTurn) longestWait() float64 { return millis(t.lent.WriteWaits.max) }
func (t lendingTurn) mostPhases() float64  { return float64(t.lent.MostPhases) }
func (t lendingTurn) violations() float64  { return float64(t.lent.Violations) }
func (t lendingTurn) clientCommands() float64 {
	return float64(t.server.commands(t.sends)) / (sum(t.lent.Reads) + sum(t.lent.Writes))
}

// starved returns the number of readers and writers that never got the lock.
func (t lendingTurn) starved() (n float64) {
	for _, counts := range [][]int{t.lent.Reads, t.lent.Writes} {
		for _, c := range counts {
			if c == 0 {
				n++
			}
		}
	}
	return n
}
