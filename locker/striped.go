package locker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker/store"
)

// maxStripes is the largest number of stripes. More stripes would not reduce conflicts any further.
const maxStripes = 1 << 20

// NewStriped returns a Locker over l for any number of keys. It has n locks, the stripes. Each key
// always has the same stripe, and each stripe has about the same number of keys. So the number of
// keys on the server is limited. But two keys with the same stripe exclude each other, although
// this is not necessary. Use NewStriped where each lock leaves something behind. Examples are the
// fence counter of a quorum, and a row for each claim in a database. Otherwise a lock for each key
// is better.
//
// All processes must give the same n. With another n, a key has another stripe. So processes with
// different n do not exclude each other. Change n only while no process holds a lock. The stripe of
// a key is the 64-bit FNV-1a hash of the key, modulo n. The key of the stripe on the server is
// "stripe:I/N" with the Locker's prefix. A Lease and an Error name the key that the caller gave.
// But Observers get the stripe as the Key of the Rule.
//
// [RunAll] takes a stripe once, even if several of its keys are given. A nested Acquire of another
// key with the same stripe uses the lease in its context. Otherwise this Acquire would wait for its
// own caller. A nested Acquire of the same key waits, as with every Locker. Nested Acquires of
// several keys can deadlock even if all callers take the keys in the same order, because the
// stripes have another order: use RunAll for them.
//
// Rule.OnceFor and Rule.KeepFor are refused with ErrUnsupported. These two fields are about one
// key, and a stripe would apply them to other keys too. Inspect, Revoke and all other methods
// belong to the Engine inside. Close this Engine when the Locker is not used any more.
func NewStriped(l Locker, n int) (Locker, error) {
	switch {
	case typednil.Is(l):
		return nil, errors.New("latchkit: NewStriped: the Locker is nil; make one with New, and check its error")
	case n < 1 || n > maxStripes:
		return nil, fmt.Errorf("latchkit: NewStriped: %d stripes; give 1 to %d, in practice several times the number of callers that lock at once", n, maxStripes)
	}
	return &striped{families: reentrant{inner: l}, n: uint64(n)}, nil
}

// striped is a Locker. Each of its leases is a part of the lease of a stripe.
type striped struct {
	families reentrant // the inner Locker of families is the Locker of the stripes
	n        uint64
}

var _ multiLocker = (*striped)(nil)

func (s *striped) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	stripe, err := s.stripe(rule)
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	if part, err := s.enter(ctx, rule, stripe.Key); part != nil || err != nil {
		return part, err
	}
	root, err := s.families.inner.Acquire(ctx, stripe)
	if err != nil {
		return nil, s.withCallerKey(err, rule.Key)
	}
	return s.families.newFamily(root, rule.Key), nil
}

// acquireAll makes a nested Lease, which is a part of the stripe's lease, for each key whose
// stripe is held in ctx. For the other keys, acquireAll takes each stripe once.
func (s *striped) acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error) {
	stripes := make([]Rule, len(rules))
	for i, rule := range rules {
		var err error
		if stripes[i], err = s.stripe(rule); err != nil {
			return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
		}
	}
	return gather(ctx, func(g *gathering) error {
		leases := make([]*Lease, len(rules))
		var others []int // the indexes in rules of the keys whose stripes are not in ctx
		for i, rule := range rules {
			part, err := s.enter(ctx, rule, stripes[i].Key)
			switch {
			case err != nil:
				return err
			case part == nil:
				others = append(others, i)
			default:
				leases[i] = part
				g.add(part)
			}
		}
		if err := s.takeStripes(g, rules, stripes, others, leases); err != nil {
			return err
		}
		g.leases = leases
		return nil
	})
}

// takeStripes takes the stripes of the rules at the indexes in places, and puts their leases into
// leases.
func (s *striped) takeStripes(g *gathering, rules, stripes []Rule, places []int, leases []*Lease) error {
	if len(places) == 0 {
		return nil
	}
	wanted, first := make([]Rule, len(places)), make(map[string]string)
	for n, i := range places {
		wanted[n] = stripes[i]
		if _, ok := first[stripes[i].Key]; !ok {
			first[stripes[i].Key] = rules[i].Key
		}
	}
	roots, err := acquireAll(g.ctx, s.families.inner, mergeByKey(wanted))
	if err != nil {
		if e, ok := errtype.As[*Error](err); ok {
			return s.withCallerKey(err, first[e.Key])
		}
		return err
	}
	taken := make(map[string]*Lease)
	for _, root := range roots {
		key := first[root.rule.Key]
		taken[key] = s.families.newFamily(root, key)
		g.leases = append(g.leases, taken[key]) // if taking a part fails, all parts are released
	}
	for _, i := range places {
		of := taken[first[stripes[i].Key]]
		if leases[i] = of; of.rule.Key == rules[i].Key {
			continue
		}
		if leases[i], err = of.nest(g.ctx, rules[i]); err != nil {
			return err
		}
		g.leases = append(g.leases, leases[i])
	}
	return nil
}

// stripe returns the rule for the stripe of rule's key.
func (s *striped) stripe(rule Rule) (Rule, error) {
	switch {
	case rule.OnceFor != 0:
		return rule, fmt.Errorf("%w: OnceFor on a striped Locker would mark the work of other keys as done; use the Locker that was given to NewStriped", ErrUnsupported)
	case rule.KeepFor != 0:
		return rule, fmt.Errorf("%w: KeepFor on a striped Locker would keep other keys locked; use the Locker that was given to NewStriped", ErrUnsupported)
	}
	if err := store.CheckKey(rule.Key); err != nil {
		return rule, err
	}
	rule.Name = rule.name() // the name of the key instead of the stripe's
	rule.Key = fmt.Sprintf("stripe:%d/%d", s.stripeNumber(rule.Key), s.n)
	return rule, nil
}

// stripeNumber returns the number of the stripe to which key belongs.
func (s *striped) stripeNumber(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum64() % s.n
}

// enter returns a part of the lease that another key of the same stripe has in ctx. If there is no
// such lease, both results are nil.
func (s *striped) enter(ctx context.Context, rule Rule, stripe string) (*Lease, error) {
	var beside *Lease
	for h := heldIn(ctx); h != nil; h = h.outer {
		l := h.lease
		switch {
		case l == nil || l.part == nil || l.part.family.locker != &s.families || errors.Is(l.state.contextCause(), ErrReleased):
		case l.rule.Key == rule.Key:
			return nil, nil
		case beside == nil && l.part.family.root.rule.Key == stripe:
			beside = l
		}
	}
	if beside == nil {
		return nil, nil
	}
	nested, err := beside.nest(ctx, rule)
	if err == errNotHeld {
		return nil, nil
	}
	return nested, err
}

// withCallerKey returns err, an error of the Locker inside, with key, the key that the caller gave.
func (s *striped) withCallerKey(err error, key string) error {
	inner, ok := errtype.As[*Error](err)
	if !ok {
		return err
	}
	e := *inner
	e.Key = key
	if errors.Is(err, ErrBusy) {
		e.Err = fmt.Errorf("%w (stripe %d of %d, which other keys share)", e.Err, s.stripeNumber(key), s.n)
	}
	return &e
}

// Check calls the function Check for the Locker inside and the rule of the stripe.
func (s *striped) Check(rule Rule) error {
	if rule.Key == "" {
		rule.Key = "key" // any key, because the real key is known only with a request
	}
	stripe, err := s.stripe(rule)
	if err != nil {
		return err
	}
	return Check(s.families.inner, stripe)
}
