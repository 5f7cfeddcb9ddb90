package idempotency_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker/idempotency"
)

func TestMemoryDeletesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := idempotency.NewMemory()
		for i := range 1000 {
			if _, err := m.Swap(t.Context(), fmt.Sprint(i), idempotency.Record{}, done, time.Minute); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) //nolint:forbidigo // a bubble: this is how time passes
		}
		if n := idempotency.Len(m); n > 130 { // 60 records are valid; the others are removed when the number of records has doubled
			t.Errorf("%d records are kept", n)
		}
		for key, want := range map[string]idempotency.Record{"939": {}, "941": done} {
			if got, err := m.Load(t.Context(), key); err != nil || got.Run != want.Run {
				t.Errorf("%s: %+v, %v", key, got, err)
			}
		}
	})
}
