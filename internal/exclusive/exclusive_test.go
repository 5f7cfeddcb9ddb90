package exclusive_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Whatever Locker and rule a program gives, the rule that comes back admits one holder, the Locker
// can grant the rule, and the other fields are unchanged.
func TestARuleHasOneHolderOnEveryLocker(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = c.Close() })
	made := func(l locker.Locker, err error) locker.Locker {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	permits := made(locker.NewSemaphore(c, 3))
	for name, tc := range map[string]struct {
		l     locker.Locker
		limit int
	}{
		"a semaphore":             {permits, 1},
		"a semaphore of one":      {made(locker.NewSemaphore(c, 1)), 1},
		"a striped semaphore":     {made(locker.NewStriped(permits, 8)), 1},
		"a lock":                  {made(locker.New(c)), 0},
		"readers and writers":     {made(locker.NewReadWrite(c)), 0},
		"a Store with units":      {lockertest.NewLocker(t, lockertest.NewMemory()), 0},
		"a wrapper without Check": {struct{ locker.Locker }{permits}, 0},
		"a nil Locker":            {(*locker.Engine)(nil), 0},
	} {
		for _, rule := range []locker.Rule{{}, {Limit: 3, Weight: 2}, {Mode: locker.Shared}} {
			want := locker.Rule{Key: "k", Name: "n", Wait: time.Second, TTL: time.Minute, Metadata: "m", Limit: tc.limit}
			rule.Key, rule.Name, rule.Wait, rule.TTL, rule.Metadata = want.Key, want.Name, want.Wait, want.TTL, want.Metadata
			got := exclusive.Rule(tc.l, rule)
			if got != want {
				t.Errorf("%s: %+v became %+v, want %+v", name, rule, got, want)
			}
			if err := locker.Check(tc.l, got); err != nil && name != "a nil Locker" {
				t.Errorf("%s: %+v cannot be granted: %v", name, got, err)
			}
		}
	}
}
