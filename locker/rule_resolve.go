package locker

import (
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// longestTime keeps sums of times and clocks from overflowing, here and on the server.
const longestTime = 10 * 365 * 24 * time.Hour

// resolve fills in the Locker's defaults and refuses values that are out of range. When it fails,
// nothing has been sent.
func (c *config) resolve(r Rule) (Rule, error) {
	if err := store.CheckKey(c.prefix + r.Key); err != nil {
		return r, err
	}
	r.Name = r.name()
	if r.Mode > Shared {
		return r, fmt.Errorf("%w: Mode %d is neither Exclusive nor Shared", ErrInvalidRule, r.Mode)
	}
	if r.Wait < 0 && r.Wait != NoWait {
		return r, fmt.Errorf("%w: Wait is %v; use NoWait for one attempt, or 0 to wait until ctx is done", ErrInvalidRule, r.Wait)
	}
	for _, t := range []struct {
		field string
		value time.Duration
	}{{"TTL", r.TTL}, {"AtLeast", r.AtLeast}, {"AtMost", r.AtMost}, {"Once", r.Once}} {
		if t.value != 0 && (t.value < time.Millisecond || t.value > longestTime) {
			return r, fmt.Errorf("%w: %s is %v; give 1ms to 10 years, or 0 to leave it out", ErrInvalidRule, t.field, t.value)
		}
	}
	if r.AtMost != 0 && r.AtMost < r.AtLeast {
		return r, fmt.Errorf("%w: AtMost %v is shorter than AtLeast %v; make AtMost at least as long", ErrInvalidRule, r.AtMost, r.AtLeast)
	}
	if r.TTL == 0 {
		r.TTL = c.ttl
	}
	if most := max(r.TTL, r.AtLeast); c.maxTTL != 0 && most > c.maxTTL {
		return r, fmt.Errorf("%w: TTL or AtLeast is %v, and this Locker's WithMaxTTL allows %v; shorten the time or raise WithMaxTTL", ErrInvalidRule, most, c.maxTTL)
	}
	return r, nil
}

// lease is the TTL with which the server is asked to keep the lock: at least AtLeast, which must
// survive a crash of the holder, and at most AtMost.
func (r Rule) lease() time.Duration {
	ttl := max(r.TTL, r.AtLeast)
	if r.AtMost != 0 {
		ttl = min(ttl, r.AtMost)
	}
	return ttl
}

// hasItsOwn reports whether the rule has terms for one caller's lease, which cannot be shared.
func (r Rule) hasItsOwn() bool {
	return r.AtLeast != 0 || r.AtMost != 0 || r.Once != 0 || r.Metadata != ""
}
