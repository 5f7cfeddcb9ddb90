package redistest

import (
	"testing"
	"time"
)

func TestTheClockOfAServerCanBeSet(t *testing.T) {
	t.Parallel()
	s, clock := StartWithClock(t)
	c := s.Client(t)
	if err := c.Set(t.Context(), "a", "1", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, shift := range []time.Duration{0, 50 * time.Second, -time.Hour, 0} {
		clock.Set(shift)
		now, err := c.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(now) - shift; off.Abs() > 5*time.Second {
			t.Errorf("with a shift of %v the clock differs by %v", shift, off+shift)
		}
	}
	if c.Exists(t.Context(), "a").Val() != 1 {
		t.Error("the key has run out early")
	}
	clock.Set(2 * time.Minute)
	if c.Exists(t.Context(), "a").Val() != 0 {
		t.Error("the key outlives its time by the server's clock")
	}
}
