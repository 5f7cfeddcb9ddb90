package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/latchkit/latchkit/locker"
)

// base is the part of a Handle that does not depend on the type of its transactions.
type base struct {
	config
	stmts  statements
	locker locker.Locker // nil: the Handle acquires no locks
	begin  begin
	root   *base // the base that New has made; Operation and Adapt copy it
}

// begin opens a transaction. It returns the transaction twice: handle is for the function, and tx
// is for this package.
type begin func(ctx context.Context, opts *sql.TxOptions) (handle any, tx Transaction, err error)

// newBase returns a base without begin. newBase finds the dialect by the driver of db if neither d
// nor an option names it.
func newBase(l locker.Locker, d Dialect, db any, opts []Option) (*base, error) {
	cfg, err := newConfig(d, opts)
	if err == nil && cfg.dialect == 0 {
		cfg.dialect, err = detect(db)
	}
	if err == nil {
		err = cfg.isolate()
	}
	if err != nil {
		return nil, err
	}
	b := &base{config: cfg, stmts: cfg.dialect.statements(cfg.prefix), locker: l}
	b.root = b
	return b, nil
}

// call is one call of Do, or of a similar method.
type call struct {
	*base
	fn      work
	reads   bool           // the transaction is read-only: it compares fences and claims no fence
	options *sql.TxOptions // the isolation level and the access mode of the transaction; may be nil
}

// work is the function of a call.
type work func(ctx context.Context, a *attempt) error

// newCall returns a call of fn under leases with the given keys. It returns an error if ctx is the
// context of an open transaction of the same Handle.
func (b *base) newCall(ctx context.Context, keys []string, fn work) (*call, error) {
	if err := b.checkNested(ctx); err != nil {
		return nil, err
	}
	c := &call{base: b, fn: fn}
	if b.tx != nil {
		own := *b.tx // a Begin of a user's Database may change it
		c.options, c.reads = &own, own.ReadOnly
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	return c, b.checkOperation()
}

// checkNested returns an error if ctx is inside of an open transaction of the same Handle: the inner
// transaction would need a second connection, and might wait for the row of the outer one's claim. A
// context of [locker.Detach] is not inside.
func (b *base) checkNested(ctx context.Context) error {
	leases := locker.LeasesFromContext(ctx)
	for a, _ := ctx.Value(attemptKey{}).(*attempt); a != nil; a = a.outer {
		inside := len(a.leases) == 0 || slices.Contains(leases, a.leases[0])
		if a.root == b.root && inside && !a.ended.Load() {
			return a.newError(fmt.Errorf("%w: a transaction of this Handle is open around this one, which could wait for it; "+
				"use the outer transaction, or begin this one after it", locker.ErrUnsupported))
		}
	}
	return nil
}

// maxKey is the length of the longest key that the columns and every database's index can hold.
const maxKey = 512

// checkLength refuses keys that an index cannot hold.
func checkLength(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("%w: sqllock writes the key into an indexed column: it has %d bytes, and at most %d are allowed",
			locker.ErrInvalidKey, len(key), maxKey)
	}
	return nil
}

// checkKey refuses keys that a database's text column cannot hold.
func checkKey(key string) error {
	if err := checkLength(key); err != nil {
		return err
	}
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: sqllock writes the key into a text column; give UTF-8 without NUL", locker.ErrInvalidKey)
	}
	return nil
}
