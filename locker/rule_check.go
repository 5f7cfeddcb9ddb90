package locker

import (
	"cmp"
	"fmt"

	"github.com/latchkit/latchkit/locker/store"
)

// Check returns an error if l can never grant rule. For example, a time of rule is out of range, or
// l does not support rule.Mode or rule.Once. Check sends nothing to the server, so adapters call it
// when a program starts. rule may lack a Key, because the key is known only with a request.
//
// Check asks Lockers that have a method Check(Rule) error. These are the Lockers of this package,
// and wrappers that forward the call. For other Lockers, Check returns nil.
//
// Errors: ErrInvalidRule, ErrUnsupported, and ErrInvalidKey if rule has a Key.
func Check(l Locker, rule Rule) error {
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
	if rule.Mode == Shared && e.readers == nil {
		return fmt.Errorf("%w: Mode Shared needs a Locker with readers, such as one of NewReadWrite", ErrUnsupported)
	}
	if v, ok := e.store.(store.Validator); ok {
		return v.Validate(store.Claim{Key: e.cfg.prefix + rule.Key, Mode: rule.Mode, Limit: rule.Limit, Weight: rule.Weight, Once: rule.Once})
	}
	return nil
}

// Check calls the method Check of the Locker inside.
func (r *reentrant) Check(rule Rule) error { return Check(r.inner, rule) }
