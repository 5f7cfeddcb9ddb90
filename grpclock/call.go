package grpclock

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/locker"
)

// call is a call to the server, with the data on which the rule of the call depends.
type call struct {
	name   string // the full method
	method *method
	req    any // nil before the first message of a stream
}

// early returns true if the locks of a stream are taken before its first message.
func (c *call) early() bool {
	return c.method.early || c.method.err != nil
}

// errUnbound refuses the calls of a server whose rules were never checked.
var errUnbound = fmt.Errorf("%w: Rules.Bind was not called, or has failed; call it when the services are registered, before Serve",
	locker.ErrInvalidRule)

// admit returns the call to be guarded, or nil if the call runs without a lock. If admit returns an
// error, it also returns the call, which the reply needs.
func (g *guard) admit(ctx context.Context, fullMethod string) (*call, error) {
	if !strings.HasPrefix(fullMethod, "/") { // before version 1.79.3, gRPC served such a path of a client as well
		fullMethod = "/" + fullMethod
	}
	c := &call{name: fullMethod}
	if g.strict && !g.rules.bound.Load() {
		return c, errUnbound
	}
	c.method = g.rules.method(fullMethod)
	if c.method == nil {
		return nil, nil
	}
	for _, applies := range g.filters {
		if !applies(ctx, fullMethod) {
			return nil, nil
		}
	}
	return c, nil
}

// locks returns the complete Rules of the locks of c.
func (g *guard) locks(ctx context.Context, c *call) ([]locker.Rule, error) {
	locks, err := c.locks(ctx)
	if err != nil {
		return nil, err
	}
	for i := range locks {
		g.complete(ctx, c, &locks[i])
	}
	return locks, nil
}

// complete adds the interceptor's defaults to a rule.
func (g *guard) complete(ctx context.Context, c *call, r *locker.Rule) {
	name := r.Name
	r.TTL, r.Wait = cmp.Or(r.TTL, g.ttl), cmp.Or(r.Wait, g.wait)
	for _, adjust := range g.adjust {
		adjust(ctx, c.name, c.req, r)
	}
	// Without a name, the Locker would use the beginning of the key as the name. The client may
	// have chosen this beginning. Without a time limit, a call without a deadline could wait for
	// ever.
	r.Name, r.Wait = cmp.Or(r.Name, name), cmp.Or(r.Wait, g.wait)
}

// locks returns the Rules that the call's rule makes.
func (c *call) locks(ctx context.Context) ([]locker.Rule, error) {
	if c.method.err != nil {
		return nil, fmt.Errorf("%w: %w", locker.ErrInvalidRule, c.method.err)
	}
	keys, err := c.method.keysOf(ctx, c)
	if err != nil {
		return nil, err
	}
	locks := make([]locker.Rule, len(keys))
	for i, k := range keys {
		locks[i] = c.method.rule
		locks[i].Key = k
	}
	return locks, nil
}

// methodName returns a full method as a name, without the slash at its beginning.
func methodName(fullMethod string) string { return strings.TrimPrefix(fullMethod, "/") }

// open returns true if the call runs without a lock because the lock server is known to be
// unavailable.
func (g *guard) open(ctx context.Context, c *call) bool {
	return g.breaker.Open() && g.opens(ctx, c, breaker.ErrOutage)
}

// opens returns true if the call runs without its locks, and reports that. err is the reason why
// the call has no locks.
func (g *guard) opens(ctx context.Context, c *call, err error) bool {
	if !g.breaker.Permits(ctx, err) {
		return false
	}
	p := unavailable.problem(c, err)
	g.event(ctx, cmp.Or(p.Rule, unnamed), eventUnguarded, 0)
	g.show(ctx, p)
	return true
}
