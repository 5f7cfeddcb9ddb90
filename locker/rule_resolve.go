package locker

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// longestTime is the longest time that a Rule may have, so that sums of times and clocks do not
// overflow, here and on the server.
const longestTime = 10 * 365 * 24 * time.Hour

// resolve returns r with the Locker's defaults filled in. It refuses values that are out of range.
// When it fails, nothing has been sent.
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
	if err := c.resolveUnits(&r); err != nil {
		return r, err
	}
	for _, t := range []struct {
		field string
		value time.Duration
	}{{"TTL", r.TTL}, {"KeepFor", r.KeepFor}, {"EndAfter", r.EndAfter}, {"OnceFor", r.OnceFor}} {
		if t.value != 0 && (t.value < time.Millisecond || t.value > longestTime) {
			return r, fmt.Errorf("%w: %s is %v; give 1ms to 10 years, or 0 to leave it out", ErrInvalidRule, t.field, t.value)
		}
	}
	if r.EndAfter != 0 && r.EndAfter < r.KeepFor {
		return r, fmt.Errorf("%w: EndAfter %v is shorter than KeepFor %v; make EndAfter at least as long", ErrInvalidRule, r.EndAfter, r.KeepFor)
	}
	if r.TTL == 0 {
		r.TTL = c.ttl
	}
	if most := max(r.TTL, r.KeepFor); c.maxTTL != 0 && most > c.maxTTL {
		return r, fmt.Errorf("%w: TTL or KeepFor is %v, and this Locker's WithMaxTTL allows %v; shorten the time or raise WithMaxTTL", ErrInvalidRule, most, c.maxTTL)
	}
	return r, nil
}

// mostUnits is the largest number of units that a Rule may have, so that sums of units are exact on
// the server.
const mostUnits = math.MaxInt32

// resolveUnits fills in the Limit and the Weight of r, the rule of a semaphore.
func (c *config) resolveUnits(r *Rule) error {
	switch {
	case r.Limit == 0 && r.Weight == 0 && c.limit == 0:
		return nil // the rule is for a lock, not for a semaphore
	case r.Limit < 0 || r.Limit > mostUnits:
		return fmt.Errorf("%w: Limit is %d; give how many units may be held at once, 1 to %d, or 0 for the Locker's own limit", ErrInvalidRule, r.Limit, mostUnits)
	case r.Weight < 0:
		return fmt.Errorf("%w: Weight is %d; give how many units the lease takes, or 0 for one", ErrInvalidRule, r.Weight)
	case c.noUnits != "":
		return fmt.Errorf("%w: Limit and Weight %s", ErrUnsupported, c.noUnits)
	}
	r.Limit, r.Weight = cmp.Or(r.Limit, c.limit), cmp.Or(r.Weight, 1)
	switch {
	case r.Limit == 0:
		return fmt.Errorf("%w: Weight is %d, but neither the Rule nor the Locker has a Limit; set Limit to how many units may be held at once", ErrInvalidRule, r.Weight)
	case r.Weight > r.Limit:
		return fmt.Errorf("%w: Weight %d is more than the Limit of %d, so it would never be granted; lower the Weight or raise the Limit", ErrInvalidRule, r.Weight, r.Limit)
	case r.Mode == Shared:
		return fmt.Errorf("%w: Mode Shared with a Limit; leave Mode out: the Limit says how many may hold the key together", ErrInvalidRule)
	}
	return nil
}

// noUnits returns the reason why a Store with the capabilities can does not allow rules with a
// Limit, or "" if it does.
func noUnits(can store.Capabilities) string {
	switch {
	case can.Permits:
		return ""
	case can.Nodes != nil:
		return "cannot be kept by a quorum: with 3 nodes and a Limit of 2, three holders could each have two of the three votes; use NewSemaphore on one server, or lock one of n keys"
	}
	return "need a Locker of NewSemaphore"
}

// leaseTTL returns the TTL that an acquire asks for. This TTL is at least KeepFor, which must
// outlast a crash of the holder, and at most EndAfter.
func (r Rule) leaseTTL() time.Duration {
	ttl := max(r.TTL, r.KeepFor)
	if r.EndAfter != 0 {
		ttl = min(ttl, r.EndAfter)
	}
	return ttl
}

// hasOwnTerms reports whether the rule sets something that applies only to one caller's lease, such
// as Metadata. Several callers cannot share such a lease.
func (r Rule) hasOwnTerms() bool {
	return r.KeepFor != 0 || r.EndAfter != 0 || r.OnceFor != 0 || r.Metadata != ""
}
