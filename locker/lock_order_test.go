package locker_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// conflicts collects what WithOrderCheck reports.
type conflicts struct {
	mu  sync.Mutex
	all []string
}

func (c *conflicts) report(conflict string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conflict)
}

// stepOf finds the keys of a step in the text of a conflict.
var stepOf = regexp.MustCompile(`(?m)^(\S+) \(.*\) was acquired while (\S+) \(.*\) was held:$`)

// keys returns for each report the keys of its steps, as held>taken.
func (c *conflicts) keys() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conflict := range c.all {
		var steps []string
		for _, s := range stepOf.FindAllStringSubmatch(conflict, -1) {
			steps = append(steps, s[2]+">"+s[1])
		}
		all = append(all, strings.Join(steps, " "))
	}
	return all
}

// nested takes the locks of rules, each inside the one before.
func nested(t *testing.T, l locker.Locker, rules ...locker.Rule) {
	t.Helper()
	if err := runInside(t.Context(), l, rules); err != nil {
		t.Fatal(err)
	}
}

func runInside(ctx context.Context, l locker.Locker, rules []locker.Rule) error {
	if len(rules) == 0 {
		return nil
	}
	return locker.Run(ctx, l, rules[0], func(ctx context.Context) error { return runInside(ctx, l, rules[1:]) })
}

