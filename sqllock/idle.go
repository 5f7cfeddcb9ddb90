package sqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// idleness is how long a transaction may be idle until the server ends it, and since when it may
// have been. The server has to end the transaction of a holder that is paused, as the holder
// cannot. The limit is what is left of the lease when the transaction begins. While the lease is
// renewed, pings begin that time anew.
type idleness struct {
	limit  time.Duration
	given  bool // by WithIdleLimit: then nothing is pinged
	server bool // the server ends idle transactions

	mu    sync.Mutex
	since time.Time // of the last statement that is known
	over  bool      // it was idle for longer than the limit once
}

// shortestIdle is the shortest limit that is asked for.
const shortestIdle = time.Millisecond

func (i *idleness) begin(a *attempt) {
	i.limit, i.given, i.server = a.idleLimit, a.idleLimit > 0, a.dialect != SQLite
	if !i.given {
		i.limit = max(left(a.leases), shortestIdle)
	}
	if a.dialect == MySQL { // it counts in seconds
		i.limit = max(time.Second, (i.limit + time.Second - 1).Truncate(time.Second))
	}
	i.touch()
}

// touch notes a statement.
func (i *idleness) touch() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = i.isOver()
	i.since = time.Now()
}

// isOver reports whether the server may have lost patience; i.mu is held.
func (i *idleness) isOver() bool {
	return i.over || !i.since.IsZero() && time.Since(i.since) >= i.limit-idleRounding
}

func (i *idleness) wasOver() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.isOver()
}

// millis is the limit as PostgreSQL's setting takes it.
func (i *idleness) millis() int64 {
	return int64(min((i.limit+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// seconds is the limit as MySQL's setting takes it.
func (i *idleness) seconds() int64 { return int64(i.limit / time.Second) }

// idleRounding is by how much a server may come early.
const idleRounding = 50 * time.Millisecond

// judge returns an error with ErrIdle if err may be the consequence of idleness, else nil.
// PostgreSQL says so. Elsewhere the connection is gone, and the time tells.
func (i *idleness) judge(err error) error {
	if state(err) != "25P03" && (!i.server || !gone(err) || !i.wasOver()) {
		return nil
	}
	return fmt.Errorf("%w (limit: %v): %w", ErrIdle, i.limit.Round(time.Millisecond), err)
}

// gone reports whether err says that the connection is gone.
func gone(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		return true
	}
	found := false
	walk(err, func(e error) bool { // go-sql-driver's own error, which this package does not import
		found = e.Error() == "invalid connection"
		return found
	})
	return found
}

// pingsPerLimit is how often the deadline of the lease is looked at, in one idle limit.
const pingsPerLimit = 5

// keepAlive pings until it is stopped: as soon as it sees that the lease was renewed. A lease that
// is not renewed is not followed, so the limit of a holder that is paused, or cut off from the lock
// server, ends with its lease.
func (a *attempt) keepAlive(ctx context.Context) (stop func()) {
	p, ok := a.tx.(pinger)
	if !ok || a.idle.given || !a.idle.server {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(max(a.idle.limit/pingsPerLimit, time.Millisecond))
		defer tick.Stop()
		for last := deadline(a.leases); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if now := deadline(a.leases); now.After(last) {
				last = now
				if ping(ctx, p) == nil {
					a.idle.touch()
				}
			}
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// ping pings, with a bound of its own. Some drivers close a connection when the context of a call
// ends, so ctx does not end the ping.
func ping(ctx context.Context, p pinger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
	defer cancel()
	return p.Ping(ctx)
}

// deadline is when the first of the leases ends unless it is renewed.
func deadline(leases []*locker.Lease) time.Time {
	first := leases[0].Expires()
	for _, l := range leases[1:] {
		if e := l.Expires(); e.Before(first) {
			first = e
		}
	}
	return first
}
