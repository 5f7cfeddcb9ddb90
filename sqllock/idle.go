package sqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// idleness records how long a transaction may be idle before the server ends it, and since when it
// may have been idle. A paused holder cannot end its transaction, so the server must. The limit is
// the time that is left of the lease when the transaction begins. While the lease is renewed, pings
// restart the idle time.
type idleness struct {
	limit     time.Duration
	userLimit bool // WithIdleLimit has set the limit, so there are no pings
	dialect   Dialect

	mu       sync.Mutex
	lastUse  time.Time // time of the last known statement
	exceeded bool      // the transaction was idle for longer than the limit
}

// shortestIdle is the shortest idle limit.
const shortestIdle = time.Millisecond

// begin sets the limit for the transaction of a, and starts the idle time.
func (i *idleness) begin(a *attempt) {
	i.limit, i.userLimit, i.dialect = a.idleLimit, a.idleLimit > 0, a.dialect
	if !i.userLimit {
		i.limit = max(remaining(a.leases), shortestIdle)
	}
	if a.dialect == MySQL { // the time-out of MySQL is a number of whole seconds
		i.limit = max(time.Second, (i.limit + time.Second - 1).Truncate(time.Second))
	}
	i.touch()
}

// touch records that a statement has run now, so that the idle time begins again.
func (i *idleness) touch() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exceeded = i.isExceeded()
	i.lastUse = time.Now()
}

// isExceeded reports whether the idle limit was exceeded, so that the server may have ended the
// transaction. The caller holds i.mu.
func (i *idleness) isExceeded() bool {
	return i.exceeded || !i.lastUse.IsZero() && time.Since(i.lastUse) >= i.limit-idleRounding
}

// millis returns the limit in the unit of PostgreSQL's setting.
func (i *idleness) millis() int64 {
	return int64(min((i.limit+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// seconds returns the limit in the unit of MySQL's setting.
func (i *idleness) seconds() int64 { return int64(i.limit / time.Second) }

// A server may end a transaction earlier than the limit, by at most idleRounding.
const idleRounding = 50 * time.Millisecond

// judge returns an ErrIdle that wraps err if err may be the consequence of idleness; otherwise nil.
// PostgreSQL and MySQL report idleness. MariaDB only closes the connection; then judge checks
// whether the idle time was longer than the limit. SQLite has no server that could end a
// transaction.
func (i *idleness) judge(err error) error {
	i.mu.Lock()
	exceeded := i.isExceeded()
	i.mu.Unlock()
	lost := i.dialect != SQLite && isConnectionLost(err) && exceeded
	if !lost && !i.dialect.isIdleness(err) {
		return nil
	}
	return fmt.Errorf("%w (limit: %v): %w", ErrIdle, i.limit.Round(time.Millisecond), err)
}

// isConnectionLost reports whether err means that the connection is lost.
func isConnectionLost(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		return true
	}
	found := false
	walk(err, func(e error) bool { // the error of go-sql-driver, which this package does not import
		found = e.Error() == "invalid connection"
		return found
	})
	return found
}

// pingsPerLimit is how often the lease's deadline is checked within one idle limit.
const pingsPerLimit = 5

// keepAlive pings the server whenever the lease was renewed, until stop is called. Without renewals
// there are no pings. So if a holder is paused or cut off from the lock server, the server ends the
// transaction when the lease ends. stop waits for a ping under way.
//
// A timer checks the lease. A goroutine for this would cost a short transaction more than its
// statements cost.
func (a *attempt) keepAlive(ctx context.Context) (stop func()) {
	p, ok := a.tx.(pinger)
	if !ok || a.idle.userLimit || a.dialect == SQLite {
		return func() {}
	}
	every := max(a.idle.limit/pingsPerLimit, time.Millisecond)
	last := deadline(a.leases)
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped || ctx.Err() != nil {
			return
		}
		if now := deadline(a.leases); now.After(last) {
			last = now
			if ping(ctx, p) == nil {
				a.idle.touch()
			}
		}
		timer.Reset(every)
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(every, look)
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}
}

// ping pings, with its own time-out. ctx does not end the ping, because some drivers close the
// connection when the context of a call ends.
func ping(ctx context.Context, p pinger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
	defer cancel()
	return p.Ping(ctx)
}

// deadline returns the time at which the first of the leases ends if no lease is renewed. Without
// leases, this time is far away.
func deadline(leases []*locker.Lease) time.Time {
	if len(leases) == 0 {
		return time.Now().Add(math.MaxInt32 * time.Millisecond)
	}
	return slices.MinFunc(leases, func(a, b *locker.Lease) int { return a.Expires().Compare(b.Expires()) }).Expires()
}
