package sqllock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/idempotency/storetest"
	"github.com/latchkit/latchkit/sqllock"
)

// timeAgo returns an SQL expression for the time that is d before now.
func (db *database) timeAgo(d time.Duration) string {
	return fmt.Sprintf(map[sqllock.Dialect]string{
		postgres: "now() - interval '%d seconds'", maria: "CURRENT_TIMESTAMP(3) - INTERVAL %d SECOND", sqlite: "datetime('now', '-%d seconds')",
	}[db.dialect], int64(d/time.Second))
}

const day = 24 * time.Hour

func TestFencesAreForgottenAndNoneGoesBack(t *testing.T) {
	t.Parallel()
	const base = uint64(1) << 60 // larger than any clock in µs
	forEach(t, func(t *testing.T, db *database) {
		for i := range 2500 {
			db.exec(t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner, claimed_at) VALUES ('order:%04d', %d, 'old', %s)", i, base+1000+uint64(i), db.timeAgo(3*day)))
		}
		db.exec(t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner, claimed_at) VALUES ('fresh', %d, 'new', %s)", base+5000, db.timeAgo(time.Hour)))
		db.exec(t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner, claimed_at) VALUES ('outlier', %d, 'old', %s)", int64(1)<<61, db.timeAgo(3*day)))
		purge := func(want int64) {
			t.Helper()
			if n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Fences: 2 * day}); err != nil || n != want {
				t.Errorf("removed %d, %v; want %d", n, err, want)
			}
		}
		purge(0) // the first purge only raises the floor, below which no fence may be claimed
		purge(0) // the second purge removes nothing, because the floor was raised too recently
		db.exec(t, "UPDATE latchkit_fence SET claimed_at = "+db.timeAgo(2*time.Hour)+" WHERE resource = ''")
		purge(2500)
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence"); n != 3 {
			t.Errorf("%d rows are left, want the fresh one, the outlier and the floor", n)
		}
		if n := db.number(t, "SELECT fence FROM latchkit_fence WHERE resource = ''"); n != int64(base)+4999 {
			t.Errorf("the floor is %d, want one less than the smallest fresh fence", n)
		}
		for fence, want := range map[uint64]error{3000: sqllock.ErrStaleFence, 4999: sqllock.ErrStaleFence, 5001: nil} {
			err := transactLate(t, db, "order:0001", base+fence)
			db.exec(t, "DELETE FROM latchkit_fence WHERE resource = 'order:0001'")
			if !errors.Is(err, want) {
				t.Errorf("with fence %d: %v, want %v", fence, err, want)
			}
		}
		if _, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Fences: time.Hour}); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("an age of 1h: %v", err)
		}
	})
}

// transactLate runs a transaction with the given fence of key, after its lease was lost.
func transactLate(t *testing.T, db *database, key string, fence uint64) (err error) {
	t.Helper()
	l, store := memory(t)
	if err := l.RaiseFence(t.Context(), key, fence-1); err != nil {
		t.Fatal(err)
	}
	rule := locker.Rule{Key: key, TTL: account.TTL}
	_ = locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
		store.Steal(key)
		err = transactWithin(ctx, db, deposit(0))
		return nil
	})
	return err
}

// Two jobs may give different ages. A lease that is renewed for a long time keeps its fence, so a
// small fence may be claimed later than a large one. The second job here keeps the leader's small
// fence, and computes a floor below it. If this floor replaced the larger one, a late holder of the
// order could claim again.
func TestAPurgeWithALongerAgeDoesNotLowerTheFloor(t *testing.T) {
	t.Parallel()
	const base = uint64(1) << 60 // larger than any clock in µs
	forEach(t, func(t *testing.T, db *database) {
		for _, row := range []struct {
			resource string
			fence    uint64
			age      time.Duration
		}{
			{"order", base + 200, 10 * day}, {"leader", base + 100, 3 * day},
			{"fresh", base + 1000, time.Hour}, {"outlier", 1 << 61, 10 * day},
		} {
			db.writeClaim(t, row.resource, row.fence, "old")
			db.exec(t, "UPDATE latchkit_fence SET claimed_at = "+db.timeAgo(row.age)+
				" WHERE resource = '"+row.resource+"'")
		}
		for _, purge := range []struct {
			age     time.Duration
			removed int64
		}{{2 * day, 0}, {7 * day, 1}} {
			n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Fences: purge.age})
			if err != nil || n != purge.removed {
				t.Errorf("age %v: removed %d, %v; want %d", purge.age, n, err, purge.removed)
			}
			floor := db.number(t, "SELECT fence FROM latchkit_fence WHERE resource = ''")
			if floor != int64(base)+999 {
				t.Errorf("age %v: the floor is 2^60 + %d, want 2^60 + 999", purge.age, floor-int64(base))
			}
			db.exec(t, "UPDATE latchkit_fence SET claimed_at = "+db.timeAgo(2*time.Hour)+
				" WHERE resource = ''")
		}
		if err := transactLate(t, db, "order", base+150); !errors.Is(err, sqllock.ErrStaleFence) {
			t.Errorf("a late holder of a forgotten fence: %v, want ErrStaleFence", err)
		}
	})
}

