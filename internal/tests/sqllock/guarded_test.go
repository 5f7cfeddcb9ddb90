package sqllock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// A guard takes a lock for each request. These tests are about transactions in the handlers of
// guarded requests.

// guarded returns handlers for net/http and Gin. Each has one route, POST /accounts/{id}, which
// runs h under the lock of the account.
func guarded(l locker.Locker, h http.Handler) map[string]http.Handler {
	gin.SetMode(gin.ReleaseMode)
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", httplock.MustNew(l, "account:{param.id}")(h))
	e := gin.New()
	e.POST("/accounts/:id", ginlock.MustNew(l, "account:{param.id}"), func(c *gin.Context) { h.ServeHTTP(c.Writer, c.Request) })
	return map[string]http.Handler{"net/http": mux, "Gin": e}
}

// charge sends a request for account 1 to door. The parameter key is the Idempotency-Key of the
// request. It returns the response.
func charge(door http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/accounts/1", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	door.ServeHTTP(w, r)
	return w
}

func TestAHandlersTransactionClaimsTheGuardsLease(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		newer, err := locktest.NewEngine(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = newer.Close(context.Background()) }()
		overtake := false
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if overtake { // a failover loses the lock, and a newer holder commits
				store.Free("account:1")
				if err := transact(context.Background(), newer, db, locker.Rule{Key: "account:1"}, deposit(400)); err != nil {
					t.Error(err)
				}
			}
			err := transactWithin(r.Context(), db, deposit(10))
			lease, _ := httplock.FromContext(r)
			switch {
			case overtake:
				if !errors.Is(err, sqllock.ErrStaleFence) {
					t.Errorf("a stale holder's transaction ended with %v", err)
				}
				return // the handler writes no reply
			case err != nil:
				t.Error(err)
			case uint64(db.number(t, "SELECT fence FROM latchkit_fence WHERE resource = 'account:1'")) != lease.Fence():
				t.Error("the claim has another fence than the request's lease")
			}
			if err := transact(r.Context(), l, db, account, deposit(1000)); !errors.Is(err, locker.ErrSelfDeadlock) {
				t.Errorf("Do inside of its own lock: %v", err)
			}
			w.WriteHeader(http.StatusCreated)
		})
		for name, door := range guarded(l, h) {
			before := db.balance(t)
			overtake = false
			if w := charge(door, ""); w.Code != http.StatusCreated {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			db.checkBalance(t, before+10)
			overtake = true
			if w := charge(door, ""); w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s: a stale holder got %d %s", name, w.Code, w.Body)
			}
			db.checkBalance(t, before+410)
		}
	})
}
