package recipes_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
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

// Clicks for one order, each with an Idempotency-Key of its own, reach two pods. One pays, and its
// repetition gets its response. A payment that fails leaves nothing, and may be repeated.
func TestAnOrderIsPaidByCreditOnce(t *testing.T) {
	t.Parallel()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	for _, q := range []string{
		"CREATE TABLE customers (id INTEGER PRIMARY KEY, credit INTEGER CHECK (credit >= 0))",
		"CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER, paid BOOLEAN DEFAULT FALSE)",
		"INSERT INTO customers VALUES (7, 1000)",
		"INSERT INTO orders (id, customer, cents) VALUES (42, 7, 300), (43, 7, 900)",
	} {
		if _, err := pool.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	pods := newPods(t)
	shops := make(map[pod]http.Handler)
	for _, p := range pods {
		db, err := sqllock.New(p.l, pool)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		route, err := recipes.PayByCredit(p.l, db, func(*http.Request) map[string]any { return map[string]any{"sub": "customer 7"} })
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/pay", route)
		shops[p] = mux
	}
	click := func(p pod, order, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/"+order+"/pay", http.NoBody)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		shops[p].ServeHTTP(w, r)
		return w
	}
	var mu sync.Mutex
	var paid []string // the keys of the clicks that paid
	together(pods, 6, func(p pod) {
		key := rand.Text()
		switch w := click(p, "042", key); w.Code {
		case http.StatusCreated:
			mu.Lock()
			defer mu.Unlock()
			paid = append(paid, key)
		case http.StatusConflict:
		default:
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
	if len(paid) != 1 {
		t.Fatalf("%d clicks paid the order", len(paid))
	}
	for _, p := range pods {
		if w := click(p, "042", paid[0]); w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "true" {
			t.Errorf("the repeated click: %d %s %v", w.Code, w.Body, w.Header())
		}
	}
	if w := click(pods[0], "43", "k"); w.Code != http.StatusInternalServerError {
		t.Errorf("a payment beyond the credit: %d %s", w.Code, w.Body)
	}
	if _, err := pool.ExecContext(t.Context(), "UPDATE customers SET credit = credit + 200"); err != nil {
		t.Fatal(err)
	}
	if w := click(pods[1], "43", "k"); w.Code != http.StatusCreated {
		t.Errorf("the payment with enough credit: %d %s", w.Code, w.Body)
	}
	var credit int
	if err := pool.QueryRowContext(t.Context(), "SELECT credit FROM customers").Scan(&credit); err != nil || credit != 0 {
		t.Errorf("the credit is %d, %v", credit, err)
	}
}
