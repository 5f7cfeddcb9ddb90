package ginlock

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/locker"
)

// An Option sets up the middleware that [New] returns.
type Option func(*config)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	wait   time.Duration
	ttl    time.Duration
	name   string
	status int
	render func(*gin.Context, *Problem)

	filters []func(*gin.Context) bool
	adjust  []func(*gin.Context, *locker.Rule)
}

func newConfig(opts []Option) (config, error) {
	c := config{wait: 5 * time.Second, status: http.StatusConflict, render: writeProblem}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("ginlock: New: option %d is nil; leave it out instead", i+1)
		}
		o(&c)
	}
	return c, c.validate()
}

func (c *config) validate() error {
	switch {
	case c.wait == 0:
		return errors.New("ginlock: WithWait(0): a wait must have an end, as not every client that is gone is noticed; give locker.NoWait to refuse at once")
	case c.wait < 0 && c.wait != locker.NoWait:
		return fmt.Errorf("ginlock: WithWait(%v): give a positive time, or locker.NoWait to refuse at once", c.wait)
	case c.ttl != 0 && c.ttl < time.Millisecond:
		return fmt.Errorf("ginlock: WithTTL(%v): the smallest is 1ms; leave it out for the Locker's default", c.ttl)
	case c.status != http.StatusConflict && c.status != http.StatusLocked && c.status != http.StatusTooManyRequests:
		return fmt.Errorf("ginlock: WithStatus(%d): choose 409, 423 or 429; for anything else use WithErrorHandler", c.status)
	case c.render == nil:
		return errors.New("ginlock: WithErrorHandler(nil); leave it out to get problem+json")
	}
	for _, f := range c.filters {
		if f == nil {
			return errors.New("ginlock: WithFilter(nil); leave it out to guard every request")
		}
	}
	for _, f := range c.adjust {
		if f == nil {
			return errors.New("ginlock: WithRule(nil); leave it out instead")
		}
	}
	return nil
}

// WithWait sets how long a request waits for its lock. locker.NoWait refuses at once. Default: 5 s.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait = d } }

// WithTTL sets how long the server keeps the lock when this process dies. Default: the Locker's, 30 s.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithName sets the name of the lock in traces and metrics. Default: the key's text up to the first ':', "lock" when
// there is none or a part of the request comes before it.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithStatus sets the status of the reply to a request whose lock is busy: 409, 423 or 429. Default: 409 Conflict.
func WithStatus(code int) Option { return func(c *config) { c.status = code } }

// WithFilter guards only requests for which guarded is true; the others run without a lock. Given several times, all
// must be true. Default: every request is guarded.
func WithFilter(guarded func(c *gin.Context) bool) Option {
	return func(c *config) { c.filters = append(c.filters, guarded) }
}

// WithErrorHandler makes h write the replies. When it is called, the handlers after the middleware have been aborted, and
// p's status and the Retry-After header are set. It may reply in any form; p marshals to problem+json's members.
// Default: problem+json.
func WithErrorHandler(h func(c *gin.Context, p *Problem)) Option {
	return func(c *config) { c.render = h }
}

// WithRule lets adjust change the Rule of a request: its Mode, or Once, or AtMost. A Wait or Name that it leaves empty
// becomes the middleware's again. Given several times, they run in order. What adjust puts into Key is not encoded.
func WithRule(adjust func(c *gin.Context, rule *locker.Rule)) Option {
	return func(c *config) { c.adjust = append(c.adjust, adjust) }
}

// isNil finds a nil Locker also inside the interface: what a constructor returned with an error nobody looked at.
func isNil(l locker.Locker) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
