package sqllock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/sqllock"
)

// newAnswers returns a Transactor of db, and its Handle.
func newAnswers(t *testing.T, db *database, opts ...sqllock.Option) (idempotency.Transactor, *sqllock.DB) {
	t.Helper()
	l, _ := memory(t)
	h := handle(t, l, db.DB, opts...)
	answers, err := sqllock.NewAnswers(h)
	if err != nil {
		t.Fatal(err)
	}
	return answers, h
}

// newPermits returns a Locker with n permits for each key, which a database cannot claim.
func newPermits(t *testing.T, n int) *locker.Engine {
	t.Helper()
	permits, err := locker.NewSemaphore(redistest.Shared(t).Client(t), n, locker.WithPrefix(rand.Text()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = permits.Close(context.Background()) })
	return permits
}

// An answer is stored if and only if the work was done, also without a lease. If a statement of the
// work has ended the transaction, the answer would be committed without the work.
func TestAnAnswerIsStoredOnlyWithItsWork(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		t.Run(end, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				answers, _ := newAnswers(t, db)
				answer := idempotency.Record{Run: "r", Answer: []byte("paid")}
				err := answers.Transact(t.Context(), func(ctx context.Context) error {
					tx, _ := sqllock.TxFromContext(ctx)
					err := deposit(-10)(ctx, tx)
					_, ended := tx.ExecContext(ctx, end)
					_, stored := answers.Swap(ctx, "k", idempotency.Record{}, answer, time.Minute)
					return errors.Join(err, ended, stored)
				})
				if !errors.Is(err, sqllock.ErrEnded) {
					t.Errorf("Transact: %v, want ErrEnded", err)
				}
				if rec, err := answers.Load(t.Context(), "k"); err != nil || rec.Answer != nil {
					t.Errorf("the answer %q is stored, %v", rec.Answer, err)
				}
			})
		})
	}
}

// The work of an answer without a lease has a claim, which says that the transaction is open, and
// another transaction that would wait for the last connection is refused.
func TestWorkWithoutALeaseIsATransactionLikeOthers(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, h := newAnswers(t, db)
		db.SetMaxOpenConns(1)
		op := ""
		err := answers.Transact(t.Context(), func(ctx context.Context) error {
			claim, ok := sqllock.ClaimFromContext(ctx)
			if !ok {
				return errors.New("the context has no claim")
			}
			if claim.Fence() != 0 || len(claim.Leases()) != 0 {
				t.Errorf("the claim has fence %d and %d leases", claim.Fence(), len(claim.Leases()))
			}
			op = claim.Op()
			if err := h.Do(ctx, account, func(context.Context, *sqllock.Tx) error { return nil }); !errors.Is(err, locker.ErrUnsupported) {
				t.Errorf("a Do inside: %v", err)
			}
			return claim.Verify(ctx)
		})
		if err != nil {
			t.Error(err)
		}
		if committed, err := h.Resolve(t.Context(), op); !committed || err != nil {
			t.Errorf("Resolve of %q: %t, %v", op, committed, err)
		}
	})
}

// A COMMIT that gets no answer keeps nobody longer than the context, or than WithAnswerWithin. The
// drivers of MySQL and of others wait for it without end.
func TestACommitWithoutAnAnswerKeepsNobodyBeyondItsTime(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		far, w := overWire(t, db)
		answers, h := newAnswers(t, far, sqllock.WithAnswerWithin(500*time.Millisecond))
		for name, call := range map[string]func(ctx context.Context) error{
			"Load":    func(ctx context.Context) error { _, err := answers.Load(ctx, "k"); return err },
			"Resolve": func(ctx context.Context) error { _, err := h.Resolve(ctx, "00000000000000AAAAAAAAAAAA:k"); return err },
			"Purge":   func(ctx context.Context) error { _, err := h.Purge(ctx, sqllock.Ages{}); return err },
			"Swap": func(ctx context.Context) error {
				_, err := answers.Swap(ctx, "k", idempotency.Record{}, idempotency.Record{Run: "r"}, time.Minute)
				return err
			},
			"Transact": func(ctx context.Context) error {
				return answers.Transact(ctx, func(context.Context) error { return nil })
			},
			"Do": func(ctx context.Context) error {
				return h.Do(ctx, account, func(context.Context, *sqllock.Tx) error { return nil })
			},
		} {
			w.Strike(chaos.Swallow, true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			back := make(chan error, 1)
			go func() { back <- call(ctx) }()
			select {
			case err := <-back:
				if err == nil {
					t.Errorf("%s: no error", name)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s is not back after 10 s", name)
			}
			cancel()
			w.Revive()
			w.Cut()
		}
	}, postgres, maria)
}

