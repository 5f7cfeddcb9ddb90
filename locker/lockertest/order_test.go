package lockertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// spy is a testing.TB that remembers its errors, and has an end of its own.
type spy struct {
	testing.TB
	errs    []string
	cleanup []func()
}

func (s *spy) Error(args ...any) { s.errs = append(s.errs, fmt.Sprint(args...)) }
func (s *spy) Cleanup(f func())  { s.cleanup = append(s.cleanup, f) }

func TestOrderFailsTheTestThatTakesTwoOrders(t *testing.T) {
	t.Parallel()
	test := &spy{TB: t}
	l := lockertest.NewLocker(t, lockertest.NewMemory(), lockertest.Order(test))
	take := func(outer, inner string) {
		err := locker.Run(t.Context(), l, locker.Rule{Key: outer}, func(ctx context.Context) error {
			return locker.Run(ctx, l, locker.Rule{Key: inner}, func(context.Context) error { return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	take("order:1", "item:1")
	if test.errs != nil {
		t.Fatalf("one order, and the test failed: %q", test.errs)
	}
	take("item:1", "order:1")
	if len(test.errs) != 1 || !strings.Contains(test.errs[0], "lockertest_test.TestOrderFails") {
		t.Fatalf("the test failed with %q", test.errs)
	}
	for _, f := range test.cleanup {
		f()
	}
	take("a:1", "b:1")
	take("b:1", "a:1")
	if len(test.errs) != 1 {
		t.Error("a test that has ended failed again")
	}
}
