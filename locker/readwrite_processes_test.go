package locker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/proc/faketest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// readerProcess reads a key until it is told to stop.
var readerProcess = proc.Register("reader", func(args []string) {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		panic(err)
	}
	l, err := locker.NewReadWrite([]locker.Client{redis.NewClient(&redis.Options{Addr: args[0]})})
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], Mode: locker.Shared, TTL: ttl})
	if err != nil {
		panic(err)
	}
	fmt.Println("granted", lease.Fence())
	told := make(chan struct{})
	go func() {
		proc.Listen()
		close(told)
		proc.Listen()
	}()
	select {
	case <-lease.Context().Done():
		fmt.Println("lost", errors.Is(context.Cause(lease.Context()), locker.ErrLost))
	case <-told:
		fmt.Println("released", lease.Release(context.Background()))
	}
	select {} // whoever listens ends the process
})

// A process that reads and is gone, or stands still, costs a writer what is left of its own lease, and other readers nothing.
func TestASignalToAReader(t *testing.T) {
	struck(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		rw := newReadWrite(t, p.server.Client(t))
		shared := locker.Rule{Key: p.key, Mode: locker.Shared}
		alive := acquire(t, rw, shared)
		child := readerProcess.Start(t, p.server.Addr(), p.key, "2s")
		fence := p.granted(child)
		if fence != alive.Fence() {
			t.Fatalf("fence %d beside %d", fence, alive.Fence())
		}
		w := queues(t, newReadWrite(t, p.server.Client(t)), locker.Rule{Key: p.key}, p.client)
		strike(child)
		<-time.After(2200 * time.Millisecond)
		w.waitsStill() // there is a reader who lives
		if err := context.Cause(alive.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, alive)
		var written *locker.Lease
		within(t, 0, "the writer's grant", func() { written = w.granted(0) })
		if signal == "stopped" {
			child.Resume()
			if got := child.Expect(t, "lost"); got != "true" {
				t.Fatalf("its lease ended with ErrLost: %s", got)
			}
			if err := context.Cause(written.Context()); err != nil {
				t.Fatal(err)
			}
		}
		release(t, written)
		nothingLeftBut(t, p.client)
	})
}

// visitors are readers and writers of one process.
type visitors struct {
	Addr, Name, Key  string
	Readers, Writers int
	For, Hold        time.Duration
}

