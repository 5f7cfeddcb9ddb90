package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker"
)

// call is one call of Do, or of a similar function.
type call struct {
	config
	stmts  statements
	locker locker.Locker // nil: unknown
	pool   pool          // identifies the database; nil: unknown
	begin  begin
	fn     func(ctx context.Context, a *attempt) error
	reads  bool // the transaction is read-only: it compares fences and claims no fence
}

// begin opens a transaction. It returns the transaction twice: handle is for the function, and tx
// is for this package.
type begin func(ctx context.Context, opts *sql.TxOptions) (handle any, tx Transaction, err error)

// newCall returns a call for the leases that terms describe, with opts. It returns an error if a
// term or an option is invalid.
func newCall(terms []term, opts []Option) (*call, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if !cfg.dialect.isValid() {
		return nil, fmt.Errorf(
			"%w: sqllock cannot find out which database this is; name it with WithDialect", locker.ErrUnsupported)
	}
	c := &call{config: cfg, stmts: cfg.dialect.statements(cfg.prefix)}
	if c.reads, err = cfg.readOnly(terms); err != nil {
		return nil, err
	}
	if err := c.isolate(); err != nil {
		return nil, err
	}
	for _, t := range terms {
		if err := checkKey(t.key); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// forDB returns the call of fn for db, a database of database/sql.
func forDB(db Beginner, terms []term, fn func(context.Context, *Tx) error, opts []Option) (*call, error) {
	if fn == nil {
		return nil, errors.New("sqllock: the function is nil")
	}
	c, err := withDB(db, terms, opts)
	if err != nil {
		return nil, err
	}
	c.fn = func(ctx context.Context, a *attempt) error {
		tx := newTx(a, a.tx.(*standard))
		a.endError = tx.endError
		return fn(context.WithValue(ctx, txKey{}, tx), tx)
	}
	return c, nil
}

// withDB returns a call for db that has no function.
func withDB(db Beginner, terms []term, opts []Option) (*call, error) {
	if typednil.Is(db) {
		return nil, errors.New("sqllock: the database is nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if cfg.dialect == 0 {
		if cfg.dialect, err = detect(db); err != nil {
			return nil, err
		}
	}
	c, err := newCall(terms, append(slices.Clip(opts), WithDialect(cfg.dialect)))
	if err != nil {
		return nil, err
	}
	c.pool = poolOf(db)
	c.begin = func(ctx context.Context, opts *sql.TxOptions) (any, Transaction, error) {
		s, err := openStandard(ctx, db, c.dialect, opts)
		if err != nil {
			return nil, nil, err
		}
		return nil, s, nil
	}
	return c, nil
}

// pool is *sql.DB, and types that embed it.
type pool interface{ Stats() sql.DBStats }

// poolOf returns v if v is a pool that can be compared with other pools; otherwise nil.
func poolOf(v any) pool {
	p, ok := v.(pool)
	if !ok || !reflect.TypeOf(v).Comparable() {
		return nil
	}
	return p
}

// isolate refuses isolation levels at which fences do not protect, and sets the level that readers
// need. SQLite has only one level.
func (c *call) isolate() error {
	if c.reads && c.tx == nil {
		c.tx = &sql.TxOptions{ReadOnly: true}
	}
	switch {
	case c.tx == nil || c.dialect == SQLite:
	case c.tx.Isolation == sql.LevelReadUncommitted:
		return fmt.Errorf("%w: READ UNCOMMITTED shows rows of overtaken holders and rows that will be rolled back; "+
			"ask for a higher isolation in WithTxOptions", locker.ErrInvalidRule)
	case !c.reads:
	case c.tx.Isolation == sql.LevelDefault:
		c.tx.Isolation = sql.LevelRepeatableRead
	case c.tx.Isolation < sql.LevelRepeatableRead:
		return fmt.Errorf("%w: a read-only transaction claims nothing, so it needs one snapshot; "+
			"leave Isolation out of WithTxOptions, or give REPEATABLE READ or higher", locker.ErrInvalidRule)
	}
	return nil
}

// maxKey is the length of the longest key that the columns and every database's index can hold.
const maxKey = 512

// checkKey refuses keys that a database's text column cannot hold.
func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("%w: sqllock writes the key into an indexed column: it has %d bytes, and at most %d are allowed",
			locker.ErrInvalidKey, len(key), maxKey)
	}
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: sqllock writes the key into a text column; give UTF-8 without NUL", locker.ErrInvalidKey)
	}
	return nil
}
