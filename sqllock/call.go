package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/latchkit/latchkit/locker"
)

// base is the part of a Handle that does not depend on the type of its transactions.
type base struct {
	config
	stmts  statements
	locker locker.Locker // nil: the Handle acquires no locks
	pool   pool          // identifies the database; nil: unknown
	begin  begin

	ownConn  bool         // transactions begin on a connection of the caller, of database/sql
	noBlocks *atomic.Bool // the server is a MySQL, which supports no blocks
}

// begin opens a transaction. It returns the transaction twice: handle is for the function, and tx
// is for this package.
type begin func(ctx context.Context, opts *sql.TxOptions) (handle any, tx Transaction, err error)

// newBase returns a base without begin. db is the database itself, or its pool. newBase finds the
// dialect by the driver of db if neither d nor an option names it.
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
	return &base{config: cfg, stmts: cfg.dialect.statements(cfg.prefix), locker: l, pool: poolOf(db), noBlocks: new(atomic.Bool)}, nil
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

// newCall returns a call of fn under the leases that terms describe.
func (b *base) newCall(terms []term, fn work) (*call, error) {
	c := &call{base: b, fn: fn, options: b.tx}
	var err error
	if c.reads, err = b.readOnly(terms); err != nil {
		return nil, err
	}
	if c.options != nil {
		own := *c.options // a Begin of a user's Database may change it
		c.options = &own
	}
	if c.reads && c.options == nil {
		c.options = &sql.TxOptions{ReadOnly: true}
		if b.dialect != SQLite { // SQLite has only one level
			c.options.Isolation = sql.LevelRepeatableRead
		}
	}
	for _, t := range terms {
		if err := checkKey(t.key); err != nil {
			return nil, err
		}
	}
	return c, b.checkOperation(c.reads)
}

// pool is *sql.DB, and types that report the largest number of their connections as it does.
type pool interface{ Stats() sql.DBStats }

// poolOf returns the *sql.DB that v is or embeds: a program may give one pool also inside of other
// types, such as *sqlx.DB. If there is none, poolOf returns v if v is a pool that can be compared
// with other pools; otherwise nil.
func poolOf(v any) pool {
	if db := embedded(reflect.ValueOf(v)); db != nil {
		return db
	}
	p, ok := v.(pool)
	if !ok || !reflect.TypeOf(v).Comparable() {
		return nil
	}
	return p
}

// embedded returns the *sql.DB that v is or embeds, or nil.
func embedded(v reflect.Value) *sql.DB {
	if !v.IsValid() || !v.CanInterface() {
		return nil
	}
	if db, ok := reflect.TypeAssert[*sql.DB](v); ok {
		return db
	}
	if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
		return nil
	}
	f, ok := v.Type().FieldByName("DB") // the name of an embedded *sql.DB
	if !ok || !f.Anonymous {
		return nil
	}
	inner, err := v.FieldByIndexErr(f.Index)
	if err != nil {
		return nil
	}
	return embedded(inner)
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
