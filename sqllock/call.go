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
	if c.verifies && c.tx == nil {
		c.tx = &sql.TxOptions{ReadOnly: true}
		if c.dialect != SQLite { // whose transactions have no other isolation
			c.tx.Isolation = sql.LevelRepeatableRead
		}
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

// checkKey refuses keys that a database's text cannot hold.
func checkKey(key string) error {
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: sqllock writes the key into a column of text; give UTF-8 without NUL", locker.ErrInvalidKey)
	}
	return nil
}
