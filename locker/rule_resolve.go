package locker

import (
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// longestTime keeps sums of times and clocks from overflowing, here and on the server.
const longestTime = 10 * 365 * 24 * time.Hour

// resolve fills in the Locker's defaults and refuses what cannot be meant. Nothing has been sent when it fails.
func (c *config) resolve(r Rule) (Rule, error) {
	if err := store.CheckKey(c.prefix + r.Key); err != nil {
		return r, err
	}
	r.Name = r.name()
	if r.Mode > Shared {
		return r, fmt.Errorf("%w: Mode %d is neither Exclusive nor Shared", ErrInvalidRule, r.Mode)
	}
	if r.Wait < 0 && r.Wait != NoWait {
		return r, fmt.Errorf("%w: Wait is %v; use NoWait for one attempt, 0 to wait until ctx is done", ErrInvalidRule, r.Wait)
	}
	for _, t := range []struct {
		field string
		value time.Duration
	}{{"TTL", r.TTL}, {"AtLeast", r.AtLeast}, {"AtMost", r.AtMost}, {"Once", r.Once}} {
		if t.value != 0 && (t.value < time.Millisecond || t.value > longestTime) {
			return r, fmt.Errorf("%w: %s is %v; from 1ms to 10 years are allowed, 0 leaves it out", ErrInvalidRule, t.field, t.value)
		}
	}
	if r.AtMost != 0 && r.AtMost < r.AtLeast {
		return r, fmt.Errorf("%w: AtMost %v is shorter than AtLeast %v; a lease cannot end before it may", ErrInvalidRule, r.AtMost, r.AtLeast)
	}
	if r.TTL == 0 {
		r.TTL = c.ttl
	}
	if most := max(r.TTL, r.AtLeast); c.maxTTL != 0 && most > c.maxTTL {
		return r, fmt.Errorf("%w: TTL or AtLeast is %v, this Locker's WithMaxTTL allows %v", ErrInvalidRule, most, c.maxTTL)
	}
	return r, nil
}

// lease is how long the server is asked to keep the lock at a time: long enough for AtLeast to survive a crash of
// the holder, and never longer than AtMost.
func (r Rule) lease() time.Duration {
	ttl := max(r.TTL, r.AtLeast)
	if r.AtMost != 0 {
		ttl = min(ttl, r.AtMost)
	}
	return ttl
}

// hasItsOwn says whether the rule speaks of one caller's lease, which cannot be shared.
func (r Rule) hasItsOwn() bool {
	return r.AtLeast != 0 || r.AtMost != 0 || r.Once != 0 || r.Metadata != ""
}
