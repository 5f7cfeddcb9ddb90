package recipes

import (
	"context"
	"database/sql"
	"errors"

	"github.com/latchkit/latchkit/locker"
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
