package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

// scene has the database, the Locker and the Store for one case of the table.
type scene struct {
	*database
	t     testing.TB
	lock  *locker.Engine
	store *lockertest.Memory
}

// do runs work in a transaction under the account's lock.
func (s scene) do(ctx context.Context, work func(context.Context, *sqllock.Tx) error, opts ...sqllock.Option) error {
	return transact(ctx, s.lock, s.database, account, work, opts...)
}

// holdElsewhere makes another process acquire the key of the account, in a span of its own. It
// returns the lease.
func (s scene) holdElsewhere() *locker.Lease {
	s.t.Helper()
	observer, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider()))
	if err != nil {
		s.t.Fatal(err)
	}
	lease, err := lockertest.NewLocker(s.t, s.store.NewProcess(), locker.WithObserver(observer)).Acquire(s.t.Context(), account)
	if err != nil {
		s.t.Fatal(err)
	}
	return lease
}

// awaitWaiter returns when a caller waits for the key of the account, or when ctx ends.
func (s scene) awaitWaiter(ctx context.Context) {
	often := time.NewTicker(time.Millisecond)
	defer often.Stop()
	for ctx.Err() == nil {
		if info, err := s.lock.Inspect(ctx, account.Key); err != nil || info.Waiters > 0 {
			return
		}
		<-often.C
	}
}

