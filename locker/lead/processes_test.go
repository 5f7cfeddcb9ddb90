package lead_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// leaderProcess is a candidate until SIGTERM. When a term begins or ends, the process prints this
// event with the time of the wall clock in µs.
var leaderProcess = proc.Register("leader", func(args []string) {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		panic(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: args[0]}))
	if err != nil {
		panic(err)
	}
	leader, err := lead.New(l, locker.Rule{Key: args[1], TTL: ttl}, lead.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		for proc.Listen() == "who" {
			_, leading := leader.Leading()
			fmt.Println("says", leading)
		}
	}()
	err = leader.Run(ctx, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fmt.Println("leads", lease.Fence(), time.Now().UnixMicro())
		<-ctx.Done()
		fmt.Println("stops", time.Now().UnixMicro(), context.Cause(ctx))
		return nil
	})
	fmt.Println("ended", err)
	_ = l.Close(context.Background())
})

// awaitTerm waits until the process p leads. It returns the fence, and the time at which the term
// began.
func awaitTerm(t *testing.T, p *proc.Child) (fence uint64, began time.Time) {
	t.Helper()
	var micros int64
	if _, err := fmt.Sscan(p.Expect(t, "leads"), &fence, &micros); err != nil {
		t.Fatal(err)
	}
	return fence, time.UnixMicro(micros)
}

// awaitTermEnd waits until the process p does not lead any more. It returns the time at which the
// term ended.
func awaitTermEnd(t *testing.T, p *proc.Child) time.Time {
	t.Helper()
	text, _, _ := strings.Cut(p.Expect(t, "stops"), " ")
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(micros)
}

func terminate(t *testing.T, p *proc.Child) {
	t.Helper()
	process, err := os.FindProcess(p.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// startGroup starts n processes of one service. The first process leads, and the other processes
// wait in order.
func startGroup(t *testing.T, n int, ttl string) (all []*proc.Child, fence uint64) {
	t.Helper()
	server := redistest.Shared(t)
	key := strings.ReplaceAll(t.Name(), "/", ":")
	for i := range n {
		p := leaderProcess.Start(t, server.Addr(), key, ttl)
		all = append(all, p)
		if i == 0 {
			fence, _ = awaitTerm(t, p)
			continue
		}
		locktest.Eventually(t, "it stands", func() bool { return locktest.Queued(t, server.Client(t), key) == i })
	}
	return all, fence
}

// This test is a rolling restart. After SIGTERM to the leader, the next process leads within
// milliseconds.
func TestTheLeadIsHandedOverAtSIGTERM(t *testing.T) {
	t.Parallel()
	all, fence := startGroup(t, 4, "10s")
	var longest time.Duration
	for i, next := range all[1:] {
		terminate(t, all[i])
		stopped := awaitTermEnd(t, all[i])
		newer, began := awaitTerm(t, next)
		if newer <= fence || began.Before(stopped) {
			t.Errorf("term %d began %v before the end of term %d", newer, stopped.Sub(began), fence)
		}
		longest, fence = max(longest, began.Sub(stopped)), newer
		if got := all[i].Expect(t, "ended"); got != "<nil>" {
			t.Errorf("Run returned %s", got)
		}
		all[i].Wait(t)
	}
	t.Logf("the longest hand-over took %v", longest)
	if longest > locktest.Slack { // without the message, a hand-over would take the TTL
		t.Errorf("a hand-over took %v", longest)
	}
}

// When a leader dies, the next process leads after the TTL.
func TestAKilledLeaderIsReplacedAfterItsTTL(t *testing.T) {
	t.Parallel()
	all, fence := startGroup(t, 3, "2s")
	all[0].Kill()
	killed := time.Now()
	newer, began := awaitTerm(t, all[1])
	if took := began.Sub(killed); newer <= fence || took > 2*time.Second+locktest.Slack {
		t.Errorf("term %d after %d began after %v", newer, fence, took)
	}
}

// When a stopped leader runs again, it does not lead any more. Leading returns false at once, even
// before the context has ended.
func TestAStoppedLeaderKnowsThatItLeadsNoLonger(t *testing.T) {
	t.Parallel()
	all, fence := startGroup(t, 2, "2s")
	old, next := all[0], all[1]
	old.Pause()
	newer, _ := awaitTerm(t, next)
	if newer <= fence {
		t.Errorf("term %d after %d", newer, fence)
	}
	old.Send("who")
	old.Resume()
	for _, line := range []string{old.Expect(t, ""), old.Expect(t, "")} { // the two lines may come in either order
		if line != "says false" && !strings.HasPrefix(line, "stops") {
			t.Errorf("the stopped leader prints %q", line)
		}
	}
	next.Send("who")
	if got := next.Expect(t, "says"); got != "true" {
		t.Errorf("the next one leads: %s", got)
	}
	terminate(t, next)
	if again, _ := awaitTerm(t, old); again <= newer {
		t.Errorf("term %d after %d", again, newer)
	}
}

// On a semaphore with n units, n processes lead at the same time. Each leader has a fence of its
// own.
func TestASemaphoreElectsSeveralLeaders(t *testing.T) {
	t.Parallel()
	l, err := locker.NewSemaphore(redistest.Shared(t).Client(t), 2, locker.WithPrefix(t.Name()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	all := []*candidate{newCandidate(t, l, locker.Rule{}), newCandidate(t, l, locker.Rule{})}
	_, one := all[0].awaitTerm()
	_, two := all[1].awaitTerm()
	if one == two || one == 0 || two == 0 {
		t.Errorf("two leaders have the fences %d and %d", one, two)
	}
	third := newCandidate(t, l, locker.Rule{})
	locktest.Eventually(t, "the third one stands", func() bool {
		info, err := l.Inspect(t.Context(), "job")
		return err == nil && info.Waiters == 1
	})
	if _, leading := third.Leading(); leading {
		t.Error("three lead")
	}
	if err := all[0].stop(); err != nil {
		t.Error(err)
	}
	if _, next := third.awaitTerm(); next <= max(one, two) {
		t.Errorf("the third one has the fence %d after %d and %d", next, one, two)
	}
	for _, c := range []*candidate{all[1], third} {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
}
