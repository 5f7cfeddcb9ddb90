package locker

import (
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/latchkit/latchkit/internal/store"
)

// maxStripes is the largest number of stripes. More stripes would not reduce conflicts any further.
const maxStripes = 1 << 20

// NewStriped returns a Locker over l for any number of keys, with n locks, the stripes. Each key
// always has the same stripe. So the number of keys on the server is limited, but two keys with the
// same stripe exclude each other. Use it where each lock leaves something behind, such as a row
// for each claim in a database.
//
// All processes must give the same n: processes with different n do not exclude each other. The
// stripe of a key is the 64-bit FNV-1a hash of the key, modulo n. The key of the stripe on the
// server is "stripe:I/N" with the Locker's prefix. A Lease and an Error name the key that the
// caller gave, but Observers get the stripe as the Key of the Rule.
//
// [RunAll] takes a stripe once, even if several of its keys are given. A nested Acquire of another
// key with the same stripe uses the lease in its context; one of the same key is refused with
// ErrSelfDeadlock. Nested Acquires of several keys can deadlock even if all callers take the keys
// in the same order, because the stripes have another order: use RunAll for them.
//
// Rule.OnceFor and Rule.KeepFor are refused with ErrUnsupported, because a stripe would apply them
// to other keys too. All other methods belong to the Engine inside. Close it when the Locker is not
// used any more.
func NewStriped(l Locker, n int) (Locker, error) {
	switch {
	case isNil(l):
		return nil, errors.New("latchkit: NewStriped: the Locker is nil; make one with New, and check its error")
	case n < 1 || n > maxStripes:
		return nil, fmt.Errorf("latchkit: NewStriped: %d stripes; give 1 to %d, in practice several times the number of callers that lock at once", n, maxStripes)
	}
	p := &partLocker{inner: l, stripes: uint64(n)}
	p.families = p
	return p, nil
}

// lockOf returns the rule for the lock that guards rule's key: the rule itself, or the rule of the
// key's stripe.
func (p *partLocker) lockOf(rule Rule) (Rule, error) {
	switch {
	case p.stripes == 0:
		return rule, nil
	case rule.OnceFor != 0:
		return rule, fmt.Errorf("%w: OnceFor on a striped Locker would mark the work of other keys as done; use the Locker that was given to NewStriped", ErrUnsupported)
	case rule.KeepFor != 0:
		return rule, fmt.Errorf("%w: KeepFor on a striped Locker would keep other keys locked; use the Locker that was given to NewStriped", ErrUnsupported)
	}
	if err := store.CheckKey(rule.Key); err != nil {
		return rule, err
	}
	rule.Name = rule.name() // the name of the key instead of the stripe's
	rule.Key = fmt.Sprintf("stripe:%d/%d", p.stripeNumber(rule.Key), p.stripes)
	return rule, nil
}

// stripeNumber returns the number of the stripe to which key belongs.
func (p *partLocker) stripeNumber(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum64() % p.stripes
}

// withCallerKey returns err, an error of the Locker inside, with key, the key that the caller gave,
// if the error names the key of a stripe.
func (p *partLocker) withCallerKey(err error, key string) error {
	inner, ok := errors.AsType[*Error](err)
	if !ok || p.stripes == 0 {
		return err
	}
	e := *inner
	e.Key = key
	if errors.Is(err, ErrBusy) {
		e.Err = fmt.Errorf("%w (stripe %d of %d, which other keys share)", e.Err, p.stripeNumber(key), p.stripes)
	}
	return &e
}
