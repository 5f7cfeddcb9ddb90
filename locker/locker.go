package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// A Locker turns a [Rule] into a [Lease]. The constructors of this package return Lockers. A Locker
// is safe for concurrent use.
type Locker interface {
	// Acquire takes the lock that rule describes, and waits as rule.Wait says. When ctx ends, it
	// returns within 250 ms, also while a call to the server hangs; [New] names the exception. The
	// end of ctx does not end a lease that was granted. When ctx has a lease of the same key from
	// this Locker, the error is [ErrSelfDeadlock], except on a Locker of [NewReentrant], and except
	// for units of a semaphore that are not the caller's own. The error is an [*Error].
	Acquire(ctx context.Context, rule Rule) (*Lease, error)
}

// NoWait is a value of [Rule.Wait]: if the key is held, the error is [ErrBusy] at once. A question
// that the server does not answer is repeated for at most 1 s, as with every Wait.
const NoWait time.Duration = -1

// DefaultTTL is a lease's time to live when neither the Rule nor [WithTTL] sets another.
const DefaultTTL = 30 * time.Second

// A Rule says what to guard, and how. A Rule is a value that you can store, compare and put into a
// table. Times are rounded up to whole milliseconds; shorter ones are refused. For a job that
// several processes start, see "A leader, a cron tick, a schedule" in docs/choosing.md.
type Rule struct {
	_ struct{} // keyed literals only

	// Key names what is locked. With the Locker's prefix it has 1 to 512 bytes. Key must not
	// start with "latchkit:".
	Key string
	// Name identifies the rule in traces and metrics, so it must have few values. Default: the Key
	// up to its first ':', or "lock" when the Key has none.
	Name string
	// Mode is Exclusive by default.
	Mode Mode
	// TTL is how long the server keeps the lock after the last renewal, and so how long others wait
	// after a crash of its holder. The lease is renewed while it is held. Default: the Locker's
	// TTL, which is 30 s without [WithTTL].
	TTL time.Duration
	// Wait is the longest time to wait for a holder; NoWait: do not wait. Without a Wait, a call
	// waits as long as its caller's context allows; an adapter that answers a client limits the
	// wait to 5 s; a worker does not wait but puts the task off. If the server gives no answer at
	// all, Acquire repeats its question for at most 1 s, and then fails with ErrUnavailable. It
	// waits for the answer to its last question for at most another second, while a Cluster fails
	// over for at most two.
	Wait time.Duration
	// KeepFor keeps the key locked for this long after the grant, even if the lease is released
	// sooner, for example against duplicates of a job that several schedulers start at slightly
	// different times. Not with Mode Shared. Default: 0, the release frees the key at once.
	KeepFor time.Duration
	// EndAfter ends the lease this long after the grant, with ErrExpired, even if its holder is
	// healthy. With EndAfter = TTL the lease is never renewed; EndAfter < TTL shortens the lease.
	// Default: 0, no limit.
	EndAfter time.Duration
	// OnceFor is for work that must be done only once. When [Run]'s function or [Lease.Complete]
	// succeeds, the server marks the key as done for this long, and acquires by Rules with OnceFor
	// fail with ErrDone. Only an exclusive lock keeps two runs apart: under Shared, or with a Limit
	// above 1, several holders can work before the first mark. Default: 0, no mark.
	OnceFor time.Duration
	// Limit is how many units of the key may be held together, on a Locker of [NewSemaphore].
	// Processes may set different Limits: all units together then exceed neither the new lease's
	// own Limit nor that of any held lease. Default: the Locker's n. At most 2³¹-1.
	Limit int
	// Weight is how many units the lease takes, at most Limit. Default: 1.
	Weight int
	// Metadata is written into the lease instead of the text of [WithMetadata], cut to 256 bytes.
	// Other callers see it ([Engine.Inspect], [Error.HolderMetadata]), so put no secret into it. A
	// lease with Metadata is never shared with other callers of this process. Default: the text of
	// WithMetadata.
	Metadata string
}

// name returns the name of the rule for traces and metrics.
func (r Rule) name() string {
	prefix, _, found := strings.Cut(r.Key, ":")
	if !found {
		prefix = ""
	}
	return cmp.Or(r.Name, prefix, "lock")
}

// Mode says with whom a lease may be shared.
type Mode = store.Mode

const (
	// Exclusive admits one holder. Exclusive is the zero value.
	Exclusive = store.Exclusive
	// Shared admits many Shared holders together, and no Exclusive holder. Lockers without readers
	// return [ErrUnsupported].
	Shared = store.Shared
)

