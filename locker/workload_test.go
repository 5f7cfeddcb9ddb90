package locker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/proc/faketest"
	"github.com/latchkit/latchkit/locker"
)

// workload says what the workers of one process do: they take keys and release them, again and
// again.
type workload struct {
	Addr    string
	Name    string
	Fair    bool
	Keys    []string
	TTL     time.Duration
	Workers int
	Rounds  int           // number of rounds of each worker; 0: the workers continue for the time For
	For     time.Duration // how long the workers continue, if Rounds is 0
	Hold    time.Duration
	Rest    time.Duration // the pause between two rounds
}

// section is one period in which a worker held a lock. The times of a section are by the
// machine's clock, which all processes share. A section is shorter than its lease, because the
// worker looks at the clock after the grant and before the release.
type section struct {
	Process string
	Worker  string
	Key     string
	Fence   uint64
	Asked   int64 // in ns
	Start   int64
	End     int64
	Failed  string // the text of a failure; "": no failure

	Unanswered int // number of calls that were not answered in time
}

type worker struct{}

// locker returns the Engine of a workload. A worker's name is the metadata of its leases, so the
// name is also in the queue.
func (w workload) locker(client locker.Client) (*locker.Engine, error) {
	options := []locker.SingleOption{locker.WithMetadata(func(ctx context.Context) string {
		name, _ := ctx.Value(worker{}).(string)
		return name
	})}
	if w.Fair {
		options = append(options, locker.WithFair())
	}
	return locker.New(client, options...)
}

// run does the work of all workers, and returns their sections, which are the times in which a
// worker held a lock.
func (w workload) run(l locker.Locker) []section {
	all := make([][]section, w.Workers)
	inside := make(map[string]*atomic.Int32)
	for _, key := range w.Keys {
		inside[key] = new(atomic.Int32)
	}
	until := time.Now().Add(w.For)
	var wg sync.WaitGroup
	for i := range w.Workers {
		wg.Go(func() {
			for n := 0; n < w.Rounds || time.Now().Before(until); n++ {
				key := w.Keys[(i+n)%len(w.Keys)]
				s := w.visit(l, fmt.Sprint(w.Name, "/", i), key, inside[key])
				all[i] = append(all[i], s)
				if s.Failed != "" {
					return
				}
				if w.Rest > 0 {
					<-time.After(w.Rest)
				}
			}
		})
	}
	wg.Wait()
	return slices.Concat(all...)
}

// visit acquires the key, stays for a while, and releases it.
func (w workload) visit(l locker.Locker, name, key string, inside *atomic.Int32) section {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), worker{}, name), stuckAfter)
	defer cancel()
	s := section{Process: w.Name, Worker: name, Key: key, Asked: time.Now().UnixNano()}
	lease, err := l.Acquire(ctx, locker.Rule{Key: key, TTL: w.TTL})
	for errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil {
		s.Unanswered++
		lease, err = l.Acquire(ctx, locker.Rule{Key: key, TTL: w.TTL})
	}
	if err != nil {
		s.Failed = err.Error()
		return s
	}
	s.Fence, s.Start = lease.Fence(), time.Now().UnixNano()
	if n := inside.Add(1); n != 1 {
		s.Failed = fmt.Sprintf("%d of one process are inside at once", n)
	}
	if w.Hold > 0 {
		<-time.After(w.Hold)
	}
	inside.Add(-1)
	s.End = time.Now().UnixNano()
	switch err := lease.Release(ctx); {
	case errors.Is(err, locker.ErrUnavailable): // the release continues in the background
		s.Unanswered++
	case err != nil:
		s.Failed = err.Error()
	}
	return s
}

