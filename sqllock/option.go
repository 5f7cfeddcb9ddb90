package sqllock

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// An Option sets up a [Handle].
type Option func(*config)

// config has the values of the options. newConfig has their defaults.
type config struct {
	dialect Dialect
	prefix  string
	tx      *sql.TxOptions
	retries int
	margin  time.Duration
	answer  time.Duration

	idleLimit    time.Duration // 0: the TTL of the leases
	operation    string        // with Operation: the caller's name for the work
	hasOperation bool
}

const defaultPrefix = "latchkit_"

// newConfig returns the config of opts. d is the dialect if no option names one; 0: unknown.
func newConfig(d Dialect, opts []Option) (config, error) {
	c := config{dialect: d, prefix: defaultPrefix, retries: 3, answer: 10 * time.Second}
	for _, o := range opts {
		o(&c)
	}
	return c, c.validate()
}

// identifier matches a prefix of table names, with an optional schema before it.
var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

func (c *config) validate() error {
	switch {
	case c.dialect != 0 && !c.dialect.isValid():
		return fmt.Errorf("sqllock: WithDialect(%d): give Postgres, MySQL or SQLite", c.dialect)
	case !identifier.MatchString(c.prefix) || len(c.prefix) > 48:
		return fmt.Errorf("sqllock: WithTablePrefix(%q): give letters, digits and _, at most 48, "+
			"after an optional schema and a dot", c.prefix)
	case c.retries < 0:
		return fmt.Errorf("sqllock: WithRetries(%d): give 0 for one attempt, or more", c.retries)
	case c.margin < 0 || c.idleLimit < 0:
		return errors.New("sqllock: WithMargin and WithIdleLimit take positive times; leave them out for their defaults")
	case c.answer <= 0:
		return fmt.Errorf("sqllock: WithAnswerWithin(%v): give a positive time", c.answer)
	}
	return nil
}

// isolate refuses isolation levels at which fences do not protect, and sets the level that readers
// need.
func (c *config) isolate() error {
	switch {
	case c.tx == nil:
	case c.tx.Isolation == sql.LevelReadUncommitted:
		return fmt.Errorf("%w: READ UNCOMMITTED shows rows of overtaken holders and rows that will be rolled back; "+
			"ask for a higher isolation in WithTxOptions", locker.ErrInvalidRule)
	case !c.tx.ReadOnly || c.dialect == SQLite: // SQLite has one level, which readers may have
	case c.tx.Isolation == sql.LevelDefault:
		c.tx.Isolation = sql.LevelRepeatableRead
	case c.tx.Isolation < sql.LevelRepeatableRead:
		return fmt.Errorf("%w: a read-only transaction claims nothing, so it needs one snapshot; "+
			"leave Isolation out of WithTxOptions, or give REPEATABLE READ or higher", locker.ErrInvalidRule)
	}
	return nil
}

// WithDialect names the kind of the database. Default: the kind is recognized by the driver's
// package. This fails for a driver that wraps another driver.
func WithDialect(d Dialect) Option { return func(c *config) { c.dialect = d } }

// WithTablePrefix names the tables PREFIXfence, PREFIXledger and so on. The prefix may begin with a
// schema and a dot. Services that lock the same keys on different lock servers need separate
// tables. Default: "latchkit_".
func WithTablePrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTxOptions sets the isolation level and the access mode. With ReadOnly the fences are compared,
// and nothing is claimed or locked. Default: the database's isolation level, to write. A read-only
// transaction has REPEATABLE READ by default, so that it reads one snapshot. READ UNCOMMITTED is
// refused. For read-only transactions, every level below REPEATABLE READ is refused.
func WithTxOptions(opts *sql.TxOptions) Option {
	return func(c *config) {
		c.tx = opts
		if opts != nil {
			own := *opts
			c.tx = &own
		}
	}
}

// WithRetries sets how many times a transaction is retried after it has failed for a temporary
// reason. Temporary reasons are a serialization failure, a deadlock, a lock wait that timed out, a
// busy SQLite file, and the restart of a server. There is no further attempt if the lease would end
// during the pause before the attempt. If n is 0, no transaction is retried. Default: 3.
func WithRetries(n int) Option { return func(c *config) { c.retries = n } }

// WithMargin sets how much of the lease must be left to send the COMMIT. If less is left, the
// error is ErrTooLate. Default: 100 ms, or a quarter of what was left of the lease when the
// transaction began, whichever is less.
func WithMargin(d time.Duration) Option { return func(c *config) { c.margin = d } }

// WithIdleLimit sets how long the transaction may be idle before the server ends it. A paused
// holder blocks its successor for at most this time. PostgreSQL counts in milliseconds, MySQL and
// MariaDB in whole seconds. SQLite has no server and no such limit. If the server's own limit is
// shorter, that limit applies.
//
// Default: the shortest TTL of the leases, at least 1 s. A healthy holder loses its transaction, too:
// so do long work before the transaction, under the lock. If the server has ended the transaction
// for idleness, the error is ErrIdle.
func WithIdleLimit(d time.Duration) Option { return func(c *config) { c.idleLimit = d } }

// WithAnswerWithin sets the longest wait for the answer to a COMMIT or a ROLLBACK. If a COMMIT gets
// no answer, d is also the longest time for which Do tries to read the ledger. Default: 10 s.
func WithAnswerWithin(d time.Duration) Option { return func(c *config) { c.answer = d } }

// checkOperation returns an error if the transaction cannot write the operation of the config.
func (c *config) checkOperation() error {
	switch {
	case !c.hasOperation:
		return nil
	case c.operation == "" || checkKey(c.operation) != nil:
		return fmt.Errorf("%w: sqllock: Operation(%q): give a name of 1 to %d bytes of UTF-8 without NUL",
			locker.ErrInvalidRule, c.operation, maxKey)
	case c.tx != nil && c.tx.ReadOnly:
		return fmt.Errorf("%w: sqllock: Operation writes, and WithTxOptions sets ReadOnly; leave ReadOnly out", locker.ErrInvalidRule)
	}
	return nil
}
