// Package exclusive is for work that must have one holder: its rule on every Locker that the program
// gives, and its context, which is over as soon as somebody looks after the lease's time.
package exclusive

import (
	"errors"

	"github.com/latchkit/latchkit/locker"
)

// ErrForeign means that nobody knows whether the work was done. So the work must not run without a
// lock, although the servers may work well.
var ErrForeign = errors.New("the key holds a value in an unknown format, which another program or version has written; " +
	"delete it, or wait until it has expired")

// Rule returns rule with one holder on l. Without it, a Locker of locker.NewSemaphore(n) would let
// n holders do work that must run once.
func Rule(l locker.Locker, rule locker.Rule) locker.Rule {
	rule.Mode, rule.Limit, rule.Weight = locker.Exclusive, 0, 0
	if CountsUnits(l) {
		rule.Limit = 1
	}
	return rule
}

// CountsUnits reports whether l grants a rule without a Limit to several holders, as the Lockers of
// locker.NewSemaphore do. A wrapper of such a Locker that has no method Check is not recognised.
func CountsUnits(l locker.Locker) bool {
	if _, checks := l.(interface{ Check(rule locker.Rule) error }); !checks {
		return false // locker.Check would permit every rule
	}
	return locker.Check(l, locker.Rule{Weight: 1}) == nil // a Weight needs a Limit, and the rule has none
}
