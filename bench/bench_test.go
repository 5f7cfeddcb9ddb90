package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestContestantsLock(t *testing.T) {
	server := redistest.Start(t)
	witness := server.Client(t)
	field, err := contestants(func() *redis.Client { return server.Client(t) })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range field {
		if err := c.once(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := witness.Exists(t.Context(), c.key).Val(); n != 0 {
			t.Errorf("%s leaves %s locked", c.name, c.key)
		}
		if err := witness.Set(t.Context(), c.key, "somebody else", 0).Err(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := c.once(ctx); err == nil {
			t.Errorf("%s takes %s from somebody else", c.name, c.key)
		}
		cancel()
	}
}

func TestCompete(t *testing.T) {
	t.Run("all take turns", func(t *testing.T) {
		var order []string
		field := []contestant{fake("a", &order), fake("b", &order), fake("c", &order)}
		results, err := compete(t.Context(), field, 2, time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Compact(order), " "); got != "a b c a b c a b c" {
			t.Errorf("order %s; want one round that does not count, and two that do", got)
		}
		for _, r := range results {
			if len(r.perOp) != 2 || len(r.allocs) != 2 {
				t.Errorf("%s has %d samples, want 2", r.name, len(r.perOp))
			}
		}
	})

	t.Run("who fails is named", func(t *testing.T) {
		broken := contestant{name: "broken", once: func(context.Context) error { return errors.ErrUnsupported }}
		_, err := compete(t.Context(), []contestant{broken}, 1, time.Nanosecond)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "broken") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestTable(t *testing.T) {
	got := table([]result{
		{contestant{name: "floor"}, []time.Duration{100 * time.Microsecond, 200 * time.Microsecond, 400 * time.Microsecond}, []float64{1, 2, 3}},
		{contestant{name: "lock", fence: true}, []time.Duration{200 * time.Microsecond, 300 * time.Microsecond, 400 * time.Microsecond}, []float64{5, 4, 6}},
	})
	for _, want := range []string{
		"| floor | 200.0 [100.0–400.0] | 1.00 [1.00–1.00] | 2 | no |\n",
		"| lock | 300.0 [200.0–400.0] | 1.50 [1.00–2.00] | 5 | yes |\n", // by turn: 2, 1.5 and 1 × the floor of the same round
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}

func fake(name string, order *[]string) contestant {
	return contestant{name: name, once: func(context.Context) error {
		*order = append(*order, name)
		return nil
	}}
}
