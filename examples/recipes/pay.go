package recipes

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strconv"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// Payments takes the money of an order once.
type Payments struct {
	L  locker.Locker
	DB *sql.DB // has the table payments, with the primary key order_id
	// Charge takes the money. The payment provider answers a repeated name with the first receipt,
	// and takes nothing again.
	Charge func(ctx context.Context, name string, cents int64) (receipt string, err error)
}

// Pay returns the receipt of the order's payment, whether this call or an earlier call made it. It
// returns locker.ErrBusy while another call pays the order. order is the id that was read from the
// database, and not the text of a request: 42, 042 and +42 would be three payments.
func (p *Payments) Pay(ctx context.Context, order string, cents int64) (receipt string, err error) {
	err = locker.Run(ctx, p.L, locker.Rule{Key: "pay:" + order, Wait: locker.NoWait}, func(ctx context.Context) error {
		err := p.DB.QueryRowContext(ctx, "SELECT receipt FROM payments WHERE order_id = $1", order).Scan(&receipt)
		if !errors.Is(err, sql.ErrNoRows) {
			return err // paid before, or the database does not answer
		}
		// Each attempt has the same name. So an attempt after a crash charges nothing again.
		if receipt, err = p.Charge(ctx, "order:"+order, cents); err != nil {
			return err
		}
		_, err = p.DB.ExecContext(ctx, "INSERT INTO payments (order_id, receipt) VALUES ($1, $2) ON CONFLICT DO NOTHING", order, receipt)
		return err
	})
	return receipt, err
}

// PayByCredit is a route that pays an order with the customer's credit: POST /orders/{id}/pay. The
// response is stored in the transaction of the payment, so there is never one without the other. The
// lock of the order is outside, so the next request for the order begins after the COMMIT.
func PayByCredit(l locker.Locker, db *sqllock.DB, claims func(*http.Request) map[string]any) (http.Handler, error) {
	answers, err := sqllock.NewAnswers(db)
	if err != nil {
		return nil, err
	}
	pay := func(w http.ResponseWriter, r *http.Request) {
		tx, _ := sqllock.TxFromContext(r.Context()) // has claimed the order
		id, _ := strconv.Atoi(r.PathValue("id"))    // the lock has checked it
		var customer, cents int64
		err := tx.QueryRowContext(r.Context(), "SELECT customer, cents FROM orders WHERE id = $1 AND NOT paid", id).Scan(&customer, &cents)
		if errors.Is(err, sql.ErrNoRows) {
			http.Error(w, "no such unpaid order", http.StatusConflict)
			return
		}
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "UPDATE customers SET credit = credit - $1 WHERE id = $2", cents, customer)
		}
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "UPDATE orders SET paid = true WHERE id = $1", id)
		}
		if err != nil { // the status undoes the transaction, and another attempt runs again
			http.Error(w, "not paid", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	lock := httplock.MustNew(l, "order:{param.id|int}")
	once := httplock.MustIdempotency(l, answers, "{claim.sub}", httplock.WithClaims(claims))
	return lock(once(http.HandlerFunc(pay))), nil
}
