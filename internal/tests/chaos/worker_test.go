package chaos_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/sqllock"
)

// order is what one worker process has to do.
type order struct {
	Name     string
	Topology string
	Kind     string
	Library  string            // "": latchkit; else a peer
	Addrs    []string          // the servers; with Sentinel: the Sentinels
	Ways     map[string]string // for each address of a server: the proxy that leads there
	Keys     int
	Callers  int
	TTL      time.Duration
	Seed     uint64
	Driver   string // "": no database
	DSN      string
	Unfenced bool // the control: writes do not claim their fences
	LongHold bool // holds are long, so that faults hit them
	Brisk    bool // holds are short, and few of them write
	History  string
}

// grant is a lock that a worker has got, from any library.
type grant struct {
	fence   uint64
	ctx     context.Context // ends with the lock; nil: the library has no such context
	alive   func() bool     // the holder's look
	release func(ctx context.Context) error
}

// library takes the locks of one library.
type library interface {
	acquire(ctx context.Context, rule locker.Rule) (grant, error)
	close(ctx context.Context) error
}

type worker struct {
	order
	journal
	locks    library
	engine   locker.Locker // of latchkit
	db       *sql.DB
	fenced   *sqllock.DB
	count    atomic.Int64
	late     sync.WaitGroup // the writes that are under way after their holds
	stopping context.Context
}

var workers = proc.Register("chaos worker", func(args []string) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	redis.SetLogger(quiet{})
	w := &worker{}
	if err := json.Unmarshal([]byte(args[0]), &w.order); err != nil {
		panic(err)
	}
	file, err := os.OpenFile(w.History, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	w.journal = journal{file}
	if err := w.open(); err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(1)
	}
	stopping, stop := context.WithCancel(context.Background())
	w.stopping = stopping
	fmt.Println("ready")
	go w.watchStalls()
	var working sync.WaitGroup
	for i := range w.Callers {
		working.Go(func() {
			rng := rand.New(rand.NewPCG(w.Seed, uint64(i)))
			for stopping.Err() == nil {
				if w.Kind == kindLead {
					w.lead(rng, i)
				} else {
					w.visit(rng)
				}
			}
		})
	}
	proc.Listen()
	stop()
	working.Wait()
	w.late.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.locks.close(ctx); err != nil {
		w.wrong("%s: Close: %v", w.Name, err)
	}
	fmt.Println("closed")
	proc.Listen()
})

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// watchStalls writes down when this process did not run, because it was stopped or because the
// machine was busy. Nothing can be expected of it in this time.
func (w *worker) watchStalls() {
	const step = 10 * time.Millisecond
	for last := now(); ; {
		time.Sleep(step) //nolint:forbidigo // the pulse of the process
		at := now()
		if gap := at.since(last); gap > 4*step {
			w.stalled(w.Name, span{last, at})
		}
		last = at
	}
}

