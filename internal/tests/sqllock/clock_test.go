package sqllock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// setBack restarts the server with a clock that is one day behind.
func setBack(t *testing.T, server *redistest.Server, clock *redistest.Clock) {
	t.Helper()
	clock.Set(-24 * time.Hour)
	server.Restart()
	now, err := server.Client(t).Time(t.Context()).Result()
	if err != nil || time.Since(now) < 23*time.Hour {
		t.Fatalf("the control: the server's clock says %v, %v", now, err)
	}
}

// When a Redis server is restored from an old snapshot, its fences still grow, because the server
// makes fences from its clock. If the clock was set back, too, the server grants the same
// fences again. Even then no stale holder overwrites data, and Repair raises the fences.
func TestARealSnapshotAndAClockThatWasSetBackOverwriteNothing(t *testing.T) {
	t.Parallel()
	for _, d := range []sqllock.Dialect{postgres, maria, sqlite} {
		t.Run(nameOf[d], func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, d)
			server, clock := redistest.StartWithClock(t, "--dir", t.TempDir())
			keys := []string{"account:1", "account:2", "account:3"}
			l := redisLocker(t, server)
			do := func() (errs []error) {
				for _, key := range keys {
					errs = append(errs, transact(t.Context(), l, db, locker.Rule{Key: key}, deposit(1)))
				}
				return errs
			}
			check := func(when string) {
				t.Helper()
				if err := errors.Join(do()...); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
			check("at first")
			if err := server.Client(t).Save(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				check("after the snapshot was taken")
			}
			server.Restart()
			check("with the old snapshot")
			db.checkBalance(t, 115)

			setBack(t, server, clock)
			for i, err := range do() {
				if !errors.Is(err, sqllock.ErrFenceRegressed) {
					t.Errorf("%s with the clock set back: %v", keys[i], err)
				}
			}
			db.checkBalance(t, 115)
			if n, err := handle(t, l, db).Repair(t.Context()); n != len(keys) || err != nil {
				t.Errorf("repaired %d, %v", n, err)
			}
			check("after Repair of all")
			db.checkBalance(t, 118)
		})
	}
}