// workers is a process with a workload. The process works when its parent asks for this, and then
// prints its sections.
var workers = proc.Register("workload", func(args []string) {
	var w workload
	if err := json.Unmarshal([]byte(args[0]), &w); err != nil {
		panic(err)
	}
	client := redis.NewClient(&redis.Options{Addr: w.Addr})
	l, err := w.locker(client)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	proc.Listen()
	done := w.run(l)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		done = append(done, section{Process: w.Name, Failed: err.Error()})
	}
	text, err := json.Marshal(done)
	if err != nil {
		panic(err)
	}
	fmt.Printf("done %s\n", text)
	proc.Listen()
})

// start starts a process with the workload.
func (w workload) start(t *testing.T) *proc.Child {
	t.Helper()
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	child := workers.Start(t, string(text))
	child.Expect(t, "ready")
	return child
}

// history has the sections of several processes.
type history []section

// add reads the output of a process until the process has ended. It ends the test if the process
// is stuck.
func (h *history) add(t *testing.T, child *proc.Child) {
	t.Helper()
	var more []section
	if err := json.Unmarshal([]byte(child.Expect(t, "done")), &more); err != nil {
		t.Fatal(err)
	}
	*h = append(*h, more...)
}

// check finds what must never happen: an error, two workers inside a lock at the same time, or a
// fence that does not grow. It returns, for each key, the sections (the stays of workers inside the
// lock), sorted by their start. In this order, the fences grow if check has found no mistake.
func (h history) check(t testing.TB) map[string][]section {
	t.Helper()
	byKey := make(map[string][]section)
	failures, unanswered := 0, 0
	for _, s := range h {
		unanswered += s.Unanswered
		if s.Failed != "" {
			if failures++; failures <= 10 {
				t.Errorf("%s at %s: %s", s.Worker, s.Key, s.Failed)
			}
			continue
		}
		byKey[s.Key] = append(byKey[s.Key], s)
	}
	// A few calls without an answer are no failure, because on a busy machine a server may answer
	// too late.
	if unanswered > 10+len(h)/20 {
		t.Errorf("%d calls for %d sections were not answered in time", unanswered, len(h))
	}
	for key, of := range byKey {
		slices.SortFunc(of, func(a, b section) int { return cmp.Compare(a.Start, b.Start) })
		for i, s := range of[1:] {
			before := of[i]
			if s.Start < before.End {
				t.Errorf("%s: %s came in %v before %s had left", key, s.Worker, time.Duration(before.End-s.Start), before.Worker)
			}
			if s.Fence <= before.Fence {
				t.Errorf("%s: fence %d of %s after %d of %s", key, s.Fence, s.Worker, before.Fence, before.Worker)
			}
			if t.Failed() {
				break // stop here, because later failures would follow from this one
			}
		}
	}
	return byKey
}

// longestWait returns the longest time between a worker's request and its grant.
func (h history) longestWait() (longest time.Duration) {
	for _, s := range h {
		longest = max(longest, time.Duration(s.Start-s.Asked))
	}
	return longest
}

// The checker must find planted errors. This test shows that the checker is able to find errors at
// all.
func TestTheHistorysCheckerFindsWhatIsWrong(t *testing.T) {
	ok := section{Worker: "a", Key: "k", Fence: 1, Start: 10, End: 20}
	for name, wrong := range map[string]section{
		"overlap": {Worker: "b", Key: "k", Fence: 2, Start: 19, End: 30},
		"fence":   {Worker: "b", Key: "k", Fence: 1, Start: 21, End: 30},
		"error":   {Worker: "b", Key: "k", Failed: errors.ErrUnsupported.Error()},
	} {
		if !faketest.Run(t, func(t testing.TB) { history{ok, wrong}.check(t) }).Failed() {
			t.Errorf("%s: it was not found", name)
		}
	}
	history{ok, {Worker: "b", Key: "k", Fence: 2, Start: 21, End: 30}, {Worker: "c", Key: "other", Fence: 1, Start: 15, End: 16}}.check(t)
}

// field returns the value of one field in the answer to INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if is, value, _ := strings.Cut(strings.TrimSpace(line), ":"); is == name {
			return value
		}
	}
	return ""
}
