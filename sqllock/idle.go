package sqllock

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// idleness records how long a transaction may be idle before the server ends it, and whether it may
// have been idle for longer. A paused holder cannot end its transaction, so the server must.
type idleness struct {
	limit   time.Duration
	dialect Dialect

	mu       sync.Mutex
	lastUse  time.Time // time of the last known statement
	exceeded bool      // the transaction was idle for longer than the limit
}

// noIdleLimit is the limit of a transaction whose idle time only the server limits: the largest one
// that PostgreSQL can set.
const noIdleLimit = math.MaxInt32 * time.Millisecond

// begin sets the limit for the transaction of a, and starts the idle time.
func (i *idleness) begin(a *attempt) {
	i.limit, i.dialect = a.idleLimit, a.dialect
	if i.limit == 0 {
		i.limit = noIdleLimit
		for _, l := range a.leases {
			if !a.borrowed {
				i.limit = min(i.limit, max(l.TTL(), time.Second))
			}
		}
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