// short returns a random time below d.
func short(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// visit tries once to take a random key, and works under it.
func (w *worker) visit(rng *rand.Rand) {
	rule := locker.Rule{Key: fmt.Sprint("chaos:", rng.IntN(w.Keys)), TTL: w.TTL}
	patience := 20*time.Millisecond + short(rng, 3*time.Second)
	h := &hold{process: w.Name, key: rule.Key, units: 1, id: fmt.Sprint(w.Name, ".", w.count.Add(1))}
	switch {
	case w.Kind == kindReadWrite && rng.IntN(3) > 0:
		rule.Mode, h.shared = locker.Shared, true
	case w.Kind == kindSemaphore:
		h.units = 1 + rng.IntN(2)
		rule.Weight = h.units
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h.asked = now()
	switch n := rng.IntN(8); {
	case n == 0 && w.Library == "":
		rule.Wait = locker.NoWait
		patience = 2 * time.Second // so long at most it asks a server that does not answer
	case n < 4 && w.Library == "":
		rule.Wait = patience
	default: // other libraries know no Wait
		defer time.AfterFunc(patience, cancel).Stop()
	}
	g, err := w.locks.acquire(ctx, rule)
	h.granted = now()
	if err != nil {
		w.waited(wait{w.Name, classOf(err), h.asked, h.asked.add(patience), h.granted})
		time.Sleep(short(rng, 5*time.Millisecond)) //nolint:forbidigo // as a real caller does
		return
	}
	h.fence = g.fence
	w.granted(h)
	w.use(rng, g, h)
}

// classOf names the error of an acquire.
func classOf(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{locker.ErrBusy, "busy"}, {locker.ErrUnavailable, "unavailable"}, {locker.ErrQuorum, "quorum"},
		{context.Canceled, "cancelled"}, {context.DeadlineExceeded, "cancelled"}, {locker.ErrLost, "lost"}, {locker.ErrExpired, "expired"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}

// use works under a grant, looks at it all the time, and releases it.
func (w *worker) use(rng *rand.Rand, g grant, h *hold) {
	h.alive = h.granted
	look := func() bool {
		at := now()
		if !g.alive() {
			if h.ended == 0 {
				h.ended, h.reason = now(), "lost"
			}
			return false
		}
		h.alive = at
		return true
	}
	stay := time.Duration(0)
	switch n := rng.IntN(60); {
	case w.LongHold:
		stay = short(rng, w.TTL*3/4)
	case w.Brisk && rng.IntN(400) > 0:
	case w.Brisk, n == 0:
		stay = w.TTL + short(rng, w.TTL)
	case n < 30:
		stay = short(rng, 40*time.Millisecond)
	}
	half := h.granted.add(stay / 2)
	writes := 1 + rng.IntN(4)
	switch {
	case w.Unfenced: // a control, whose few rounds must show a pause between a read and its write
		half, writes = h.granted, 1
	case w.db == nil, w.Kind == kindSemaphore, h.fence == 0 && w.Library == "", rng.IntN(3) == 0, w.Brisk && rng.IntN(4) > 0:
		writes = 0
	case w.LongHold:
		writes = 1
	}
	for end, n := h.granted.add(stay), 0; look(); {
		if at := now(); n < writes && at >= half {
			w.write(rng, g, h, n)
			n++
		} else if at >= end {
			break
		}
		time.Sleep(min(time.Millisecond, stay/8+50*time.Microsecond)) //nolint:forbidigo // the pause between looks
	}
	if h.reason == "" {
		h.reason = "released"
	}
	err := g.release(context.Background())
	if h.ended == 0 {
		h.ended = now()
	}
	switch {
	case err == nil:
	case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrExpired), errors.Is(err, errPeerLost):
		h.reason = "lost"
	default:
		h.reason = "unclear"
	}
	w.ended(h)
	if w.db != nil && w.Kind != kindSemaphore && !h.shared && h.fence > 0 && (!w.Brisk || rng.IntN(8) == 0) {
		delay := short(rng, 2*w.TTL)
		w.late.Go(func() { w.writeLate(h, delay) })
	}
}

// writeLate writes when the hold is over, as a service does to which the holder has sent its
// write with its fence, by a queue or a slow network. It knows nothing of the lease. The statement
// itself compares the fence.
func (w *worker) writeLate(h *hold, delay time.Duration) {
	time.Sleep(delay) //nolint:forbidigo // the way to the service
	one := write{op: h.id, key: h.key, fence: h.fence, late: true, called: now(), before: -1, result: committed}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	update, fence := w.sql("UPDATE late SET v = v + 1, fence = ? WHERE k = ? AND fence <= ?"), int64(h.fence)
	tx, err := w.db.BeginTx(ctx, nil)
	if err == nil {
		if w.Unfenced {
			_, err = tx.ExecContext(ctx, w.sql("UPDATE late SET v = v + 1, fence = ? WHERE k = ?"), fence, h.key)
		} else {
			err = sqllock.FencedUpdate(ctx, tx, update, fence, h.key, fence)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, w.sql("INSERT INTO late_log (op, k, before, fence) SELECT CAST(? AS VARCHAR(50)), k, v - 1, fence FROM late WHERE k = ?"), h.id, h.key)
		}
		if err != nil {
			_ = tx.Rollback()
			one.result = refused
			if errors.Is(err, sqllock.ErrStaleFence) {
				one.result = stale
			}
		} else if tx.Commit() != nil {
			one.result = unclear
		}
	} else {
		one.result = refused
	}
	one.returned = now()
	w.wrote(one)
}

// lead is a candidate until it has led once.
func (w *worker) lead(rng *rand.Rand, caller int) {
	key := fmt.Sprint("chaos:", caller%w.Keys)
	asked := now()
	err := lead.Run(w.stopping, w.engine, locker.Rule{Key: key, TTL: w.TTL}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		h := &hold{
			id: fmt.Sprint(w.Name, ".", w.count.Add(1)), process: w.Name, key: key, units: 1,
			fence: lease.Fence(), asked: asked, granted: now(),
		}
		w.granted(h)
		// The lease is released when the function has returned.
		w.use(rng, grant{lease.Fence(), ctx, func() bool { return ctx.Err() == nil }, func(context.Context) error { return nil }}, h)
		asked = now()
		return nil
	}, lead.WithLogger(slog.Default()))
	if err != nil {
		time.Sleep(short(rng, 20*time.Millisecond)) //nolint:forbidigo // as a real caller does
	}
}

