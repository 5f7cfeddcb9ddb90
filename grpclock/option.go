package grpclock

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
)

// An Option sets up a server's interceptor.
type Option func(*config)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	wait time.Duration
	ttl  time.Duration
	busy codes.Code

	filters []func(context.Context, string) bool
	adjust  []func(context.Context, string, any, *locker.Rule)

	delegation bool              // is taken
	delegated  []delegate.Option // how
}

func newConfig(what string, opts []Option) (config, error) {
	c := config{wait: 5 * time.Second, busy: codes.Aborted}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("grpclock: %s: option %d is nil; leave it out instead", what, i+1)
		}
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
		return fmt.Errorf("WithWait(0): a wait must have an end, as not every call has a deadline; give locker.NoWait to refuse at once")
	case c.wait < 0 && c.wait != locker.NoWait:
		return fmt.Errorf("WithWait(%v): give a positive time, or locker.NoWait to refuse at once", c.wait)
	case c.ttl != 0 && c.ttl < time.Millisecond:
		return fmt.Errorf("WithTTL(%v): the smallest is 1ms; leave it out for the Locker's default", c.ttl)
	case c.busy != codes.Aborted && c.busy != codes.Unavailable && c.busy != codes.ResourceExhausted:
		return fmt.Errorf("WithBusyCode(%v): choose Aborted, Unavailable or ResourceExhausted", c.busy)
	}
	for _, f := range c.filters {
		if f == nil {
			return fmt.Errorf("WithFilter(nil); leave it out to guard every call that has a rule")
		}
	}
	for _, f := range c.adjust {
		if f == nil {
			return fmt.Errorf("WithRule(nil); leave it out instead")
		}
	}
	return nil
}

// WithWait sets how long a call waits for its lock where its rule does not say. locker.NoWait refuses at once. Default: 5 s.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait = d } }

// WithTTL sets how long the server keeps a lock when this process dies, where a rule does not say. Default: the Locker's, 30 s.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithBusyCode sets the code of a call whose lock is busy: Aborted, Unavailable or ResourceExhausted. Default: Aborted, which
// stands for contention and does not count as a failure of the server where Unavailable does.
func WithBusyCode(code codes.Code) Option { return func(c *config) { c.busy = code } }

// WithFilter guards only calls for which guarded is true; the others run without a lock. Given several times, all must be
// true. Default: every call that has a rule is guarded.
func WithFilter(guarded func(ctx context.Context, fullMethod string) bool) Option {
	return func(c *config) { c.filters = append(c.filters, guarded) }
}

// WithRule lets adjust change the Rule of a call: its Wait by the caller's tier, or its Mode. req is nil for a stream whose
// key needs no request. A Wait or Name that it leaves empty becomes the interceptor's again. Given several times, they run
// in order. What adjust puts into Key is not encoded.
func WithRule(adjust func(ctx context.Context, fullMethod string, req any, rule *locker.Rule)) Option {
	return func(c *config) { c.adjust = append(c.adjust, adjust) }
}

// WithDelegation lets calls join the lease of their caller, which shows a delegation of it: see package delegate, whose
// options are those that the caller uses. Take this for services that only your own services can reach. Default: a delegation
// that comes with a call is taken away from its metadata and has no effect.
func WithDelegation(opts ...delegate.Option) Option {
	return func(c *config) { c.delegation, c.delegated = true, opts }
}

// isNil finds a nil Locker also inside the interface: what a constructor returned with an error nobody looked at.
func isNil(l locker.Locker) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
