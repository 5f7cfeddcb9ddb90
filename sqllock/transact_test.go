package sqllock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPauseThatTheLeaseDoesNotOutlastIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if sleepWithin(t.Context(), time.Second, time.Second-1) || time.Since(began) != 0 {
			t.Errorf("it slept for %v", time.Since(began))
		}
		if !sleepWithin(t.Context(), time.Second, time.Second) || time.Since(began) != time.Second {
			t.Errorf("it slept for %v, want 1s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if sleepWithin(ctx, time.Hour, 2*time.Hour) || time.Since(began) != 2*time.Second {
			t.Errorf("it slept on for %v", time.Since(began))
		}
	})
}