// write increments the register of the key in transaction n of the hold. A reader only reads it.
func (w *worker) write(rng *rand.Rand, g grant, h *hold, n int) {
	one := write{op: fmt.Sprint(h.id, "/", n), key: h.key, fence: h.fence, reads: h.shared, called: now(), before: -1}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	think := short(rng, 3*time.Millisecond)
	switch {
	case w.Unfenced:
		think = w.TTL/2 + short(rng, w.TTL/2)
	case w.LongHold:
		think = short(rng, w.TTL/2)
	case w.Brisk:
		think = short(rng, 300*time.Microsecond)
	}
	var err error
	if w.Unfenced {
		err = w.unfenced(ctx, g, &one, think)
	} else {
		err = w.fenced.Within(mergeEnd(ctx, g.ctx), func(ctx context.Context, tx *sqllock.Tx) error {
			if err := tx.QueryRowContext(ctx, w.sql("SELECT v FROM register WHERE k = ?"), h.key).Scan(&one.before); err != nil {
				return err
			}
			if h.shared {
				return nil
			}
			time.Sleep(think) //nolint:forbidigo // the work between read and write
			return w.store(ctx, tx, &one)
		})
	}
	one.returned = now()
	switch {
	case err == nil:
		one.result = committed
	case errors.Is(err, sqllock.ErrStaleFence):
		one.result = stale
	case errors.Is(err, sqllock.ErrFenceRegressed):
		one.result = regressed
	case errors.Is(err, sqllock.ErrCommitUnknown), w.Unfenced:
		one.result = unclear
	default:
		one.result = refused
	}
	w.wrote(one)
}

// mergeEnd returns lease, the context of a lease, which also ends with ctx.
func mergeEnd(ctx, lease context.Context) context.Context {
	merged, cancel := context.WithCancel(lease)
	context.AfterFunc(ctx, cancel)
	return merged
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (w *worker) store(ctx context.Context, tx execer, one *write) error {
	if _, err := tx.ExecContext(ctx, w.sql("UPDATE register SET v = ? WHERE k = ?"), one.before+1, one.key); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, w.sql("INSERT INTO log (op, k, before, fence) VALUES (?, ?, ?, ?)"), one.op, one.key, one.before, int64(one.fence))
	return err
}

// unfenced is a transaction as many services write it: if the lock is held, it reads, and later it
// writes.
func (w *worker) unfenced(ctx context.Context, g grant, one *write, think time.Duration) error {
	if !g.alive() {
		return errPeerLost
	}
	if err := w.db.QueryRowContext(ctx, w.sql("SELECT v FROM register WHERE k = ?"), one.key).Scan(&one.before); err != nil {
		return err
	}
	time.Sleep(think) //nolint:forbidigo // the work between read and write
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := w.store(ctx, tx, one); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}
