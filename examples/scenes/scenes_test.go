package main

import (
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
)

// Each scene ends as it is told: the harm is done without a lock or with SETNX + DEL, and none with
// latchkit. The scripts pause and kill real processes.
func TestScenesEndAsTheyAreTold(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := output(t, "-scene", sc.name, "-assert", "-trace")
			if code != 0 || !strings.Contains(out, "Assertions hold.") {
				t.Errorf("exit code %d: %s\n%s", code, errs, out)
			}
		})
	}
}

// The same on a real Redis and a real PostgreSQL, on which the scenes leave nothing behind.
func TestScenesOnServersOfTheUser(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	url, dsn := "redis://"+client.Options().Addr, sqltest.Start(t, sqltest.Postgres).DSN("postgres")
	t.Run("each", func(t *testing.T) {
		for _, sc := range scenes {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				code, out, errs := output(t, "-scene", sc.name, "-trace", "-assert", "-redis", url, "-dsn", dsn)
				if code != 0 || !strings.Contains(out, "Assertions hold.") {
					t.Errorf("exit code %d: %s\n%s", code, errs, out)
				}
			})
		}
	})
	books, err := openStore(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = books.close() }()
	for _, table := range []string{"documents", "results", "orders", "stock"} {
		var n int
		if err := books.db.QueryRowContext(t.Context(), "SELECT count(*) FROM scenes_"+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in %s, %v", n, table, err)
		}
	}
	for _, key := range client.Keys(t.Context(), "*").Val() {
		// A counter of fences stays, and inboxes of waiters expire.
		if !strings.HasPrefix(key, "latchkit:f:") && client.TTL(t.Context(), key).Val() < 0 {
			t.Errorf("the key %s is left", key)
		}
	}
}

// The page has a few lines of the program for each mode of each of its scenes.
func TestTheCodeOfEachModeIsShown(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes {
		for _, way := range ways {
			if sc.terminal {
				continue
			}
			code, from := excerpt(sc.code[way.name]...)
			if n := strings.Count(code, "\n") + 1; code == "" || from == "" || n > 12 || strings.Contains(code, "//show:") {
				t.Errorf("%s, %s: %d lines from %q:\n%s", sc.name, way.name, n, from, code)
			}
		}
	}
}

// Without a lock at work, each check fails: so each check can fail.
func TestChecksOfScenesCanFail(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes {
		if sc.check(nil) == nil {
			t.Errorf("the check of %s passes without any figures", sc.name)
		}
	}
}