func TestOrderCheckReportsLocksThatAreTakenInTwoOrders(t *testing.T) {
	t.Parallel()
	all := func(l locker.Locker, t *testing.T, keys ...string) {
		if err := locker.RunAll(t.Context(), l, rulesOf(keys...), nothing); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, l locker.Locker)
		want []string
	}{
		{"two names", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("order:1", "item:7")...)
			nested(t, l, rulesOf("item:9", "order:4")...)
		}, []string{"item:9>order:4 order:1>item:7"}},
		{"two names, often", func(t *testing.T, l locker.Locker) {
			for i := range 20 {
				nested(t, l, rulesOf(fmt.Sprint("order:", i), "item:7")...)
				nested(t, l, rulesOf("item:7", fmt.Sprint("order:", i))...)
			}
		}, []string{"item:7>order:0 order:0>item:7"}},
		{"names that rules give", func(t *testing.T, l locker.Locker) {
			nested(t, l, locker.Rule{Key: "1", Name: "order"}, locker.Rule{Key: "2", Name: "item"})
			nested(t, l, locker.Rule{Key: "3", Name: "item"}, locker.Rule{Key: "4", Name: "order"})
		}, []string{"3>4 1>2"}},
		{"one order", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("order:1", "item:7")...)
			nested(t, l, rulesOf("order:2", "item:7")...)
			nested(t, l, rulesOf("item:7")...)
			nested(t, l, rulesOf("order:2")...)
		}, nil},
		{"ordered transfers", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("account:1", "account:2")...)
			nested(t, l, rulesOf("account:2", "account:3")...)
			nested(t, l, rulesOf("account:1", "account:3")...)
		}, nil},
		{"transfers in both directions", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("account:1", "account:2")...)
			nested(t, l, rulesOf("account:2", "account:1")...)
		}, []string{"account:2>account:1 account:1>account:2"}},
		{"a circle of three names", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "b:1")...)
			nested(t, l, rulesOf("b:2", "c:2")...)
			nested(t, l, rulesOf("c:3", "a:3")...)
		}, []string{"c:3>a:3 a:1>b:1 b:2>c:2"}},
		{"a circle of three keys", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "a:2")...)
			nested(t, l, rulesOf("a:2", "a:3")...)
			nested(t, l, rulesOf("a:3", "a:1")...)
		}, []string{"a:3>a:1 a:1>a:2 a:2>a:3"}},
		{"three locks, the outermost and the innermost exchanged", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "b:1", "c:1")...)
			nested(t, l, rulesOf("c:1", "a:1")...)
		}, []string{"c:1>a:1 a:1>c:1"}},
		{"RunAll twice", func(t *testing.T, l locker.Locker) {
			all(l, t, "order:1", "item:1")
			all(l, t, "item:1", "order:1")
		}, nil},
		{"RunAll whose keys sort otherwise than their names", func(t *testing.T, l locker.Locker) {
			for _, keys := range [][2]string{{"1", "2"}, {"4", "3"}} {
				rules := []locker.Rule{{Key: keys[0], Name: "order"}, {Key: keys[1], Name: "item"}}
				if err := locker.RunAll(t.Context(), l, rules, nothing); err != nil {
					t.Fatal(err)
				}
			}
		}, nil},
		{"RunAll, and the same keys one after the other", func(t *testing.T, l locker.Locker) {
			all(l, t, "order:1", "item:1")
			nested(t, l, rulesOf("order:1", "item:1")...)
		}, []string{"order:1>item:1 item:1>order:1"}},
		{"a lock inside RunAll", func(t *testing.T, l locker.Locker) {
			err := locker.RunAll(t.Context(), l, rulesOf("a:1", "b:1"), func(ctx context.Context) error {
				return locker.Run(ctx, l, locker.Rule{Key: "c:1"}, nothing)
			})
			if err != nil {
				t.Fatal(err)
			}
			nested(t, l, rulesOf("c:1", "a:1")...)
		}, []string{"c:1>a:1 a:1>c:1"}},
		{"an acquire that does not wait", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "b:1")...)
			nested(t, l, locker.Rule{Key: "b:1"}, locker.Rule{Key: "a:1", Wait: locker.NoWait})
		}, nil},
		{"a reader that reads again", func(t *testing.T, l locker.Locker) {
			nested(t, l, locker.Rule{Key: "a:1", Mode: locker.Shared}, locker.Rule{Key: "b:1"}, locker.Rule{Key: "a:1", Mode: locker.Shared})
		}, nil},
		{"further units of a semaphore", func(t *testing.T, l locker.Locker) {
			nested(t, l, locker.Rule{Key: "a:1", Limit: 3}, locker.Rule{Key: "b:1"}, locker.Rule{Key: "a:1", Limit: 3})
		}, []string{"b:1>a:1 a:1>b:1"}},
		{"a lock that was released", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "b:1")...)
			lease := acquire(t, l, locker.Rule{Key: "b:1"})
			ctx := context.WithoutCancel(lease.Context())
			release(t, lease)
			if err := locker.Run(ctx, l, locker.Rule{Key: "a:1"}, nothing); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a goroutine with a context of its own", func(t *testing.T, l locker.Locker) {
			nested(t, l, rulesOf("a:1", "b:1")...)
			err := locker.Run(t.Context(), l, locker.Rule{Key: "b:1"}, func(ctx context.Context) error {
				return locker.Run(locker.Detach(ctx), l, locker.Rule{Key: "a:1"}, nothing)
			})
			if err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var found conflicts
			c.do(t, lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report)))
			if got := found.keys(); fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("reported %q, want %q", got, c.want)
			}
		})
	}
}

func TestOrderCheckOfNestedHoldsAndStripes(t *testing.T) {
	t.Parallel()
	var found conflicts
	reentrant, err := locker.NewReentrant(lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report)))
	if err != nil {
		t.Fatal(err)
	}
	nested(t, reentrant, rulesOf("a:1", "b:1", "a:1")...)
	if got := found.keys(); got != nil {
		t.Errorf("a nested hold takes no lock, and was reported: %q", got)
	}
	striped, err := locker.NewStriped(lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report)), 2)
	if err != nil {
		t.Fatal(err)
	}
	// The order of the keys is always the same. That of their stripes is not.
	for i := range 9 {
		nested(t, striped, rulesOf(fmt.Sprint("key:", i), fmt.Sprint("key:", i+1))...)
	}
	if got := found.keys(); len(got) != 1 || !strings.HasPrefix(got[0], "stripe:") {
		t.Errorf("reported %q", got)
	}
}

