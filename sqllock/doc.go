// Package sqllock runs database transactions under locks. A job is done once, and a stale holder
// commits nothing.
//
//	db, err := sqllock.New(l, pool) // once, with all options
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqllock.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
//		return err
//	})
//
// If a holder is paused for longer than its lease, it may still write afterwards. Redis cannot
// prevent that, but the database can. Every lease has a fence, a number that only grows.
// [Handle.Do] writes the fence into a row of the resource, in the transaction that does the work
// and before the work begins. When a fence is committed in this row, no transaction with a smaller
// fence commits any more. A holder whose claim succeeds reads everything that earlier holders have
// committed. [Handle.Migrate] creates the tables for the fences.
//
// PostgreSQL, MariaDB, MySQL and SQLite are recognized by the driver's package. Use [WithDialect]
// for a driver that is wrapped. *sql.DB and *sqlx.DB need no adapter. The modules
// contrib/pgxlock, contrib/gormlock and contrib/sqlxlock are for pgx, GORM and sqlx. For any other
// library, write a [Database], which takes a few lines, and give it to [NewWith]. [Handle.Within]
// is for code that runs under a lease already, such as the handler of a route that ginlock guards.
// [Handle.InTx] is for transactions that other code begins, such as a framework.
//
// If everything that the lock protects is in one database, and all work is one short transaction,
// SELECT … FOR UPDATE is enough. This package is for work that is longer than a transaction, or
// changes other systems too. It is also for callers that must wait in turn.
//
// # Claims
//
// The fence is claimed by the first statement. The claim's row stays locked until the transaction
// ends, so an older and a newer holder run one after the other. A holder that is paused in its
// transaction therefore blocks its successor, until the server ends the idle transaction:
// [WithIdleLimit].
//
// Claims are safe at every isolation level that is allowed. READ UNCOMMITTED is refused. At
// REPEATABLE READ and SERIALIZABLE, a claim may fail with a serialization failure. Then the
// transaction is retried: see [WithRetries].
//
// The resource of a Shared lease is not claimed, because many readers have the same fence. Its row is
// locked against claims, so no writer commits before the reader has ended. With ReadOnly in
// [WithTxOptions], a transaction only compares the fences, in its first statement. It reads one
// snapshot, at REPEATABLE READ.
//
// # When COMMIT gets no answer
//
// Every transaction leaves a row in the ledger. When the answer to a COMMIT is lost, Do waits until
// the transaction is over, and reads the ledger. If the ledger cannot be read either, Do returns
// [ErrCommitUnknown]. Give the operation in that error to [Handle.Resolve] later. A transaction is
// never repeated while its outcome is unknown. [Handle.Purge] keeps the ledger small.
//
// # Requirements on the database
//
// The database server must be the primary. An asynchronous replica that takes over may lose claims,
// together with the data that they guard. On SQLite, a paused holder blocks all writers, and no
// server ends its transaction. On SQLite every transaction of this package begins with a write, so
// _txlock=immediate is not needed. Set a busy_timeout on SQLite, so that fewer attempts fail. On
// MySQL, the function must not run DDL, because DDL commits.
package sqllock
