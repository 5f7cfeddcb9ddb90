package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var (
	pool *sql.DB // with any driver that sqllock knows
	l    locker.Locker
	db   *sqllock.DB
)

func Example() {
	ctx := context.Background()
	l, err := locker.Open("redis://localhost:6379") // with a client of its own
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqllock.New(l, pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := db.Migrate(ctx); err != nil { // a few small tables
		log.Fatal(err)
	}
	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqllock.Tx) error {
		var balance int
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = 42").Scan(&balance); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = $1 WHERE id = 42", balance-10)
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is ErrCommitUnknown
	}
}

// This example shows what each error means for the transaction.
func ExampleHandle_Do() {
	ctx := context.Background()
	err := db.Do(ctx, locker.Rule{Key: "account:42"}, work)
	switch {
	case err == nil:
		log.Print("committed")
	case errors.Is(err, sqllock.ErrCommitUnknown):
		var e *sqllock.Error
		errors.As(err, &e)
		log.Print("call Resolve before doing it again: ", e.Op)
	case errors.Is(err, sqllock.ErrStaleFence):
		log.Print("we were overtaken; nothing was changed")
	case errors.Is(err, sqllock.ErrFenceRegressed):
		log.Print("Redis has lost data; nothing was changed, and Repair helps")
	default:
		log.Print("nothing was changed: ", err)
	}
}

func work(context.Context, *sqllock.Tx) error { return nil }

// After a crash or a lost answer, Resolve reads the outcome from the ledger.
func ExampleHandle_Resolve() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := db.Do(ctx, locker.Rule{Key: "account:42"}, work)
	var e *sqllock.Error
	if errors.As(err, &e) && errors.Is(err, sqllock.ErrCommitUnknown) {
		committed, err := db.Resolve(ctx, e.Op)
		log.Print(committed, err)
	}
}

// The caller is a route that ginlock guards, or any other code inside of locker.Run.
func ExampleHandle_Within() {
	_ = locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		return db.Within(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = 42")
			return err
		})
	})
}

// The fence is in the row itself, so one statement is enough, without tables of sqllock.
func ExampleFencedUpdate() {
	_ = locker.Run(context.Background(), l, locker.Rule{Key: "stock:book"}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		return sqllock.FencedUpdate(ctx, pool,
			"UPDATE stock SET left_over = $1, fence = $2 WHERE sku = 'book' AND fence <= $2", 41, lease.Fence())
	})
}

// A payment and its response are one transaction. The lock is outside, so it lasts until the COMMIT.
func ExampleNewAnswers() {
	answers, err := sqllock.NewAnswers(db)
	if err != nil {
		log.Fatal(err)
	}
	claims := func(*http.Request) map[string]any { return nil } // of the authentication
	pay := func(w http.ResponseWriter, r *http.Request) {
		tx, _ := sqllock.TxFromContext(r.Context())
		if _, err := tx.ExecContext(r.Context(), "UPDATE orders SET paid = true WHERE id = $1", r.PathValue("id")); err != nil {
			http.Error(w, "not paid", http.StatusInternalServerError) // the status undoes the transaction
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	lock := httplock.MustNew(l, "order:{param.id|int}")
	once := httplock.MustIdempotency(l, answers, "{claim.sub}", httplock.WithClaims(claims))
	http.Handle("POST /orders/{id}/pay", lock(once(http.HandlerFunc(pay))))
}