func TestOrderCheckComparesTheLockersThatShareIt(t *testing.T) {
	t.Parallel()
	var together, apart conflicts
	memory, option := lockertest.NewMemory(), locker.WithOrderCheck(together.report)
	one := lockertest.NewLocker(t, memory, option)
	two := lockertest.NewLocker(t, memory, option, locker.WithPrefix("two:"))
	other := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(apart.report))
	take := func(outer, inner locker.Locker, keys ...string) {
		err := locker.Run(t.Context(), outer, locker.Rule{Key: keys[0]}, func(ctx context.Context) error {
			return locker.Run(ctx, inner, locker.Rule{Key: keys[1]}, nothing)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	take(one, two, "a:1", "a:1")
	take(two, one, "a:1", "a:1")
	// The same keys of another Locker are other locks.
	take(one, other, "a:1", "b:1")
	take(one, other, "b:1", "a:1")
	if got := together.keys(); len(got) != 1 || got[0] != "two:a:1>a:1 a:1>two:a:1" {
		t.Errorf("the shared check reported %q", got)
	}
	if got := apart.keys(); got != nil {
		t.Errorf("the other check reported %q", got)
	}
}

func TestOrderConflictShowsTheStackOfEachAcquire(t *testing.T) {
	t.Parallel()
	var found conflicts
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report))
	orderThenItem(t, l)
	itemThenOrder(t, l)
	if len(found.all) != 1 {
		t.Fatalf("reported %q", found.keys())
	}
	text := found.all[0]
	second, first, _ := strings.Cut(text, "item:1 (item) was acquired while order:1 (order) was held:\n\t")
	for _, part := range []struct{ text, want string }{
		{second, "order:1 (order) was acquired while item:1 (item) was held:\n\tgithub.com/latchkit/latchkit/locker_test.runInside"},
		{second, "locker_test.itemThenOrder"}, {first, "locker_test.orderThenItem"}, {first, "lock_order_test.go:"}, {text, "locker.RunAll"},
	} {
		if !strings.Contains(part.text, part.want) {
			t.Errorf("no %q in\n%s", part.want, text)
		}
	}
	if strings.Contains(first, "orderCheck") || strings.Contains(first, "itemThenOrder") {
		t.Errorf("calls that are not the user's:\n%s", text)
	}
}

func orderThenItem(t *testing.T, l locker.Locker) { nested(t, l, rulesOf("order:1", "item:1")...) }
func itemThenOrder(t *testing.T, l locker.Locker) { nested(t, l, rulesOf("item:1", "order:1")...) }

func TestOrderCheckNeedsBoundedMemory(t *testing.T) {
	t.Parallel()
	var found conflicts
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report))
	for i := range 150 { // two pairs of names each, and a conflict
		nested(t, l, rulesOf(fmt.Sprint("a", i, ":1"), fmt.Sprint("b", i, ":1"))...)
		nested(t, l, rulesOf(fmt.Sprint("b", i, ":1"), fmt.Sprint("a", i, ":1"))...)
	}
	if n := len(found.keys()); n != 100 {
		t.Errorf("%d reports", n)
	}
	var later conflicts
	l = lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(later.report))
	nested(t, l, rulesOf("a:1", "a:2")...)
	for i := range 2048 {
		nested(t, l, rulesOf("c:1", fmt.Sprint("c:x", i))...)
	}
	nested(t, l, rulesOf("a:2", "a:1")...) // the first pair is forgotten
	nested(t, l, rulesOf("a:1", "a:2")...)
	if got := later.keys(); len(got) != 1 || got[0] != "a:1>a:2 a:2>a:1" {
		t.Errorf("reported %q", got)
	}
}

func TestOrderCheckSurvivesAReportThatPanics(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(func(string) { panic("a bug of the report") }))
	orderThenItem(t, l)
	itemThenOrder(t, l)
	itemThenOrder(t, lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(nil)))
}

func TestOrderCheckOfGoroutines(t *testing.T) {
	t.Parallel()
	var found conflicts
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithOrderCheck(found.report))
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for n := range 50 {
				keys := []string{fmt.Sprint("a:", i, n), fmt.Sprint("b:", i, n)}
				if n == 25 {
					keys[0], keys[1] = keys[1], keys[0]
				}
				if err := runInside(t.Context(), l, rulesOf(keys...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if got := found.keys(); len(got) != 1 {
		t.Errorf("reported %q", got)
	}
}
