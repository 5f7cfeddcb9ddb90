package recipes_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
)

func TestANumberHasOneOwner(t *testing.T) {
	t.Parallel()
	const n = 3
	var owners, uses [n]atomic.Int32
	together(newPods(t), 10, func(p pod) {
		permits, err := locker.NewSemaphore(p.redis, n, locker.WithPrefix(t.Name()+":permits:"))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = permits.Close(context.Background()) }()
		err = recipes.Numbered(t.Context(), permits, p.l, "licence", n, func(_ context.Context, number int) error {
			if owners[number].Add(1) > 1 {
				t.Errorf("%d has two owners", number)
			}
			defer owners[number].Add(-1)
			uses[number].Add(1)
			<-time.After(10 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	total := 0
	for number := range uses {
		total += int(uses[number].Load())
	}
	if total != 20 {
		t.Errorf("%d calls of 20", total)
	}
}
