package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if !For(ctx, time.Second) || time.Since(began) != time.Second {
			t.Errorf("a pause of 1s took %v", time.Since(began))
		}
		if For(ctx, time.Hour) || time.Since(began) != time.Minute {
			t.Errorf("the end of ctx ended a pause after %v", time.Since(began))
		}
	})
}