// Check returns an error if l can never grant rule, for example because a time is out of range, or
// l does not support rule.Mode. Check sends nothing to the server, so adapters call it when a
// program starts; rule may lack a Key. Check asks Lockers that have a method Check(Rule) error:
// those of this package, and wrappers that forward the call. For other Lockers, Check returns nil.
//
// Errors: ErrInvalidRule, ErrUnsupported, and ErrInvalidKey if rule has a Key.
func Check(l Locker, rule Rule) error {
	if isNil(l) {
		return errNil(OpAcquire, rule.Key, "Locker", "one of New, and check its error")
	}
	if c, ok := l.(interface{ Check(rule Rule) error }); ok {
		return c.Check(rule)
	}
	return nil
}

// Check returns an error if this Engine can never grant rule: see the function [Check].
func (e *Engine) Check(rule Rule) error {
	rule.Key = cmp.Or(rule.Key, "key")
	rule, err := e.cfg.resolve(rule)
	if err != nil {
		return err
	}
	if rule.Mode == Shared && !e.can.Readers {
		return fmt.Errorf("%w: Mode Shared needs a Locker with readers, such as one of NewReadWrite", ErrUnsupported)
	}
	if e.can.Validate != nil {
		return e.can.Validate(store.Claim{Key: e.cfg.prefix + rule.Key, Mode: rule.Mode, Limit: rule.Limit, Weight: rule.Weight, OnceFor: rule.OnceFor})
	}
	return nil
}

// Run takes the lock that rule describes, calls fn, and releases the lock, also when fn panics. The
// context of fn ends with ctx or with the lease, whichever ends first, and context.Cause says
// which. [FromContext] finds the lease in it. The end of ctx does not prevent the release, which
// takes at most 2 s while the server hangs; [New] says for which clients it may take longer.
//
// When the lock was not taken, the error is the error of Acquire, and fn was not called. When the
// lease ended while fn ran, the error is ErrLost, ErrRevoked or ErrExpired, with fn's error if
// there is one. Otherwise Run returns fn's error unchanged. Without Rule.OnceFor, a release without
// an answer is no error, because it is repeated in the background. With Rule.OnceFor it is
// ErrUnavailable, because then it is unknown whether the work is marked as done.
func Run(ctx context.Context, l Locker, rule Rule, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return errNil(OpAcquire, rule.Key, "function", "the work to do under the lock")
	case isNil(l):
		return errNil(OpAcquire, rule.Key, "Locker", "one of New, and check its error")
	}
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		return err
	}
	runs := &lease.engine.runs
	if !runs.Enter() { // Close has begun since the grant
		lease.keepNothing()
		_ = lease.Release(ctx)
		return errClosed(rule.Key)
	}
	defer runs.Leave()
	returned := false
	defer func() {
		if !returned { // fn panicked or called runtime.Goexit, which continues after the release
			_ = lease.Release(ctx)
		}
	}()
	err = fn(lease.within(lease.base))
	returned = true
	return settle(ctx, lease, err)
}

// settle releases the lease after fn returned err, and returns the error of Run.
func settle(ctx context.Context, lease *Lease, err error) error {
	if err != nil {
		if lost := lease.Release(ctx); endedEarly(lost) {
			return errors.Join(err, lost)
		}
		return err
	}
	released := lease.Complete(ctx)
	if endedEarly(released) || lease.rule.OnceFor > 0 {
		return released
	}
	return nil
}

// endedEarly reports whether err means that a lease ended before its release.
func endedEarly(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrExpired)
}

// longestTime is the longest time that a Rule may have, so that sums of times and clocks do not
// overflow, here and on the server.
const longestTime = 10 * 365 * 24 * time.Hour

// resolve returns r with the Locker's defaults filled in, and refuses values that are out of range.
func (c *config) resolve(r Rule) (Rule, error) {
	if err := store.CheckKey(c.prefix + r.Key); err != nil {
		return r, err
	}
	r.Name = r.name()
	if r.Mode > Shared {
		return r, fmt.Errorf("%w: Mode %d is neither Exclusive nor Shared", ErrInvalidRule, r.Mode)
	}
	if r.Wait < 0 && r.Wait != NoWait {
		return r, fmt.Errorf("%w: Wait is %v; use NoWait to wait for no holder, or 0 to wait until ctx is done", ErrInvalidRule, r.Wait)
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
	if r.KeepFor != 0 && r.Mode == Shared {
		return r, fmt.Errorf("%w: Mode Shared with KeepFor; leave KeepFor out, or use Exclusive, because no key is kept after the release of a reader", ErrInvalidRule)
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
	if life := r.leaseTTL(); c.usable(life) <= 0 {
		return r, fmt.Errorf("%w: the lease would last %v, of which %v are kept free for clocks that differ, so it could never be used; raise TTL, EndAfter or the Locker's WithTTL", ErrInvalidRule, life, c.drift(life))
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
	case !c.permits:
		return fmt.Errorf("%w: Limit and Weight need a Locker of NewSemaphore, on one server: with 3 nodes and a Limit of 2, "+
			"three holders could each have two of the three votes; with a quorum, lock one of n keys", ErrUnsupported)
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
