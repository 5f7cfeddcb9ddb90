// Package sqllock runs database transactions under locks, so that a job is done once and a holder
// that was overtaken commits nothing.
//
//	rule := locker.Rule{Key: "account:42"}
//	err := sqllock.Do(ctx, l, db, rule, func(ctx context.Context, tx *sqllock.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
//		return err
//	})
//
// A lease on Redis cannot keep a holder that was paused for longer than its lease from writing
// afterwards. The database can: every lease has a fence, a number that only grows. [Do] writes it
// into a row of the resource, in the transaction that does the work and before the work begins.
// Once a fence is committed there, no transaction with a smaller one commits, and its holder has
// read all that earlier holders had committed. [Migrate] creates the tables that this takes.
//
// PostgreSQL, MariaDB, MySQL and SQLite are recognized by the driver's package; [WithDialect] helps
// where a driver is wrapped. *sql.DB, *sql.Conn and *sqlx.DB work as they are. The modules
// contrib/pgxlock, contrib/gormlock and contrib/sqlxlock are for pgx, GORM and sqlx; other
// libraries need the few lines of a [Database]. [Within] is for code that runs under a lease
// already, such as the handler of a route that ginlock guards, and [InTx] for transactions that
// somebody else began.
//
// If all that the lock protects is in one database, and all work is one short transaction, SELECT …
// FOR UPDATE alone does it. This package is for work that is longer than a transaction, is also
// done elsewhere, or must wait in turn.
//
// # Strategies
//
// [ClaimFirst], the default, claims the fence as the first statement. The claim's row stays locked
// until the transaction ends, so an older and a newer holder come one after the other. A holder
// that is paused in its transaction therefore blocks its successor, until the server ends the idle
// transaction: [WithIdleLimit].
//
// [VerifyLast] claims the fence in a transaction of its own, and verifies it as the last statement
// of the transaction that does the work. The successor of a paused holder does not wait at the
// claim; the paused holder finds that its claim is gone, and rolls back. The rows that it has
// written stay locked until then. VerifyLast costs another short transaction, and work that is too
// late is noticed at its end only. Take it where transactions are long.
//
// Both are safe at every isolation level but READ UNCOMMITTED, which is refused. At REPEATABLE READ
// and SERIALIZABLE the database may answer a claim with a serialization failure; the transaction is
// then done again, see [WithRetries].
//
// Transactions that only read, because all leases are Shared or WithTxOptions says ReadOnly,
// compare the fence as their first statement and claim nothing: many readers have the same fence.
// They read as of one moment, at REPEATABLE READ.
//
// # When COMMIT gets no answer
//
// Every transaction leaves a row in the ledger. When the answer to a COMMIT is lost, Do waits until
// the transaction is over and asks the ledger. Only if the ledger does not answer either, Do
// returns [ErrCommitUnknown], whose operation [Resolve] takes later. A COMMIT is never repeated
// blindly. [Purge] keeps the ledger small.
//
// # What the database must do
//
// It must be the primary; an asynchronous replica that takes over may lose claims, together with
// the data they guard. With SQLite a paused holder blocks all writers, and no server ends its
// transaction; claim and write come first in any case, so _txlock=immediate is not needed, but a
// busy_timeout saves attempts. On MySQL no DDL may be in the function, as DDL commits.
package sqllock