// TestEachOutcomeIsTold checks, for each case, the error of Do, the content of the database, and
// the span of the transaction.
func TestEachOutcomeIsTold(t *testing.T) {
	t.Parallel()
	const common = " fence=N key=account:1 mode=exclusive name=account"
	errShared := errors.New("two come too close")
	for name, tc := range map[string]struct {
		kinds []sqllock.Dialect // the kinds of databases; default: all
		do    func(ctx context.Context, s scene) error
		want  error  // the expected error; nil: the transaction was committed
		span  string // the expected span; "": there is no span, because the lock was not taken
		// the roles of the links from the acquire's span to the holder for which the caller has
		// waited
		links string
	}{
		"committed": {
			do:   func(ctx context.Context, s scene) error { return s.do(ctx, deposit(10)) },
			span: "Unset attempts=1" + common + " result=committed",
		},
		"committed after a wait for another process": {
			do: func(ctx context.Context, s scene) error {
				lease := s.holdElsewhere()
				go func() {
					s.awaitWaiter(ctx)
					_ = lease.Release(context.WithoutCancel(ctx))
				}()
				return s.do(ctx, deposit(10))
			},
			span: "Unset attempts=1" + common + " result=committed", links: "holder released_by",
		},
		"committed at the third attempt": {
			do: func(ctx context.Context, s scene) error {
				tries := 0
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					if tries++; tries < 3 {
						return tooClose(s.dialect, errShared)
					}
					return deposit(10)(ctx, tx)
				})
			},
			span: "Unset attempts=3" + common + " result=committed",
		},
		"too close again and again": {
			do: func(ctx context.Context, s scene) error {
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					_ = deposit(10)(ctx, tx)
					return tooClose(s.dialect, errShared)
				}, sqllock.WithRetries(2))
			},
			want: errShared,
			span: "Error(CODE) attempts=3 error.type=CODE" + common + " result=rolled_back",
		},
		"the work fails": {
			do: func(ctx context.Context, s scene) error {
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					_ = deposit(10)(ctx, tx)
					return errOnPurpose
				})
			},
			want: errOnPurpose,
			span: "Error(_OTHER) attempts=1 error.type=_OTHER" + common + " result=rolled_back",
		},
		"the work panics": {
			do: func(ctx context.Context, s scene) (err error) {
				defer func() { err = recover().(error) }()
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					_ = deposit(10)(ctx, tx)
					panic(errOnPurpose)
				})
			},
			want: errOnPurpose,
			span: "Error(_OTHER) attempts=1 error.type=_OTHER" + common + " result=rolled_back",
		},
		"the lease is lost": {
			do: func(ctx context.Context, s scene) error {
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					_ = deposit(10)(ctx, tx)
					s.store.Steal(account.Key)
					lease, _ := locker.FromContext(ctx)
					_ = lease.Extend(context.WithoutCancel(ctx), 2*account.TTL)
					return nil
				})
			},
			want: locker.ErrLost,
			span: "Error(lost) attempts=1 error.type=lost" + common + " result=rolled_back",
		},
		"too little of the lease is left": {
			do:   func(ctx context.Context, s scene) error { return s.do(ctx, deposit(10), sqllock.WithMargin(time.Hour)) },
			want: sqllock.ErrTooLate,
			span: "Error(too_late) attempts=1 error.type=too_late" + common + " result=rolled_back",
		},
		"the caller gives up": {
			do: func(ctx context.Context, s scene) error {
				ctx, cancel := context.WithCancel(ctx)
				return s.do(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					err := deposit(10)(ctx, tx)
					cancel()
					return err
				})
			},
			want: context.Canceled,
			span: "Error(canceled) attempts=1 error.type=canceled" + common + " result=rolled_back",
		},
		"a newer holder was there": {
			do: func(ctx context.Context, s scene) error {
				late := beginner{s.database, func() {
					s.store.Steal(account.Key)
					s.exec(s.t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner) VALUES ('account:1', %d, 'next')", uint64(1)<<61))
				}}
				return transact(ctx, s.lock, late, account, deposit(10), sqllock.WithDialect(s.dialect))
			},
			want: sqllock.ErrStaleFence,
			span: "Error(stale_fence) attempts=1 error.type=stale_fence" + common + " result=stale_fence",
		},
		"the lock server went back": {
			do: func(ctx context.Context, s scene) error {
				s.exec(s.t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner) VALUES ('account:1', %d, 'before')", uint64(1)<<61))
				return s.do(ctx, deposit(10))
			},
			want: sqllock.ErrFenceRegressed,
			span: "Error(fence_regressed) attempts=1 error.type=fence_regressed" + common + " result=fence_regressed",
		},
		"the tables are missing": {
			do: func(ctx context.Context, s scene) error {
				err := s.do(ctx, deposit(10), sqllock.WithTablePrefix("nobody_"))
				if err == nil || !strings.Contains(err.Error(), "nobody_fence") || !strings.Contains(err.Error(), "Migrate(ctx)") {
					return err
				}
				return errOnPurpose
			},
			want: errOnPurpose,
			span: "Error(CODE) attempts=1 error.type=CODE" + common + " result=rolled_back",
		},
		"the answer to COMMIT is lost, and it was committed": {
			do: func(ctx context.Context, s scene) error {
				return s.depositThrough(ctx, &silent{commits: true})
			},
			span: "Unset attempts=1" + common + " result=committed",
		},
		"the answer to COMMIT is lost, and it was rolled back": {
			do: func(ctx context.Context, s scene) error {
				return s.depositThrough(ctx, &silent{})
			},
			span: "Unset attempts=2" + common + " result=committed",
		},
		"nobody answers": {
			do: func(ctx context.Context, s scene) error {
				return s.depositThrough(ctx, &silent{deaf: true}, sqllock.WithAnswerWithin(50*time.Millisecond))
			},
			want: sqllock.ErrCommitUnknown,
			span: "Error(commit_unknown) attempts=1 error.type=commit_unknown" + common + " result=commit_unknown",
		},
		"the lock is busy": {
			do: func(ctx context.Context, s scene) error {
				s.store.Occupy(account.Key, 0)
				rule := account
				rule.Wait = locker.NoWait
				return transact(ctx, s.lock, s.database, rule, deposit(10))
			},
			want: locker.ErrBusy,
		},
		"the lock is busy behind a holder with a span": {
			do: func(ctx context.Context, s scene) error {
				s.holdElsewhere()
				rule := account
				rule.Wait = locker.NoWait
				return transact(ctx, s.lock, s.database, rule, deposit(10))
			},
			want: locker.ErrBusy, links: "holder",
		},
		"the lease has no fence": {
			do: func(ctx context.Context, s scene) error {
				return transact(ctx, s.lock, s.database, account, deposit(10))
			},
			want:  locker.ErrUnsupported,
			kinds: []sqllock.Dialect{sqlite},
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				spans := tracetest.NewSpanRecorder()
				observer, err := otellock.New(otellock.WithKey(),
					otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))))
				if err != nil {
					t.Fatal(err)
				}
				l, store := memory(t, locker.WithObserver(observer))
				if name == "the lease has no fence" {
					l = lockertest.NewLocker(t, nameless{store}, locker.WithFair(), locker.WithObserver(observer))
				}
				err = tc.do(t.Context(), scene{db, t, l, store})
				if !errors.Is(err, tc.want) {
					t.Errorf("err = %v, want %v", err, tc.want)
				}
				if tc.want == nil {
					db.checkBalance(t, 110)
				} else {
					db.checkBalance(t, 100)
				}
				if got := transacted(spans, db.dialect); got != tc.span {
					t.Errorf("the span says\n%s\nwant\n%s", got, tc.span)
				}
				if got := acquireLinks(spans); got != tc.links {
					t.Errorf("the acquire links to %q, want %q", got, tc.links)
				}
			}, tc.kinds...)
		})
	}
}

