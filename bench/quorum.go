package main

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// quorumSpec is the specification of a process that locks on several servers.
type quorumSpec struct {
	Contestant string
	Addrs      []string
	Turn       time.Duration
}

// quorumWork is what the process has done.
type quorumWork struct {
	Took         histogram // durations of acquisitions
	Gave         histogram // durations of releases
	Once, Rounds uint64    // number of acquisitions with a single round trip, and of all acquisitions
	LeftBehind   int       // number of goroutines that are left after the library was closed
}

// condition is which servers are slow or stopped.
type condition struct {
	name    string
	lines   []time.Duration // the delay of each of the first servers' answers
	stopped int
}

var conditions = []condition{
	{name: "healthy"}, {name: "1 slow by 20 ms", lines: []time.Duration{20 * time.Millisecond}},
	{name: "1 stopped", stopped: 1}, {name: "2 stopped", stopped: 2},
}

func quorumPart(s *stage) error {
	var q quorumSpec
	if err := s.read(&q); err != nil {
		return err
	}
	before := runtime.NumGoroutine()
	var l quorumLocks
	for _, c := range quorumContestants {
		if c.name == q.Contestant {
			var err error
			if l, err = c.open(q.Addrs, lockTTL); err != nil {
				return err
			}
		}
	}
	for range 20 {
		if err := tryOut(l, "warm"); err != nil {
			return err
		}
	}
	onceWarm, roundsWarm := l.OneRound()
	s.say("ready", nil)
	start, err := s.awaitStart()
	if err != nil {
		return err
	}
	sleepUntil(start)
	var done quorumWork
	if err := done.run(l, time.Now().Add(q.Turn)); err != nil {
		return err
	}
	once, all := l.OneRound()
	done.Once, done.Rounds = once-onceWarm, all-roundsWarm
	s.say("worked", nil)
	s.await() // waits until the parent has resumed the stopped servers
	l.Close()
	done.LeftBehind = max(runtime.NumGoroutine()-before, 0)
	s.say("done", done)
	return nil
}

// run acquires and releases one key after the other. Each acquisition has a new key, so keys
// that an earlier lock has left on the servers do not matter.
func (w *quorumWork) run(l locks, end time.Time) error {
	for i := 0; time.Now().Before(end); i++ {
		asked := time.Now()
		h, err := l.Lock(context.Background(), "k:"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		granted := time.Now()
		w.Took.add(granted.Sub(asked))
		if f, ok := h.(fenced); ok && f.Fence() == 0 {
			return errors.New("a lock without a fence")
		}
		if err := h.Release(context.Background()); err != nil {
			return err
		}
		w.Gave.add(time.Since(granted))
	}
	return nil
}

// quorumTurn is the result of one turn.
type quorumTurn struct {
	quorumWork
	keys int // number of keys that are left on the servers
}

func (t quorumTurn) tookP50() float64    { return micros(t.Took.percentile(50)) }
func (t quorumTurn) tookP99() float64    { return micros(t.Took.percentile(99)) }
func (t quorumTurn) gaveP50() float64    { return micros(t.Gave.percentile(50)) }
func (t quorumTurn) keysLeft() float64   { return float64(t.keys) }
func (t quorumTurn) goroutines() float64 { return float64(t.LeftBehind) }
func (t quorumTurn) oneRound() float64   { return 100 * float64(t.Once) / float64(t.Rounds) }

// cluster has the servers on which a row locks.
type cluster struct {
	servers []server
	pids    []int
	addrs   []string
}

var processID = regexp.MustCompile(`process_id:(\d+)`)

// launchNodes starts servers that are nodes of a quorum and may vote at once.
func launchNodes(ctx context.Context, n int) (c *cluster, err error) {
	c = &cluster{}
	var nodes []locker.Client
	for range n {
		s, err := launchServer()
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.servers = append(c.servers, s)
		c.addrs = append(c.addrs, s.Addr())
		nodes = append(nodes, s.witness)
		info, err := s.witness.Info(ctx, "server").Result()
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		pid, _ := strconv.Atoi(processID.FindStringSubmatch(info)[1])
		c.pids = append(c.pids, pid)
	}
	if err := locker.EnrollRedlock(ctx, nodes); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) close() (err error) {
	for _, s := range c.servers {
		err = errors.Join(err, s.close())
	}
	return err
}

// signal sends s to n of the servers. The signal stops or resumes them.
func (c *cluster) signal(n int, s syscall.Signal) (err error) {
	for _, pid := range c.pids[:n] {
		err = errors.Join(err, syscall.Kill(pid, s))
	}
	return err
}

// take runs one turn of the named contestant under the condition cond, for the time length.
func (c *cluster) take(ctx context.Context, name string, cond condition, length time.Duration) (t quorumTurn, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+2*patience)
	defer cancel()
	for _, s := range c.servers {
		if err := clearLocks(ctx, s.witness); err != nil {
			return t, err
		}
	}
	spec := quorumSpec{Contestant: name, Addrs: append([]string(nil), c.addrs...), Turn: length}
	for i, latency := range cond.lines {
		line, err := newDelay(c.addrs[i], latency)
		if err != nil {
			return t, err
		}
		defer line.close()
		spec.Addrs[i] = line.addr()
	}
	all, err := launchAll("quorum", []quorumSpec{spec})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, all.end()) }()
	if err := all[0].expect(ctx, "ready", nil); err != nil {
		return t, err
	}
	if err := c.signal(cond.stopped, syscall.SIGSTOP); err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, c.signal(cond.stopped, syscall.SIGCONT)) }()
	if err := all.start(); err != nil {
		return t, err
	}
	if err := all[0].expect(ctx, "worked", nil); err != nil {
		return t, err
	}
	if err := c.signal(cond.stopped, syscall.SIGCONT); err != nil {
		return t, err
	}
	if err := all[0].say("go on"); err != nil {
		return t, err
	}
	if err := all[0].expect(ctx, "done", &t.quorumWork); err != nil {
		return t, err
	}
	if err := all.finish(); err != nil {
		return t, err
	}
	for _, s := range c.servers {
		keys, err := lockKeys(ctx, s.witness)
		if err != nil {
			return t, err
		}
		t.keys += len(keys)
	}
	return t, nil
}

// lockKeys returns the keys on the server that are gone after a complete release: leases and
// queues. The fence counters, the markers of the nodes and the tombstones remain.
func lockKeys(ctx context.Context, c *redis.Client) (left []string, err error) {
	keys, err := c.Keys(ctx, "*").Result()
	for _, key := range keys {
		if key != "latchkit:node" && !strings.HasPrefix(key, "latchkit:f:") && !strings.HasPrefix(key, "latchkit:x:") {
			left = append(left, key)
		}
	}
	return left, err
}

// clearLocks removes the lock keys of the previous turn. It keeps the markers, without which
// the server would not be a node of the quorum.
func clearLocks(ctx context.Context, c *redis.Client) error {
	keys, err := lockKeys(ctx, c)
	if err != nil || len(keys) == 0 {
		return err
	}
	return c.Del(ctx, keys...).Err()
}
