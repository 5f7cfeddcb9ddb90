package grpclock

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// A Rule says under which lock the calls of a method run: with Key or Func, and what it leaves empty as the interceptor
// says. The zero Rule says that they run without one, whatever the .proto file says.
type Rule struct {
	_ struct{} // keyed literals only

	// Key is a template such as "order:{req.order_id}"; [Field] and [Meta] make its parts.
	Key key.Key
	// Func makes the key instead of a template; see [KeyOf].
	Func KeyFunc
	// Name stands for the lock in traces and metrics. Default: the Key's text before its first ':', for Func the method.
	Name string
	// Mode is Exclusive by default.
	Mode locker.Mode
	// Wait is how long a call waits; locker.NoWait: not at all. Default: as [WithWait] says.
	Wait time.Duration
	// TTL, AtLeast, AtMost and Once are those of [locker.Rule]. Default for the TTL: as [WithTTL] says.
	TTL, AtLeast, AtMost, Once time.Duration
}

// A RuleMap has rules by full method, such as "/inventory.v1.Inventory/Reserve": what generated code calls
// Inventory_Reserve_FullMethodName.
type RuleMap map[string]Rule

// A KeyProvider is a service that says itself under which lock a call runs: implement it on the server that is registered.
// It comes before all other rules; a Rule without a Key leaves the call to them. req is the request, of a stream the first
// message. Key is taken as it is, so what a client can choose in it should have no ':'.
//
// An error with a gRPC status is the reply; any other one is INTERNAL.
type KeyProvider interface {
	LockKey(ctx context.Context, fullMethod string, req any) (locker.Rule, error)
}

// rule derives what to guard from a call.
func (g *guard) rule(ctx context.Context, c *call) (locker.Rule, error) {
	r, err := c.rule(ctx)
	if err != nil {
		return r, err
	}
	name := r.Name
	r.TTL, r.Wait = cmp.Or(r.TTL, g.ttl), cmp.Or(r.Wait, g.wait)
	for _, adjust := range g.adjust {
		adjust(ctx, c.name, c.req, &r)
	}
	// Without a name the Locker would take the beginning of the key, which may be the client's; without a bound a call
	// without a deadline may wait for ever.
	r.Name, r.Wait = cmp.Or(r.Name, name), cmp.Or(r.Wait, g.wait)
	return r, nil
}

func (c *call) rule(ctx context.Context) (locker.Rule, error) {
	if c.provider != nil {
		r, err := c.provider.LockKey(ctx, c.name, c.req)
		if err != nil {
			if _, ok := status.FromError(err); ok {
				return r, &dictated{err}
			}
			return r, fmt.Errorf("%w: LockKey: %w", locker.ErrInvalidRule, err)
		}
		if r.Key != "" {
			r.Name = cmp.Or(r.Name, methodName(c.name))
			return r, nil
		}
	}
	if c.method == nil {
		return locker.Rule{}, errUnguarded
	}
	if c.method.err != nil {
		return locker.Rule{}, fmt.Errorf("%w: %w", locker.ErrInvalidRule, c.method.err)
	}
	r := c.method.rule
	var err error
	if r.Key, err = c.method.key(ctx, c); err != nil {
		return r, err
	}
	return r, nil
}

// dictated is an error whose status a KeyProvider has chosen.
type dictated struct{ error }

// methodName is a full method as a name: without the slash in front.
func methodName(fullMethod string) string { return strings.TrimPrefix(fullMethod, "/") }