// A request runs once on every Locker: a lease whose fence no database can compare is not claimed,
// and beside it the others are.
func TestAnAnswerNeedsNoFence(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, _ := newAnswers(t, db)
		permits := newPermits(t, 3)
		l, _ := memory(t)
		keeper, runs := idempotency.Keeper{Locker: permits, Store: answers}, 0
		pay := func(ctx context.Context) (idempotency.Answer, error) {
			return keeper.Do(ctx, idempotency.Request{Rule: locker.Rule{Key: "pay"}}, func(ctx context.Context) idempotency.Outcome {
				tx, _ := sqllock.TxFromContext(ctx)
				if err := deposit(10)(ctx, tx); err != nil {
					t.Error(err)
				}
				if runs++; len(tx.Leases()) != 1 || tx.Leases()[0].Key() != account.Key {
					t.Errorf("claimed: %v", tx.Leases())
				}
				return idempotency.Outcome{Keep: true}
			})
		}
		for range 2 {
			if err := locker.Run(t.Context(), l, account, func(ctx context.Context) error { _, err := pay(ctx); return err }); err != nil {
				t.Error(err)
			}
		}
		if answer, err := pay(t.Context()); err != nil || !answer.Replayed || runs != 1 {
			t.Errorf("%v, %v after %d runs", answer, err, runs)
		}
		db.checkBalance(t, 110)
	})
}

// A lease that the transaction cannot claim, such as a permit, ends the transaction when it ends,
// although the work of the Keeper outlives its client. Its next holder may write already.
func TestAnAnswerIsNotCommittedBesideTheNextHolderOfAPermit(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, _ := newAnswers(t, db)
		permits := newPermits(t, 1)
		l, _ := memory(t)
		keeper := idempotency.Keeper{Locker: l, Store: answers}
		pay := func(ctx context.Context, revoke bool) error {
			outer, _ := locker.FromContext(ctx)
			_, err := keeper.Do(ctx, idempotency.Request{Rule: locker.Rule{Key: "pay"}}, func(ctx context.Context) idempotency.Outcome {
				tx, _ := sqllock.TxFromContext(ctx)
				if err := deposit(10)(ctx, tx); err != nil {
					t.Error(err)
				}
				if revoke {
					if err := permits.Revoke(t.Context(), "account", outer.Fence(), "a test"); err != nil {
						t.Error(err)
					}
					<-outer.Context().Done()
				}
				return idempotency.Outcome{Keep: true}
			})
			return err
		}
		err := locker.Run(t.Context(), permits, locker.Rule{Key: "account", TTL: time.Second}, func(ctx context.Context) error {
			if err := pay(ctx, true); err == nil {
				t.Error("the payment was committed")
			}
			if err := pay(ctx, false); err == nil {
				t.Error("a payment began under a permit that was lost")
			}
			return nil
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("the control: %v, want ErrLost", err)
		}
		db.checkBalance(t, 100)
	})
}

