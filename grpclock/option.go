package grpclock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// An Option sets up a server's interceptors.
type Option func(*config)

// config has the values of the options. newConfig sets their defaults.
type config struct {
	mustBind bool
	wait     time.Duration
	ttl      time.Duration
	failOpen bool

	observe []func(context.Context, *Problem)
	filters []func(context.Context, string) bool
	adjust  []func(context.Context, string, any, *locker.Rule)
}

func newConfig(what string, opts []Option) (config, error) {
	c := config{wait: 5 * time.Second}
	for _, o := range opts {
		o(&c)
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("grpclock: %s: %w", what, err)
	}
	return c, nil
}

func (c *config) validate() error {
	switch {
	case c.wait == 0:
		return errors.New("WithWait(0): a wait must have an end, because not every call has a deadline; give locker.NoWait to refuse at once")
	case c.wait < 0 && c.wait != locker.NoWait:
		return fmt.Errorf("WithWait(%v): give a positive time, or locker.NoWait to refuse at once", c.wait)
	case c.ttl != 0 && c.ttl < time.Millisecond:
		return fmt.Errorf("WithTTL(%v): the smallest is 1ms; leave it out for the Locker's default", c.ttl)
	}
	return nil
}

// WithWait sets how long a call waits for its locks if its rule has no wait. locker.NoWait
// waits for no holder. Without a Wait, a call waits as long as its caller's context allows; an adapter that
// answers a client limits the wait to 5 s; a worker does not wait but puts the task off.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait = d } }

// WithTTL sets how long the lock server keeps a lock when this process dies, if the rule has no
// TTL. Default: the TTL of the Locker, 30 s.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithFailOpen runs calls without a lock while the lock server is unavailable. Then two calls can
// run at the same time: choose WithFailOpen if an outage is worse than work that runs twice.
// WithObserve receives each call that runs without a lock. Default: without the lock server, calls
// are refused with UNAVAILABLE.
//
// Only the calls that are under way when the outage begins wait for the lock server; one in a queue
// waits for about a second. Later calls run at once, while a probe in the background asks once a
// second whether the server answers again. Then one call asks for all others, and a grant or a busy
// lock ends the outage.
func WithFailOpen() Option { return func(c *config) { c.failOpen = true } }

// WithObserve calls see with each Problem. There is a Problem when a call did not get its locks,
// lost a lock, or ran without locks (see [WithFailOpen]). There is also a Problem when a call
// succeeded, but the server has not confirmed that the mark of Rule.OnceFor is stored. The function
// see is for logs and counters. ctx is the context of the call, so it has the surrounding span.
// With several WithObserves, all their functions are called.
func WithObserve(see func(ctx context.Context, p *Problem)) Option {
	return func(c *config) { c.observe = append(c.observe, see) }
}

// WithBoundRules refuses every call with INTERNAL until [Rules.Bind] has succeeded. [ServerOptions]
// includes this option. Give this option if you install the interceptors one by one.
func WithBoundRules() Option { return func(c *config) { c.mustBind = true } }

// WithFilter guards only calls for which guarded returns true. All other calls run without a lock.
// With several WithFilters, all their functions must return true. Default: every call that has a
// rule is guarded.
func WithFilter(guarded func(ctx context.Context, fullMethod string) bool) Option {
	return func(c *config) { c.filters = append(c.filters, guarded) }
}

// WithRule lets adjust change the Rule of a call: for example its Wait, which may depend on the
// caller, or its Mode. A call with several keys has a Rule for each key. req is nil for a stream
// whose key needs no request. If adjust leaves Wait or Name empty, the interceptor's value is used.
// With several WithRules, their functions run in order. A Key that adjust sets is used as it is:
// values in it are not encoded as in a template. Make it with key.Of if a client can choose a part
// of it.
func WithRule(adjust func(ctx context.Context, fullMethod string, req any, rule *locker.Rule)) Option {
	return func(c *config) { c.adjust = append(c.adjust, adjust) }
}
