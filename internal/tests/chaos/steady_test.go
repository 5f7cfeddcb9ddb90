package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A steady trouble is mild, but lasts for longer than a lease: each answer takes a third of a
// second, or the holder's process gets little CPU time. The faults of the rounds are harder, and
// shorter. So a holder who takes slowness for an end, and begins anew again and again, is seen here
// only.
const (
	steadyTTL     = 6 * time.Second
	steadyLeases  = 20
	steadyCallers = 8
)

// The holders of a steady trouble, each with its client.
const (
	holderOpen      = "Open"
	holderNew       = "New"
	holderEnds      = "New:ContextTimeoutEnabled"
	holderPlain     = "plain:loop"
	holderImpatient = "New:200ms" // its client gives up calls after 200 ms: the control
)

// steadyOrder is what one process has to do in a steady trouble.
type steadyOrder struct {
	Holders []string
	Addr    string
	History string
}

// steadyHolder holds leases, and takes locks beside them. A plain holder is redislock, which renews
// a lock when it is told to.
type steadyHolder struct {
	journal
	name  string
	l     *locker.Engine    // nil: the holder is a plain renewal loop
	plain *redislock.Client // nil: the holder is l
	count atomic.Int64
}

func newSteadyHolder(j journal, name, addr string) (h *steadyHolder, err error) {
	h = &steadyHolder{journal: j, name: name}
	switch options := (&redis.Options{Addr: addr}); name {
	case holderOpen:
		h.l, err = locker.Open(options)
	case holderPlain:
		h.plain = redislock.New(redis.NewClient(options))
	case holderEnds:
		options.ContextTimeoutEnabled = true
		h.l, err = locker.New(redis.NewClient(options))
	case holderImpatient:
		options.ReadTimeout = 200 * time.Millisecond
		h.l, err = locker.New(redis.NewClient(options))
	default:
		h.l, err = locker.New(redis.NewClient(options))
	}
	return h, err
}

// hold takes the key, keeps its lease until the context over ends, and writes down how the lease
// ended. With over == nil, it releases the lease at once.
func (s *steadyHolder) hold(over context.Context, key string, taken func()) error {
	key = s.name + ":" + key
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	h := &hold{process: s.name, key: key, units: 1, id: fmt.Sprint(s.name, ".", s.count.Add(1)), asked: now()}
	lost := context.Background()
	var release func(context.Context) error
	if s.plain != nil {
		began := time.Now()
		lock, err := s.plain.Obtain(ctx, key, steadyTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(50 * time.Millisecond)})
		if err != nil {
			return err
		}
		release = lock.Release
		if over != nil {
			lost = refreshed(over, lock, began)
		}
	} else {
		lease, err := s.l.Acquire(ctx, locker.Rule{Key: key, TTL: steadyTTL})
		if err != nil {
			return err
		}
		lost, release, h.fence = lease.Context(), lease.Release, lease.Fence()
	}
	h.granted = now()
	s.granted(h)
	taken()
	h.alive, h.reason = h.granted, "released"
	if over != nil {
		select {
		case <-lost.Done():
			h.reason = "lost"
		case <-over.Done():
			h.alive = now()
		}
	}
	if err := release(ctx); err != nil && h.reason == "released" {
		h.reason = "unclear"
	}
	h.ended = now()
	s.ended(h)
	return nil
}

// refreshed renews the lock every third of its TTL, and after an error again and again, as a
// program without latchkit does. The context that it returns ends when the lock is lost. The lock
// was asked for at the time began.
func refreshed(over context.Context, lock *redislock.Lock, began time.Time) (lost context.Context) {
	lost, end := context.WithCancel(context.Background())
	go func() {
		for deadline := began.Add(steadyTTL); over.Err() == nil; {
			pause := steadyTTL / 3
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			sent := time.Now()
			switch err := lock.Refresh(ctx, steadyTTL, nil); {
			case err == nil:
				deadline = sent.Add(steadyTTL)
			case errors.Is(err, redislock.ErrNotObtained), !time.Now().Before(deadline):
				cancel()
				end()
				return
			default:
				pause = 50 * time.Millisecond
			}
			cancel()
			select {
			case <-time.After(pause):
			case <-over.Done():
			}
		}
	}()
	return lost
}

// steadyProcess holds leases by all holders of its order, and takes locks by some callers of each of
// them, until it is told to stop.
var steadyProcess = proc.Register("steady holders", func(args []string) {
	redis.SetLogger(quiet{})
	var o steadyOrder
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		panic(err)
	}
	file, err := os.OpenFile(o.History, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	over, end := context.WithCancel(context.Background())
	var work, ready sync.WaitGroup
	for _, name := range o.Holders {
		s, err := newSteadyHolder(journal{file}, name, o.Addr)
		if err != nil {
			panic(err)
		}
		for i := range steadyLeases {
			ready.Add(1)
			work.Go(func() {
				if err := s.hold(over, fmt.Sprint("held:", i), ready.Done); err != nil {
					panic(err)
				}
			})
		}
		ready.Wait()
		for i := range steadyCallers {
			work.Go(func() {
				for over.Err() == nil {
					_ = s.hold(nil, fmt.Sprint("taken:", i), func() {}) //nolint:staticcheck // see hold
				}
			})
		}
	}
	fmt.Println("ready")
	for spinners := 0; ; {
		switch proc.Listen() {
		case "spin":
			runtime.GOMAXPROCS(1)
			for ; spinners < 16; spinners++ {
				go func() {
					for over.Err() == nil {
					}
				}()
			}
		case "stop":
			end()
			work.Wait()
			fmt.Println("closed")
		}
	}
})

