package locker_test

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

var stormFor = flag.Duration("storm", 10*time.Second, "how long faults rain on a server")

// storm is one fault that strikes again and again. Each storm has its own server.
type storm struct {
	interval time.Duration
	fault    func(ctx context.Context, c *redis.Client) (struck int, err error)
	least    int // how often the fault must strike in a second; fewer strikes would prove nothing
}

var storms = map[string]storm{
	// Each process loses the messages that are sent before it has subscribed again.
	"subscriptions are killed": {50 * time.Millisecond, func(ctx context.Context, c *redis.Client) (int, error) {
		n, err := c.ClientKillByFilter(ctx, "type", "pubsub").Result()
		return int(n), err
	}, 2},
	// When the server does not know a script, the client sends the call again with the text of
	// the script. The script must still run only once.
	"scripts are forgotten": {5 * time.Millisecond, func(ctx context.Context, c *redis.Client) (int, error) {
		known, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return 0, err
		}
		if n, err := strconv.Atoi(field(known, "number_of_cached_scripts")); n == 0 || err != nil {
			return 0, err
		}
		return 1, c.ScriptFlush(ctx).Err()
	}, 8},
}

// Although any message may be lost, no caller is stuck, no caller gets an error, and no two
// processes hold a key at the same time. All storms run at the same time, each on its own server,
// because a storm needs much time but little work.
func TestNobodyIsStuckInAStorm(t *testing.T) {
	t.Parallel()
	type outcome struct {
		history
		rainResult
	}
	brewing := make(map[string]func() outcome)
	for name, s := range storms {
		server := redistest.Start(t)
		work := workload{
			Addr: server.Addr(), Keys: []string{"storm:{a}", "storm:b", "storm:c", "d"}, TTL: 20 * time.Second,
			Workers: 8, For: *stormFor, Hold: time.Millisecond, Rest: 3 * time.Millisecond,
		}
		var children []*proc.Child
		for i := range 2 {
			work.Name = fmt.Sprint("child", i)
			children = append(children, work.start(t))
		}
		ended := make(chan outcome, 1)
		var here [2][]section
		var working sync.WaitGroup
		for i := range here {
			work := work
			work.Name = fmt.Sprint("engine", i)
			l := newSingle(t, server.Client(t))
			working.Go(func() { here[i] = work.run(l) })
		}
		for _, child := range children {
			child.Send("go")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		raining := make(chan rainResult, 1)
		client := server.Client(t)
		go func() { raining <- s.rain(ctx, client) }()
		go func() {
			working.Wait()
			cancel()
			ended <- outcome{append(here[0], here[1]...), <-raining}
		}()
		brewing[name] = func() outcome {
			var done outcome
			select {
			case done = <-ended:
			case <-time.After(*stormFor + 2*stuckAfter):
				t.Fatalf("%s: the workers are stuck", name)
			}
			for _, child := range children {
				done.add(t, child)
			}
			nothingLeftBut(t, client, "latchkit:x:")
			return done
		}
	}
	for name, outcome := range brewing {
		done := outcome()
		done.check(t)
		perWorker := make(map[string]int)
		for _, s := range done.history {
			perWorker[s.Worker]++
		}
		fewest := len(done.history)
		for _, n := range perWorker {
			fewest = min(fewest, n)
		}
		longest := done.longestWait()
		t.Logf("%s: %d faults struck in %d attempts; %d leases, at least %d for each of %d workers; the longest wait was %v",
			name, done.struck, done.attempts, len(done.history), fewest, len(perWorker), longest)
		switch {
		case done.err != nil:
			t.Errorf("%s: %v", name, done.err)
		case done.struck < storms[name].least*int(stormFor.Seconds()):
			t.Errorf("positive control: %s: %d faults struck in %v", name, done.struck, *stormFor)
		case longest > stuckAfter/2:
			t.Errorf("%s: a caller waited for %v", name, longest)
		}
	}
}

// rainResult has what a storm did: how many faults it attempted, how many struck, and an error.
type rainResult struct {
	attempts, struck int
	err              error
}

// rain makes the fault strike until ctx ends.
func (s storm) rain(ctx context.Context, c *redis.Client) (r rainResult) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r
		}
		n, err := s.fault(context.WithoutCancel(ctx), c)
		if err != nil {
			r.err = err
			return r
		}
		r.attempts++
		r.struck += n
	}
}