// A run that another one has overtaken is refused, also if its answer is not kept.
func TestAnOvertakenRunWithoutAnAnswerIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, _ := newAnswers(t, db)
		l, _ := memory(t)
		keeper := idempotency.Keeper{Locker: l, Store: answers}
		_, err := keeper.Do(t.Context(), idempotency.Request{Rule: locker.Rule{Key: "pay"}}, func(ctx context.Context) idempotency.Outcome {
			own, err := answers.Load(t.Context(), "pay")
			if err == nil {
				_, err = answers.Swap(t.Context(), "pay", own, idempotency.Record{Run: "another", Open: true}, time.Minute)
			}
			tx, _ := sqllock.TxFromContext(ctx)
			if err := errors.Join(err, deposit(10)(ctx, tx)); err != nil {
				t.Error(err)
			}
			return idempotency.Outcome{}
		})
		if !errors.Is(err, idempotency.ErrOvertaken) {
			t.Errorf("%v, want ErrOvertaken", err)
		}
		db.checkBalance(t, 100)
	}, postgres, maria)
}

// When all leases of a context were released, its transaction is refused as Within refuses it.
func TestAnAnswerUnderReleasedLeasesIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, _ := newAnswers(t, db)
		l, _ := memory(t)
		var after context.Context
		_ = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			after = context.WithoutCancel(ctx)
			return nil
		})
		err := answers.Transact(after, func(context.Context) error { return nil })
		if !errors.Is(err, locker.ErrReleased) {
			t.Errorf("%v, want ErrReleased", err)
		}
	}, postgres)
}

// A rule has a key and stores its answers with NewAnswers. So two requests for one order, each with an
// Idempotency-Key of its own, run one after the other until after the COMMIT, and the transaction has the
// order's fence.
func TestTheLockOfAnOrderLastsUntilItsAnswerIsCommitted(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		answers, err := sqllock.NewAnswers(handle(t, l, db.DB))
		if err != nil {
			t.Fatal(err)
		}
		rule := httplock.Rule{Key: "order:{param.id|int}", Idempotency: "shop", Wait: patience}
		guard, err := httplock.FromRules(l, httplock.Rules{"POST /orders/{id}/pay": rule}, httplock.WithStore(answers))
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/pay", guard.Wrap("POST /orders/{id}/pay", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := sqllock.TxFromContext(r.Context())
			lease, _ := httplock.FromContext(r)
			if lease.Key() != "order:42" || tx.Fence() != lease.Fence() || len(tx.Leases()) != 2 {
				t.Errorf("the lease of %s has the fence %d, and the transaction %d", lease.Key(), lease.Fence(), tx.Fence())
			}
			if err := deposit(1)(r.Context(), tx); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
		})))
		var all sync.WaitGroup
		const requests = 20
		for i := range requests {
			all.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42/pay", nil)
				r.Header.Set("Idempotency-Key", fmt.Sprint(i))
				w := httptest.NewRecorder()
				if mux.ServeHTTP(w, r); w.Code != http.StatusCreated {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		if got := db.balance(t); got != 100+requests {
			t.Errorf("the balance is %d after %d deposits on 100", got, requests)
		}
	})
}

// A request whose handler keeps its transaction idle for too long is told that nothing was changed, and its
// observers why.
func TestAnIdleTransactionOfAnAnswerIsNotAnOutage(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		answers, err := sqllock.NewAnswers(handle(t, l, db.DB, sqllock.WithIdleLimit(time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		var told *httplock.Problem
		once := httplock.MustIdempotency(l, answers, "shop", httplock.WithObserve(func(_ *http.Request, p *httplock.Problem) { told = p }))
		h := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := sqllock.TxFromContext(r.Context())
			if err := deposit(1)(r.Context(), tx); err != nil {
				t.Error(err)
			}
			<-time.After(1500 * time.Millisecond) // a slow service
			w.WriteHeader(http.StatusCreated)
		}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || told == nil || told.Code != httplock.CodeLost || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(w.Body.String(), "nothing was changed") || !errors.Is(told, sqllock.ErrIdle) {
			t.Errorf("%d %s %v: %v", w.Code, w.Body, w.Header(), told)
		}
		db.checkBalance(t, 100)
	}, postgres, maria)
}