// steadyTrouble is a trouble that begins with begin, and lasts until the function end is called.
type steadyTrouble struct {
	name  string
	begin func(p *chaos.Pipe, child *proc.Child) (end func())
	// harms is true if the control loses its leases.
	harms bool
}

// late makes each answer of the server late.
func late(d time.Duration) steadyTrouble {
	return steadyTrouble{fmt.Sprintf("each answer takes %v", d), func(p *chaos.Pipe, _ *proc.Child) func() {
		p.Delay(d)
		return func() { p.Delay(0) }
	}, d > 200*time.Millisecond}
}

var steadyTroubles = []steadyTrouble{
	late(150 * time.Millisecond), late(250 * time.Millisecond), late(350 * time.Millisecond), late(500 * time.Millisecond),
	{"the process gets little CPU time", func(_ *chaos.Pipe, child *proc.Child) func() {
		child.Send("spin")
		return func() {}
	}, false},
}

// run holds leases and takes locks by the holders through a trouble. It returns what happened, and
// when the trouble began.
func (s steadyTrouble) run(t *testing.T, holders ...string) (h *history, began instant) {
	t.Helper()
	pipe, dir := chaos.NewPipe(t, redistest.Start(t).Addr()), historyFolder(t)
	order, err := json.Marshal(steadyOrder{Holders: holders, Addr: pipe.Addr(), History: filepath.Join(dir, "steady.history")})
	if err != nil {
		t.Fatal(err)
	}
	child := steadyProcess.Start(t, string(order))
	child.Expect(t, "ready")
	began = now()
	end := s.begin(pipe, child)
	time.Sleep(steadyTTL + 3*time.Second) //nolint:forbidigo // the length of the trouble
	end()
	child.Send("stop")
	child.Expect(t, "closed")
	child.Kill()
	if h, err = readHistory(dir, nil); err != nil {
		t.Fatal(err)
	}
	return h, began
}

// fared is how a holder fared in a steady trouble: how many locks it got, and how many leases it
// lost.
type fared struct{ Grants, Lost int }

func (h *history) fared(holder string, since instant) (f fared) {
	for _, one := range h.holds {
		if one.process == holder && one.asked >= since {
			f.Grants++
		}
		if one.process == holder && one.reason == "lost" {
			f.Lost++
		}
	}
	return f
}

// checkSteady finds holders who lost leases although a plain renewal loop kept its own, and holders
// who got no lock although the plain loop did.
func (v *verdict) checkSteady(h *history, since instant, holders ...string) {
	plain := h.fared(holderPlain, since)
	for _, name := range holders {
		switch f := h.fared(name, since); {
		case f.Lost > plain.Lost:
			v.violated("%s lost %d of %d leases, and a plain renewal loop %d", name, f.Lost, steadyLeases, plain.Lost)
		case f.Grants == 0 && plain.Grants > 0:
			v.violated("%s got no lock, and a plain loop %d", name, plain.Grants)
		}
	}
}

// In a trouble that lasts for longer than a lease, no lease is lost that a plain renewal loop
// keeps, and locks are granted. A client that gives up calls after 200 ms breaks this rule.
func TestChaosThatIsSteadyCostsNoLease(t *testing.T) {
	for _, trouble := range steadyTroubles {
		t.Run(trouble.name, func(t *testing.T) {
			t.Parallel()
			holders := []string{holderOpen, holderNew, holderEnds}
			all := append(slices.Clone(holders), holderPlain, holderImpatient)
			h, began := trouble.run(t, all...)
			for _, name := range all {
				t.Logf("%s: %+v", name, h.fared(name, began))
			}
			v := check(h, 0, nil, nil, nil)
			v.checkSteady(h, began, holders...)
			for _, text := range v.Violations {
				t.Error(text)
			}
			if plain := h.fared(holderPlain, began); plain.Grants == 0 || plain.Grants > 5000 { // without a trouble, some ten thousand
				t.Errorf("positive control: the plain loop got %d locks: there was no trouble, or nobody could lock", plain.Grants)
			}
			control := &verdict{}
			if control.checkSteady(h, began, holderImpatient); trouble.harms && len(control.Violations) == 0 {
				t.Error("positive control: a client that gives up calls after 200 ms has kept its leases")
			}
		})
	}
}