func (v visitors) run(l *locker.Engine) []visit {
	var mu sync.Mutex
	var all []visit
	until := time.Now().Add(v.For)
	var wg sync.WaitGroup
	for i := range v.Readers + v.Writers {
		mode := locker.Shared
		if i >= v.Readers {
			mode = locker.Exclusive
		}
		wg.Go(func() {
			for time.Now().Before(until) {
				s := v.visit(l, fmt.Sprint(v.Name, "/", i), mode)
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
				if s.Failed != "" {
					return
				}
				if mode == locker.Exclusive {
					<-time.After(5 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return all
}

func (v visitors) visit(l *locker.Engine, who string, mode locker.Mode) visit {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	s := visit{Who: who, Mode: mode, Asked: time.Now().UnixNano()}
	lease, err := l.Acquire(ctx, locker.Rule{Key: v.Key, Mode: mode, TTL: 20 * time.Second})
	if err != nil {
		s.Failed = err.Error()
		return s
	}
	s.Fence, s.Start = lease.Fence(), time.Now().UnixNano()
	<-time.After(v.Hold)
	s.End = time.Now().UnixNano()
	if err := lease.Release(ctx); err != nil {
		s.Failed = err.Error()
	}
	return s
}

// visit is one stay, on the machine's clock, which all processes share. It lies within the lease.
type visit struct {
	Who               string
	Mode              locker.Mode
	Fence             uint64
	Asked, Start, End int64 // in ns
	Failed            string
}

var visitorProcess = proc.Register("visitors", func(args []string) {
	var v visitors
	if err := json.Unmarshal([]byte(args[0]), &v); err != nil {
		panic(err)
	}
	l, err := locker.NewReadWrite([]locker.Client{redis.NewClient(&redis.Options{Addr: v.Addr})})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	proc.Listen()
	text, err := json.Marshal(v.run(l))
	if err != nil {
		panic(err)
	}
	fmt.Printf("done %s\n", text)
	proc.Listen()
})

// checkVisits looks for everything that must never be: an error, a writer beside anybody, a fence that does not grow from phase
// to phase; on a quorum the readers of one time may have different ones, but all later writers larger ones. It returns how many stays and phases there were, and how many phases began while a writer waited, at most.
func checkVisits(t testing.TB, all []visit, quorum bool) (reads, writes, phases, overtaken int) {
	t.Helper()
	slices.SortFunc(all, func(a, b visit) int { return cmp.Compare(a.Start, b.Start) })
	var writer, last visit // the last writer, and who had the largest fence
	var ended int64        // when the last of all had left
	began := make(map[uint64]int64)
	for _, s := range all {
		if s.Failed != "" {
			t.Errorf("%s: %s", s.Who, s.Failed)
			return
		}
		if s.Mode == locker.Shared {
			reads++
			if _, known := began[s.Fence]; !known {
				began[s.Fence] = s.Start
				phases++
			}
			if s.Start < writer.End {
				t.Errorf("reader %s came in %v before writer %s had left", s.Who, time.Duration(writer.End-s.Start), writer.Who)
			}
		} else {
			writes++
			if s.Start < ended {
				t.Errorf("writer %s came in %v before somebody had left", s.Who, time.Duration(ended-s.Start))
			}
		}
		before := writer // whoever has a smaller fence than that
		if s.Mode == locker.Exclusive || !quorum {
			before = last
		}
		if s.Fence < before.Fence || s.Fence == before.Fence && (s.Mode == locker.Exclusive || before.Mode == locker.Exclusive) {
			t.Errorf("fence %d of %s after %d of %s", s.Fence, s.Who, before.Fence, before.Who)
		}
		if s.Mode == locker.Exclusive {
			writer = s
		}
		if s.Fence > last.Fence {
			last = s
		}
		ended = max(ended, s.End)
		if t.Failed() {
			return // what follows is no news
		}
	}
	subscribed := make(map[string]bool)
	for _, s := range all {
		if s.Mode == locker.Shared || !subscribed[s.Who] { // who waits for the first time cannot be in the queue at once
			subscribed[s.Who] = s.Mode == locker.Exclusive
			continue
		}
		n := 0
		for _, at := range began {
			if at > s.Asked && at < s.Start {
				n++
			}
		}
		overtaken = max(overtaken, n)
	}
	return reads, writes, phases, overtaken
}

func TestTheVisitsCheckerFindsWhatIsWrong(t *testing.T) {
	first := visit{Who: "r", Mode: locker.Shared, Fence: 1, Start: 10, End: 20}
	for name, wrong := range map[string][]visit{
		"a writer beside a reader": {first, {Who: "w", Fence: 2, Start: 19, End: 30}},
		"a reader beside a writer": {{Who: "w", Fence: 1, Start: 10, End: 20}, {Who: "r", Mode: locker.Shared, Fence: 2, Start: 15, End: 30}},
		"a fence for two":          {first, {Who: "w", Fence: 1, Start: 21, End: 30}},
		"a fence that falls":       {{Who: "w", Fence: 5, Start: 1, End: 2}, first},
		"an error":                 {first, {Who: "w", Failed: "stuck"}},
	} {
		if !faketest.Run(t, func(t testing.TB) { checkVisits(t, wrong, name == "a fence for two") }).Failed() {
			t.Errorf("%s: it was not found", name)
		}
	}
	if reads, _, phases, _ := checkVisits(t, []visit{first, {Who: "q", Mode: locker.Shared, Fence: 1, Start: 15, End: 25}}, false); reads != 2 || phases != 1 {
		t.Errorf("%d reads in %d phases", reads, phases)
	}
}

// 64 readers in two processes, always somebody reading, and a writer in each: none waits for more than one phase that
// begins after it has asked, and none of any kind beside another.
func TestReadersAndWritersOfManyProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var children []*proc.Child
	for i := range 2 {
		text, err := json.Marshal(visitors{
			Addr: server.Addr(), Name: fmt.Sprint("p", i), Key: "visited", Readers: 32, Writers: 1, For: 3 * time.Second, Hold: 2 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		child := visitorProcess.Start(t, string(text))
		child.Expect(t, "ready")
		children = append(children, child)
	}
	for _, child := range children {
		child.Send("go")
	}
	var all []visit
	for _, child := range children {
		var more []visit
		if err := json.Unmarshal([]byte(child.Expect(t, "done")), &more); err != nil {
			t.Fatal(err)
		}
		all = append(all, more...)
	}
	reads, writes, phases, overtaken := checkVisits(t, all, false)
	t.Logf("%d reads in %d phases, %d writes; at most %d phases began while a writer waited", reads, phases, writes, overtaken)
	// Of two writers one waits for the other and for the phase between them, and phases may begin while the question is under way on
	// a slow machine. Readers who starve writers would begin hundreds.
	if reads < 100 || writes < 10 || overtaken > 8 {
		t.Errorf("%d reads, %d writes, %d phases began while a writer waited", reads, writes, overtaken)
	}
	eventually(t, "nothing is left", func() bool { return server.Client(t).Exists(t.Context(), "visited").Val() == 0 })
	nothingLeftBut(t, server.Client(t), "latchkit:x:") // of who was told before the answer came
}
