package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
)

// provider is a payment provider: it takes the money of each name once.
type provider struct {
	mu       sync.Mutex
	receipts map[string]string
	calls    int
	crashes  bool // the next charge takes the money, and its caller does not get the receipt
}

func (p *provider) charge(_ context.Context, name string, _ int64) (string, error) {
	<-time.After(20 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.receipts[name] == "" {
		p.receipts[name] = "receipt of " + name
	}
	if p.crashes {
		p.crashes = false
		return "", errors.New("the connection was reset")
	}
	return p.receipts[name], nil
}

func newPayments(t *testing.T, crashes bool) (shops [2]*recipes.Payments, bank *provider) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE payments (order_id TEXT PRIMARY KEY, receipt TEXT)"); err != nil {
		t.Fatal(err)
	}
	bank = &provider{receipts: make(map[string]string), crashes: crashes}
	for i, p := range newPods(t) {
		shops[i] = &recipes.Payments{L: p.l, DB: db, Charge: bank.charge}
	}
	return shops, bank
}

// Many clicks reach two pods. The order is charged once, and each click gets the receipt, or is
// refused while another click pays.
func TestADoubleClickPaysOnce(t *testing.T) {
	t.Parallel()
	shops, bank := newPayments(t, false)
	var all sync.WaitGroup
	for _, s := range shops {
		for range 8 {
			all.Go(func() {
				receipt, err := s.Pay(t.Context(), "42", 700)
				if err == nil && receipt != "receipt of order:42" || err != nil && !errors.Is(err, locker.ErrBusy) {
					t.Errorf("%q %v", receipt, err)
				}
			})
		}
	}
	all.Wait()
	if receipt, err := shops[1].Pay(t.Context(), "42", 700); err != nil || receipt != "receipt of order:42" {
		t.Errorf("a payment that is repeated later: %q %v", receipt, err)
	}
	if bank.calls != 1 {
		t.Errorf("the provider was asked %d times", bank.calls)
	}
}

// The money was taken, and the receipt did not arrive. The retry takes no money again.
func TestACrashAfterTheChargePaysOnce(t *testing.T) {
	t.Parallel()
	shops, bank := newPayments(t, true)
	if _, err := shops[0].Pay(t.Context(), "43", 700); err == nil {
		t.Fatal("the charge has not failed")
	}
	receipt, err := shops[1].Pay(t.Context(), "43", 700)
	if err != nil || receipt != "receipt of order:43" || len(bank.receipts) != 1 {
		t.Errorf("%q %v, taken: %v", receipt, err, bank.receipts)
	}
}
