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

	"github.com/latchkit/latchkit/locker"
)

// call is one call of Do, or of its siblings.
type call struct {
	config
	stmts    statements
	locker   locker.Locker // nil: unknown
	begin    begin
	fn       func(ctx context.Context, a *attempt) error
	verifies bool // it reads only: the fence is verified and not claimed
}

// newCall checks rules and options.
func newCall(rules []locker.Rule, opts []Option) (*call, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if !cfg.dialect.known() {
		return nil, fmt.Errorf("%w: sqllock must know what the database speaks; say so with WithDialect", locker.ErrUnsupported)
	}
	c := &call{config: cfg, stmts: cfg.dialect.statements(cfg.prefix)}
	if c.verifies, err = cfg.readOnly(rules); err != nil {
		return nil, err
	}
	if err := c.isolate(); err != nil {
		return nil, err
	}
	for _, r := range rules {
		if err := checkKey(r.Key); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// forDB makes the call for a database of database/sql.
func forDB(db Beginner, rules []locker.Rule, fn func(context.Context, *Tx) error, opts []Option) (*call, error) {
	if fn == nil {
		return nil, errors.New("sqllock: the function is nil")
	}
	c, err := withDB(db, rules, opts)
	if err != nil {
		return nil, err
	}
	c.fn = func(ctx context.Context, a *attempt) error {
		s := a.tx.(*standard)
		tx := &Tx{attempt: a, tx: s.Tx}
		a.spoilt = func() error { return tx.spoilt() }
		return fn(ctx, tx)
	}
	return c, nil
}

// withDB makes a call that has nothing to run yet.
func withDB(db Beginner, rules []locker.Rule, opts []Option) (*call, error) {
	if isNil(db) {
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
	c, err := newCall(rules, append(slices.Clip(opts), WithDialect(cfg.dialect)))
	if err != nil {
		return nil, err
	}
	c.begin = open(db, c.stmts)
	return c, nil
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// isolate refuses an isolation that the fence cannot make up for, and gives readers the one they need. SQLite has only one.
func (c *call) isolate() error {
	if c.verifies && c.tx == nil {
		c.tx = &sql.TxOptions{ReadOnly: true}
	}
	switch {
	case c.tx == nil || c.dialect == SQLite:
	case c.tx.Isolation == sql.LevelReadUncommitted:
		return fmt.Errorf("%w: READ UNCOMMITTED shows what holders that were overtaken have written, and will be rolled back; ask for more in WithTxOptions", locker.ErrInvalidRule)
	case !c.verifies:
	case c.tx.Isolation == sql.LevelDefault:
		c.tx.Isolation = sql.LevelRepeatableRead
	case c.tx.Isolation < sql.LevelRepeatableRead:
		return fmt.Errorf("%w: a transaction that only reads claims nothing, so all it reads must be of one moment; leave Isolation out of WithTxOptions, or give REPEATABLE READ or more", locker.ErrInvalidRule)
	}
	return nil
}

// maxKey is what the columns hold, and every database's index.
const maxKey = 512

// checkKey refuses keys that a database's text cannot hold.
func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("%w: sqllock writes the key into an indexed column: %d bytes, at most %d are allowed", locker.ErrInvalidKey, len(key), maxKey)
	}
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: sqllock writes the key into a column of text; give UTF-8 without NUL", locker.ErrInvalidKey)
	}
	return nil
}
