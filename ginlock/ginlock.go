package ginlock

import (
	"context"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/locker"
)

// New returns a middleware that runs the handlers after it under the lock that key names, such as "order:{param.id}".
// The package's comment has the grammar of keys.
//
// It panics, with a text that says what to do, when l is nil or key or an option makes no sense: like a route that Gin
// cannot register, that is a mistake in the program, found when it starts.
func New(l locker.Locker, key string, opts ...Option) gin.HandlerFunc {
	m, err := newMiddleware(l, key, opts)
	if err != nil {
		panic(err)
	}
	return m.handle
}

// FromContext returns the lease under which c's handler runs.
func FromContext(c *gin.Context) (*locker.Lease, bool) {
	if c.Request == nil {
		return nil, false
	}
	return locker.FromContext(c.Request.Context())
}

// middleware is what New makes of its arguments.
type middleware struct {
	config
	key   *template
	guard locker.Guard[*gin.Context]
}

func newMiddleware(l locker.Locker, key string, opts []Option) (*middleware, error) {
	if isNil(l) {
		return nil, errors.New("ginlock: New: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	t, err := compile(key)
	if err != nil {
		return nil, err
	}
	m := &middleware{config: cfg, key: t}
	m.guard = locker.Guard[*gin.Context]{Locker: l, Rule: m.rule}
	return m, nil
}

// handle is the middleware. How it ends:
//
//	the handler ran, the lock was held    the handler's reply
//	the handler ran, the lock was lost    503, unless the handler has written already
//	the handler did not run               the Problem that says why
//	the handler panicked                  the panic goes on, after the release
func (m *middleware) handle(c *gin.Context) {
	if !m.applies(c) {
		c.Next()
		return
	}
	ran := false
	err := m.guard.Run(c.Request.Context(), c, func(ctx context.Context) error {
		ran = true
		return serve(ctx, c)
	})
	switch {
	case err == nil || err == errFailed:
	case ran:
		m.spoiled(c, err)
	default:
		m.refuse(c, err)
	}
}

func (m *middleware) applies(c *gin.Context) bool {
	for _, applies := range m.filters {
		if !applies(c) {
			return false
		}
	}
	return true
}

// errFailed tells Run that the handler did not succeed, so that Rule.Once does not remember the work as done.
var errFailed = errors.New("the handler failed")

// serve runs the handlers after this one with a request whose context ends with the lock, and puts back the context that
// the middleware before this one knows.
func serve(ctx context.Context, c *gin.Context) error {
	outer, earlier := c.Request.Context(), len(c.Errors)
	c.Request = c.Request.WithContext(ctx)
	defer func() { c.Request = c.Request.WithContext(outer) }()
	c.Next()
	if c.Writer.Status() >= http.StatusBadRequest || len(c.Errors) > earlier {
		return errFailed
	}
	return nil
}
