// Package runall tests that RunAll never leads to a deadlock, when processes take random sets of
// keys that overlap.
package runall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

// stuckAfter is the time after which a call counts as hanging. All work of a scenario takes
// about a second, so such a call is surely in a deadlock.
const stuckAfter = 20 * time.Second

// call is a RunAll, with or without another RunAll inside.
type call struct {
	Keys   []string // the keys, in any order; the same key may occur twice
	Wait   time.Duration
	Hold   time.Duration
	Inside *call
}

// job is what one process must do: for each worker, its calls, one after the other.
type job struct {
	Reentrant bool
	Workers   [][]call
}

// report has the results of one job.
type report struct {
	Ran, Refused int
	Failures     []string
}

// process does the jobs that its parent sends, until the parent ends.
var process = proc.Register("process", func(args []string) {
	client := redis.NewClient(&redis.Options{Addr: args[0]})
	e, err := locker.New(client)
	if err != nil {
		panic(err)
	}
	for {
		var j job
		if err := json.Unmarshal([]byte(proc.Listen()), &j); err != nil {
			panic(err)
		}
		w := worker{locks: e, client: client}
		if j.Reentrant {
			if w.locks, err = locker.NewReentrant(e); err != nil {
				panic(err)
			}
		}
		var wg sync.WaitGroup
		for _, calls := range j.Workers {
			wg.Go(func() {
				for _, c := range calls {
					w.do(context.Background(), c, nil)
				}
			})
		}
		wg.Wait()
		text, err := json.Marshal(w.report)
		if err != nil {
			panic(err)
		}
		fmt.Println("did", string(text))
	}
})

// worker makes the calls of one process, for all its workers.
type worker struct {
	locks  locker.Locker
	client *redis.Client

	mu     sync.Mutex
	report report
}

// do makes the call c in a context that holds the keys held already.
func (w *worker) do(ctx context.Context, c call, held []string) {
	var rules []locker.Rule
	for _, key := range c.Keys {
		rules = append(rules, locker.Rule{Key: key, TTL: 10 * time.Second, Wait: c.Wait})
	}
	calling, cancel := context.WithTimeout(ctx, stuckAfter)
	defer cancel()
	ran := false
	err := locker.RunAll(calling, w.locks, rules, func(ctx context.Context) error {
		ran = true
		all := slices.Clone(held)
		for _, key := range c.Keys {
			if !slices.Contains(all, key) {
				all = append(all, key)
				w.enter(key)
			}
		}
		<-time.After(c.Hold)
		if c.Inside != nil {
			w.do(ctx, *c.Inside, all)
		}
		for _, key := range all[len(held):] {
			if err := w.client.Decr(context.Background(), "inside:"+key).Err(); err != nil {
				w.fail("%v", err)
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && ran:
		w.report.Ran++
	case errors.Is(err, context.DeadlineExceeded), ran:
		w.report.Failures = append(w.report.Failures, fmt.Sprintf("RunAll of %v inside %v: %v", c.Keys, held, err))
	case errors.Is(err, locker.ErrUnsupported), errors.Is(err, locker.ErrBusy), c.Wait > 0 && errors.Is(err, locker.ErrUnavailable): // with a short Wait, the server may seem unavailable
		w.report.Refused++
	default:
		w.report.Failures = append(w.report.Failures, fmt.Sprintf("RunAll of %v inside %v: %v", c.Keys, held, err))
	}
}

// enter records that a key is held. It reports an error if the key has another holder.
func (w *worker) enter(key string) {
	if n, err := w.client.Incr(context.Background(), "inside:"+key).Result(); n != 1 || err != nil {
		w.fail("%d hold %s: %v", n, key, err)
	}
}

func (w *worker) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Failures = append(w.report.Failures, fmt.Sprintf(format, args...))
}

// calls returns a generator of calls with other calls inside.
func calls(depth int) *rapid.Generator[call] {
	return rapid.Custom(func(t *rapid.T) call {
		c := call{
			Keys: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 4).Draw(t, "keys"),
			Wait: rapid.SampledFrom([]time.Duration{0, 0, locker.NoWait, 10 * time.Millisecond}).Draw(t, "wait"),
			Hold: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond}).Draw(t, "hold"),
		}
		if depth > 1 && rapid.Bool().Draw(t, "nested") {
			inside := calls(depth-1).Draw(t, "inside")
			c.Inside = &inside
		}
		return c
	})
}

func TestRandomSetsOfKeysInFourProcessesNeverHang(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	var children []*proc.Child
	for range 4 {
		children = append(children, process.Start(t, server.Addr()))
	}
	ran, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		jobs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) job {
			return job{
				Reentrant: rapid.Bool().Draw(t, "reentrant"),
				Workers:   rapid.SliceOfN(rapid.SliceOfN(calls(3), 1, 6), 1, 3).Draw(t, "workers"),
			}
		}), len(children), len(children)).Draw(rt, "jobs")
		for i, j := range jobs {
			text, err := json.Marshal(j)
			if err != nil {
				t.Fatal(err)
			}
			children[i].Send(string(text))
		}
		var failures []string
		for i, c := range children {
			var r report
			if err := json.Unmarshal([]byte(c.Expect(t, "did ")), &r); err != nil {
				t.Fatal(err)
			}
			ran, refused = ran+r.Ran, refused+r.Refused
			for _, f := range r.Failures {
				failures = append(failures, fmt.Sprintf("process %d: %s", i, f))
			}
		}
		if len(failures) > 0 {
			rt.Fatal(strings.Join(failures, "\n"))
		}
		bound := time.Now().Add(stuckAfter)
		for client.Exists(t.Context(), "a", "b", "c", "d", "e").Val() != 0 || len(client.Keys(t.Context(), "latchkit:q:*").Val()) != 0 {
			if time.Now().After(bound) {
				rt.Fatalf("%v is left", client.Keys(t.Context(), "*").Val())
			}
			<-time.After(time.Millisecond)
		}
	})
	t.Logf("%d calls ran, %d were refused", ran, refused)
	if ran == 0 || refused == 0 {
		t.Error("positive control: some calls run, and some are refused")
	}
}
