package main

import (
	"strings"
	"testing"
)

// Each scene ends as it is told: the harm is done without a lock or with SETNX + DEL, and none with
// latchkit. The scripts pause and kill real processes.
func TestScenesEndAsTheyAreTold(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := output(t.Context(), t, "-scene", sc.name, "-assert", "-trace")
			if code != 0 || !strings.Contains(out, "Assertions hold.") {
				t.Errorf("exit code %d: %s\n%s", code, errs, out)
			}
		})
	}
}

// A scene on servers of the user removes its rows and locks.
func TestASceneLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	local, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer local.close()
	dsn := t.TempDir() + "/shop.db"
	if code, out, errs := output(t.Context(), t, "-scene", "article", "-redis", local.url(), "-dsn", dsn); code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, errs, out)
	}
	books, err := openStore(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = books.close() }()
	for _, table := range []string{"documents", "results", "orders", "stock"} {
		var n int
		if err := books.db.QueryRowContext(t.Context(), "SELECT count(*) FROM flashsale_"+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in %s, %v", n, table, err)
		}
	}
	for _, key := range local.server.Keys() {
		// A counter of fences stays, and inboxes of waiters expire.
		if !strings.HasPrefix(key, "latchkit:f:") && local.server.TTL(key) == 0 {
			t.Errorf("the key %s is left", key)
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
