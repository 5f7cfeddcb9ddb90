package httplock_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// undoing is a Transactor that counts what it has rolled back.
type undoing struct {
	idempotency.Store
	undone *atomic.Int32
}

func (u undoing) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	err := work(ctx)
	if err != nil {
		u.undone.Add(1)
	}
	return err
}

// The lock of the order is lost, but the handler has paid. So the repeated request must not pay
// again, unless a Transactor has undone the payment.
func TestWorkThatIsDoneIsNotRepeatedAlthoughALockWasLost(t *testing.T) {
	var undone atomic.Int32
	succeeds := httplock.WithSuccess(func(_ *http.Request, status int) bool { return status < 400 })
	nothing := func(http.ResponseWriter) {}
	pays := func(w http.ResponseWriter) {
		w.Header().Set("X-Charge", "ch_1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
	}
	atLength := func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 100<<10)) } // too long for a Store
	refuses := func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }
	for name, tc := range map[string]struct {
		store        idempotency.Store
		opts         []httplock.Option
		reply        func(w http.ResponseWriter)
		code         int
		body         string
		runs, undone int32
	}{
		"done":             {nil, nil, pays, 201, "paid", 1, 0},
		"done, unwritten":  {nil, []httplock.Option{succeeds}, nothing, 409, "already-done", 1, 0},
		"nothing, no mark": {nil, nil, nothing, 201, "paid", 2, 0}, // by default, this handler has not succeeded
		"undone":           {undoing{idempotency.NewMemory(), &undone}, nil, pays, 201, "paid", 2, 1},
		"undone, long":     {undoing{idempotency.NewMemory(), &undone}, nil, atLength, 201, "paid", 2, 1},
		"failed":           {nil, nil, refuses, 201, "paid", 2, 0},
		"failed, undone":   {undoing{idempotency.NewMemory(), &undone}, nil, refuses, 201, "paid", 2, 1}, // the handler's own 404 is sent
	} {
		t.Run(name, func(t *testing.T) {
			undone.Store(0)
			memory := lockertest.NewMemory()
			l := lockertest.NewLocker(t, memory, locker.WithTTL(time.Second))
			if tc.store == nil {
				tc.store = idempotency.NewMemory()
			}
			runs := int32(0)
			order := httplock.MustNew(l, "order:42", tc.opts...)
			once := httplock.MustIdempotency(l, tc.store, "shop")
			_, commits := tc.store.(idempotency.Transactor)
			handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if runs++; runs > 1 {
					pays(w)
					return
				}
				if !commits {
					memory.Steal("order:42")
				} else if lease, _ := httplock.FromContext(r); lease.Key() != "order:42" {
					t.Errorf("the lease of the request is one of %s", lease.Key())
				} else if err := l.Revoke(t.Context(), "order:42", lease.Fence(), "a test"); err != nil {
					t.Error(err)
				} else {
					<-r.Context().Done()
				}
				tc.reply(w)
			}))
			between := func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Between", "1")
					inner.ServeHTTP(struct{ http.ResponseWriter }{w}, r) // as a middleware that has a writer of its own
				})
			}
			h := once(between(order(handler)))
			if commits {
				if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 500 || runs != 0 {
					t.Errorf("a lock that ends before the COMMIT: %d %s, %d runs", w.Code, w.Body, runs)
				}
				undone.Store(0)
				h = order(once(between(handler)))
			}
			if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); (w.Code != 503 || !strings.Contains(w.Body.String(), httplock.CodeLost) || w.Header().Get("Retry-After") == "") && name != "failed, undone" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			memory.Free("order:42")
			w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k")
			if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) || runs != tc.runs || undone.Load() != tc.undone {
				t.Errorf("again: %d %s, %d runs, %d undone", w.Code, w.Body, runs, undone.Load())
			}
			if head := w.Header(); tc.code == 201 && (head.Get("X-Charge") != "ch_1" || head.Get("X-Between") != "1" || head.Get("Retry-After") != "") {
				t.Errorf("again: %v", head)
			}
		})
	}
}

// The mark of OnceFor would stand before the stored answer.
func TestARuleThatWouldRefuseItsReplaysIsRefused(t *testing.T) {
	once := httplock.Rule{Key: "order:{param.id|int}", OnceFor: time.Hour, Idempotency: "shop"}
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	_, err := httplock.FromRules(l, httplock.Rules{"POST /orders/{id}/pay": once}, httplock.WithStore(undoing{idempotency.NewMemory(), nil}))
	if err == nil || !strings.Contains(err.Error(), "leave OnceFor out") {
		t.Error(err)
	}
}

// The handler has paid, and has set headers of its reply. The reply that its lock was lost takes
// the place of this reply, and has none of its headers.
func TestTheReplyToALostLockHasNoHeadersOfTheHandler(t *testing.T) {
	memory := lockertest.NewMemory()
	l := lockertest.NewLocker(t, memory)
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(httplock.MustNew(l, "order:42")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		memory.Steal("order:42")
		w.Header().Set("Location", "/charges/1")
		w.Header().Set("Set-Cookie", "charge=1")
		w.WriteHeader(http.StatusCreated)
	})))
	w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k")
	if head := w.Header(); w.Code != 503 || head.Get("Location") != "" || head.Get("Set-Cookie") != "" {
		t.Errorf("%d %s, %v", w.Code, w.Body, head)
	}
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 201 || w.Header().Get("Location") != "/charges/1" {
		t.Errorf("again: %d %s, %v", w.Code, w.Body, w.Header())
	}
}

// A Store must not get a part of a response as the whole, although the client has left, too.
func TestAPartOfAProxiedResponseIsNotStored(t *testing.T) {
	ctx, leave := context.WithCancel(context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}))
	defer leave()
	h := httplock.MustIdempotency(lockertest.NewLocker(t, lockertest.NewMemory()), idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "pa")
		if ctx.Err() == nil {
			leave()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "id")
	}))
	func() {
		defer func() { _ = recover() }()
		send(ctx, h, "POST", "/", "", "Idempotency-Key", "k")
	}()
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 200 || w.Body.String() != "paid" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
