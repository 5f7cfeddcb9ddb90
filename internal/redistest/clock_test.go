package redistest

import (
	"testing"
	"time"
)

// The server takes the time from the machine at least ten times a second. Valkey 9 answers TIME
// with the time that it has taken last.
func TestTheClockOfAServerCanBeSet(t *testing.T) {
	t.Parallel()
	s, clock := StartWithClock(t)
	c := s.Client(t)
	soon := func(is func() bool) bool {
		for start := time.Now(); time.Since(start) < 5*time.Second; {
			if is() {
				return true
			}
		}
		return false
	}
	if err := c.Set(t.Context(), "a", "1", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, shift := range []time.Duration{0, 50 * time.Second, -time.Hour, 0} {
		clock.Set(shift)
		var off time.Duration
		if !soon(func() bool {
			now, err := c.Time(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			off = time.Until(now)
			return (off - shift).Abs() < 5*time.Second
		}) {
			t.Errorf("with a shift of %v the clock differs by %v", shift, off)
		}
	}
	if c.Exists(t.Context(), "a").Val() != 1 {
		t.Error("the key has run out early")
	}
	clock.Set(2 * time.Minute)
	if !soon(func() bool { return c.Exists(t.Context(), "a").Val() == 0 }) {
		t.Error("the key outlives its time by the server's clock")
	}
}
