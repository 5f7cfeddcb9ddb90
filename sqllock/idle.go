package sqllock

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"
)

// idleness records how long a transaction may be idle before the server ends it, and since when it
// may have been idle: statements of the function are not seen. A paused holder cannot end its
// transaction, so the server must.
type idleness struct {
	limit   time.Duration
	dialect Dialect
	since   time.Time
}

// noIdleLimit is the limit of a transaction whose idle time only the server limits: the largest one
// that PostgreSQL can set.
const noIdleLimit = math.MaxInt32 * time.Millisecond

// begin sets the limit for the transaction of a.
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
// whether the claim was longer ago than the limit. SQLite has no server that could end a
// transaction.
func (i *idleness) judge(err error) error {
	lost := i.dialect != SQLite && isConnectionLost(err) && time.Since(i.since) >= i.limit-idleRounding
	if !lost && !i.dialect.isIdleness(err) {
		return nil
	}
	return fmt.Errorf("%w (limit: %v): %w", ErrIdle, i.limit.Round(time.Millisecond), err)
}

// isConnectionLost reports whether err means that the connection is lost. "invalid connection" is
// the text of an error of go-sql-driver, which this package does not import.
func isConnectionLost(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || walk(err, func(e error) bool { return e.Error() == "invalid connection" })
}