func TestOldOperationsAreForgotten(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		pay := func() error {
			return handle(t, l, db).Operation("invoice:4711").Do(t.Context(), account, deposit(10))
		}
		if err := pay(); err != nil {
			t.Fatal(err)
		}
		if n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Operations: day}); n != 0 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		db.exec(t, "UPDATE latchkit_operation SET done_at = "+db.timeAgo(2*day))
		if err := pay(); !errors.Is(err, locker.ErrDone) {
			t.Errorf("before: %v", err)
		}
		if n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Operations: day}); n != 1 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		if err := pay(); err != nil {
			t.Errorf("after: %v", err)
		}
		db.checkBalance(t, 120)
	})
}

func TestAnswersObeyTheRulesOfAStore(t *testing.T) {
	t.Parallel()
	for _, d := range []sqllock.Dialect{postgres, maria, sqlite} {
		t.Run(nameOf[d], func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) idempotency.Store {
				answers, err := sqllock.NewAnswers(handle(t, nil, newDatabase(t, d)))
				if err != nil {
					t.Fatal(err)
				}
				return answers
			})
		})
	}
}

// The lock server loses its data twice: between two requests with the same key, and between the
// work and its answer.
func TestARequestIsDoneOnceThoughTheLockServerForgets(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		answers, err := sqllock.NewAnswers(handle(t, nil, db))
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		request := func(l locker.Locker) (idempotency.Answer, error) {
			keeper := idempotency.Keeper{Locker: l, Store: answers}
			return keeper.Do(t.Context(), idempotency.Request{Rule: locker.Rule{Key: "payment:1"}, Content: [][]byte{{1}}},
				func(ctx context.Context) idempotency.Outcome {
					calls++
					tx, ok := sqllock.TxFromContext(ctx)
					if !ok {
						t.Error("the work has no transaction")
						return idempotency.Outcome{Failed: true}
					}
					if err := deposit(10)(ctx, tx); err != nil {
						t.Error(err)
						return idempotency.Outcome{Failed: true}
					}
					return idempotency.Outcome{Keep: true, Response: idempotency.Response{Status: 201, Body: []byte("paid")}}
				})
		}
		for range 3 {
			// each call uses a new lock server, as if the old one had lost its data
			l, _ := memory(t)
			answer, err := request(l)
			if err != nil || string(answer.Response.Body) != "paid" {
				t.Errorf("%+v, %v", answer, err)
			}
		}
		if calls != 1 {
			t.Errorf("the work ran %d times", calls)
		}
		db.checkBalance(t, 110)
		db.exec(t, "UPDATE latchkit_answer SET expires = 1")
		if n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{}); n != 1 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
	})
}

// Purge has raised the floor above the fence of a resource whose row was not old enough.
func TestRepairRaisesFencesAboveTheFloor(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.writeClaim(t, account.Key, 1<<60, "old")
		db.writeClaim(t, "", 1<<61, "")
		l, _ := memory(t)
		h := handle(t, l, db)
		if err := h.Do(t.Context(), account, deposit(10)); !errors.Is(err, sqllock.ErrFenceRegressed) {
			t.Errorf("before: %v", err)
		}
		if n, err := h.Repair(t.Context()); n != 1 || err != nil {
			t.Errorf("repaired %d, %v", n, err)
		}
		if err := h.Do(t.Context(), account, deposit(10)); err != nil {
			t.Errorf("after: %v", err)
		}
		db.checkBalance(t, 110)
	})
}
