package grpclock

import (
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// A Rule defines the locks of a method's calls: give Key, Keys or Func. An empty field of a Rule
// has the default of the interceptor. With the zero Rule, the calls run without a lock, even if the
// .proto file has a rule for the method.
type Rule struct {
	_ struct{} // keyed literals only

	// Key is a template such as "order:{req.order_id}".
	Key key.Key
	// Keys are several templates. A call takes the locks of all of them together, or none. A
	// template such as "stock:{req.items.*.sku}" makes a key for each element of a repeated field.
	// locker.LeasesFromContext finds all leases.
	Keys []key.Key
	// Func is a function that makes the key, in place of a template; see [KeyOf].
	Func KeyFunc
	// Name is the lock's name in traces and metrics. Default: the text of the first key before its
	// first ':'; with Func, the name of the method.
	Name string
	// Mode is Exclusive by default.
	Mode locker.Mode
	// Wait is how long a call waits for its locks. With locker.NoWait, the call does not wait.
	// Default: [WithWait].
	Wait time.Duration
	// TTL, KeepFor, EndAfter and OnceFor have the same meaning as in [locker.Rule]. Default of TTL:
	// the value of [WithTTL]. With OnceFor, the Key says how ids are spelled: "order:{req.id|int}".
	TTL, KeepFor, EndAfter, OnceFor time.Duration
	// Limit is how many units of a key may be held at once, and Weight how many units a call
	// takes: see [locker.Rule]. They need a Locker of locker.NewSemaphore.
	Limit, Weight int
}

// empty reports whether the Rule names no lock.
func (r *Rule) empty() bool {
	return r.Key == "" && len(r.Keys) == 0 && r.Func.of == nil
}

// templates returns the templates in Key or Keys.
func (r *Rule) templates() []key.Key {
	if r.Key != "" {
		return []key.Key{r.Key}
	}
	return r.Keys
}

// A RuleMap has the rules of methods by their full names, such as
// "/inventory.v1.Inventory/Reserve". Generated code has a constant for each name, such as
// Inventory_Reserve_FullMethodName.
type RuleMap map[string]Rule