// transacted returns the status and the attributes of the span of the transaction, as text. It
// leaves out the common prefixes of the attributes.
func transacted(spans *tracetest.SpanRecorder, d sqllock.Dialect) string {
	var said []string
	for _, s := range spans.Ended() {
		if s.Name() != "transact account" {
			continue
		}
		status := s.Status().Code.String()
		if s.Status().Code == codes.Error {
			status += "(" + s.Status().Description + ")"
		}
		said = append(said, status+" "+words(s.Attributes()))
	}
	text := strings.Join(said, "\n")
	for _, code := range []string{"40001", "42P01", "mysql_1213", "mysql_1146", "sqlite_5", "sqlite_1"} {
		text = strings.NewReplacer("("+code+")", "(CODE)", "="+code+" ", "=CODE ").Replace(text)
	}
	return text
}

// acquireLinks returns the roles of all links in the spans of acquires, as text.
func acquireLinks(spans *tracetest.SpanRecorder) string {
	var roles []string
	for _, s := range spans.Ended() {
		for _, l := range s.Links() {
			if s.Name() != "acquire account" {
				return "links of " + s.Name()
			}
			roles = append(roles, l.Attributes[0].Value.AsString())
		}
	}
	return strings.Join(roles, " ")
}

func words(attrs []attribute.KeyValue) string {
	var words []string
	for _, a := range attrs {
		key := strings.TrimPrefix(strings.TrimPrefix(string(a.Key), "latchkit.lock."), "latchkit.transaction.")
		value := fmt.Sprint(a.Value.AsInterface())
		switch {
		case key == "ttl":
			continue
		case key == "fence" && a.Value.AsInt64() > 0:
			value = "N"
		}
		words = append(words, key+"="+value)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// tooClose wraps err in an error after which a transaction may be repeated, such as a deadlock,
// in the form that a database of the kind d uses.
func tooClose(d sqllock.Dialect, err error) error {
	return map[sqllock.Dialect]error{
		postgres: stateError{err, "40001"}, maria: errors.Join(err, &mysql.MySQLError{Number: 1213}), sqlite: errors.Join(err, busy()),
	}[d]
}

// stateError has the same methods as an error of a PostgreSQL driver.
type stateError struct {
	error
	state string
}

func (e stateError) SQLState() string { return e.state }
func (e stateError) Unwrap() error    { return e.error }

// busy returns the error by which SQLite's driver reports a busy database. Only SQLite itself can
// make such an error.
var busy = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "busy")
	must(err)
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", filepath.Join(dir, "busy.db"))
	must(err)
	defer func() { _ = db.Close() }()
	conns := make([]*sql.Conn, 2)
	for i := range conns {
		conns[i], err = db.Conn(context.Background())
		must(err)
		defer func() { _ = conns[i].Close() }()
	}
	_, err = conns[0].ExecContext(context.Background(), "BEGIN EXCLUSIVE")
	must(err)
	_, err = conns[1].ExecContext(context.Background(), "BEGIN EXCLUSIVE")
	return err
})

// silent is a transaction, or the database that makes such transactions. The first COMMIT gets
// no reply. If commits is true, this COMMIT is executed. If deaf is true, no later transaction
// can begin.
type silent struct {
	*sql.Tx
	parent *silent

	commits, deaf bool
	transactions  int
}

// depositThrough deposits 10 in a transaction of the database from.
func (s scene) depositThrough(ctx context.Context, from *silent, opts ...sqllock.Option) error {
	return transactWith(ctx, s.lock, sqllock.Database[*silent]{
		Dialect: s.dialect,
		Begin: func(ctx context.Context, opts *sql.TxOptions) (*silent, sqllock.Transaction, error) {
			from.transactions++
			if from.deaf && from.transactions > 1 {
				return nil, nil, errOnPurpose
			}
			tx, err := s.BeginTx(ctx, opts)
			t := &silent{Tx: tx, parent: from}
			return t, t, err
		},
	}, account, func(ctx context.Context, tx *silent) error {
		balance, err := read(ctx, tx.Tx, 1)
		if err != nil {
			return err
		}
		return write(ctx, tx.Tx, 1, balance+10)
	}, opts...)
}

func (s *silent) Exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	run := func() error {
		r, err := s.ExecContext(ctx, query, args...)
		if err == nil {
			rows, err = r.RowsAffected()
		}
		return err
	}
	if query != "COMMIT" || s.parent.transactions > 1 {
		err = run()
	} else {
		err = s.commit(run)
	}
	return rows, err
}

func (s *silent) Row(ctx context.Context, query string, args []any, dest ...any) error {
	return s.QueryRowContext(ctx, query, args...).Scan(dest...)
}

func (s *silent) Commit(context.Context) error {
	if s.parent.transactions > 1 {
		return s.Tx.Commit()
	}
	return s.commit(s.Tx.Commit)
}

func (s *silent) commit(run func() error) error {
	if s.parent.commits {
		return errors.Join(run(), errOnPurpose)
	}
	return errors.Join(s.Tx.Rollback(), errOnPurpose)
}

func (s *silent) Rollback(context.Context) error { return s.Tx.Rollback() }
