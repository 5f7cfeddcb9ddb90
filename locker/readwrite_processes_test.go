package locker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/proc/faketest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// readerProcess holds a key as a reader until its parent stops it.
var readerProcess = proc.Register("reader", func(args []string) {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		panic(err)
	}
	l, err := locker.NewReadWrite(redis.NewClient(&redis.Options{Addr: args[0]}))
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], Mode: locker.Shared, TTL: ttl})
	if err != nil {
		panic(err)
	}
	fmt.Println("granted", lease.Fence())
	asked := make(chan struct{})
	go func() {
		proc.Listen()
		close(asked)
		proc.Listen()
	}()
	select {
	case <-lease.Context().Done():
		fmt.Println("lost", errors.Is(context.Cause(lease.Context()), locker.ErrLost))
	case <-asked:
		fmt.Println("released", lease.Release(context.Background()))
	}
	select {} // proc.Listen ends the process
})

// When a process with readers dies or is stopped, a writer must wait until the lease of this
// process has expired. Readers of other processes are not delayed.
func TestASignalToAReader(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		rw := newReadWrite(t, p.server.Client(t))
		shared := locker.Rule{Key: p.key, Mode: locker.Shared}
		alive := acquire(t, rw, shared)
		child := readerProcess.Start(t, p.server.Addr(), p.key, "2s")
		fence := p.awaitGrant(child)
		if fence != alive.Fence() {
			t.Fatalf("fence %d beside %d", fence, alive.Fence())
		}
		w := queues(t, newReadWrite(t, p.server.Client(t)), locker.Rule{Key: p.key}, p.client)
		strike(child)
		<-time.After(2200 * time.Millisecond)
		w.WaitsStill() // one of the readers is alive
		if err := context.Cause(alive.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, alive)
		var written *locker.Lease
		within(t, 0, "the writer's grant", func() { written = w.Granted(0) })
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

var visitorProcess = proc.Register("visitors", func(args []string) {
	var v locktest.Visitors
	if err := json.Unmarshal([]byte(args[0]), &v); err != nil {
		panic(err)
	}
	l, err := locker.NewReadWrite(redis.NewClient(&redis.Options{Addr: v.Addr}))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	proc.Listen()
	text, err := json.Marshal(v.Run(l))
	if err != nil {
		panic(err)
	}
	fmt.Printf("done %s\n", text)
	proc.Listen()
})

func TestTheVisitsCheckerFindsWhatIsWrong(t *testing.T) {
	first := locktest.Visit{Who: "r", Mode: locker.Shared, Fence: 1, Start: 10, End: 20}
	for name, wrong := range map[string][]locktest.Visit{
		"a writer beside a reader": {first, {Who: "w", Fence: 2, Start: 19, End: 30}},
		"a reader beside a writer": {{Who: "w", Fence: 1, Start: 10, End: 20}, {Who: "r", Mode: locker.Shared, Fence: 2, Start: 15, End: 30}},
		"a fence for two":          {first, {Who: "w", Fence: 1, Start: 21, End: 30}},
		"a fence that falls":       {{Who: "w", Fence: 5, Start: 1, End: 2}, first},
		"an error":                 {first, {Who: "w", Failed: "stuck"}},
	} {
		if !faketest.Run(t, func(t testing.TB) { locktest.CheckVisits(t, wrong) }).Failed() {
			t.Errorf("%s: it was not found", name)
		}
	}
	if reads, _, phases, _ := locktest.CheckVisits(t, []locktest.Visit{first, {Who: "q", Mode: locker.Shared, Fence: 1, Start: 15, End: 25}}); reads != 2 || phases != 1 {
		t.Errorf("%d reads in %d phases", reads, phases)
	}
}

// Two processes have 32 readers and one writer each, and at every moment at least one of the
// readers wants to read. Each caller waits for at most one phase that begins after the caller's
// request. No writer holds the key together with another holder.
func TestReadersAndWritersOfManyProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var children []*proc.Child
	for i := range 2 {
		text, err := json.Marshal(locktest.Visitors{
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
	var all []locktest.Visit
	for _, child := range children {
		var more []locktest.Visit
		if err := json.Unmarshal([]byte(child.Expect(t, "done")), &more); err != nil {
			t.Fatal(err)
		}
		all = append(all, more...)
	}
	reads, writes, phases, overtaken := locktest.CheckVisits(t, all)
	t.Logf("%d reads in %d phases, %d writes; at most %d phases began while a writer waited", reads, phases, writes, overtaken)
	// A writer may have to wait for the other writer, and for the phase of readers between the
	// two writes. On a slow machine, some further phases may begin during the writer's first
	// request. If readers starved writers, hundreds of phases would begin.
	if reads < 100 || writes < 10 || overtaken > 8 {
		t.Errorf("%d reads, %d writes, %d phases began while a writer waited", reads, writes, overtaken)
	}
	eventually(t, "nothing is left", func() bool { return server.Client(t).Exists(t.Context(), "visited").Val() == 0 })
	nothingLeftBut(t, server.Client(t), "latchkit:x:") // a reader whose message came before its answer may leave a tombstone
}
