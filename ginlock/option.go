package ginlock

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// ofGin puts options for Gin before the options that the user gave.
func ofGin(opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(reader),
		httplock.WithObserve(observe),
		WithSuccess(func(c *gin.Context) bool { return c.Writer.Status() < http.StatusBadRequest }),
	}, opts...)
}

// reader reads requests with Gin's methods.
var reader = framework.Reader{
	Name:   "ginlock",
	Param:  func(r *http.Request, name string) (string, bool) { return contextOf(r).Params.Get(name) },
	Params: params,
	IP:     func(r *http.Request) string { return contextOf(r).ClientIP() },
	Value: func(r *http.Request, name string) any {
		value, _ := contextOf(r).Get(name)
		return value
	},
	Cookie: func(r *http.Request, name string) string {
		value, _ := contextOf(r).Cookie(name) // "" if there is no such cookie
		return value
	},
	JSON: func(r *http.Request) bool {
		c := contextOf(r)
		return binding.Default(r.Method, c.ContentType()) == binding.Binding(binding.JSON)
	},
}

// WithPart makes {name} a part of keys. The function value reads the part from the request. If
// value returns "", the request lacks the part and is answered 400. If value returns an error, the
// request is answered 500, and the text of the error stays in the process.
func WithPart(name string, value func(c *gin.Context) (string, error)) httplock.Option {
	if value == nil {
		return httplock.WithPart(name, nil)
	}
	return httplock.WithPart(name, func(r *http.Request) (string, error) { return value(contextOf(r)) })
}

// WithClaims makes {claim.NAME} a part of keys. claims returns the claims that authentication has
// found.
func WithClaims(claims func(c *gin.Context) map[string]any) httplock.Option {
	if claims == nil {
		return httplock.WithClaims(nil)
	}
	return httplock.WithClaims(func(r *http.Request) map[string]any { return claims(contextOf(r)) })
}

// WithFingerprint sets what distinguishes two requests with the same Idempotency-Key; see
// [httplock.WithFingerprint].
func WithFingerprint(distinct func(c *gin.Context, body []byte) ([]byte, error)) httplock.Option {
	if distinct == nil {
		return httplock.WithFingerprint(nil)
	}
	return httplock.WithFingerprint(func(r *http.Request, body []byte) ([]byte, error) { return distinct(contextOf(r), body) })
}

// WithFilter guards only requests for which guarded returns true. All other requests run without a
// lock. With several WithFilters, all their functions must return true. Default: every request is
// guarded.
func WithFilter(guarded func(c *gin.Context) bool) httplock.Option {
	if guarded == nil {
		return httplock.WithFilter(nil)
	}
	return httplock.WithFilter(func(r *http.Request) bool { return guarded(contextOf(r)) })
}

// WithErrorHandler makes h write the replies. When h is called, the handlers after the middleware
// have been aborted, and p's status and the Retry-After header are set. h may reply in any form; p
// marshals to an object of problem+json. Default: problem+json.
func WithErrorHandler(h func(c *gin.Context, p *httplock.Problem)) httplock.Option {
	if h == nil {
		return httplock.WithErrorHandler(nil)
	}
	return httplock.WithErrorHandler(func(_ http.ResponseWriter, r *http.Request, p *httplock.Problem) {
		c := contextOf(r)
		c.Abort()
		c.Status(p.Status)
		h(c, p)
		c.Writer.WriteHeaderNow()
	})
}

// WithSuccess defines which requests have succeeded, so that Rule.OnceFor remembers their work as
// done. A request to which the handlers have added c.Error has not succeeded. Default: requests
// with a status below 400 have succeeded.
func WithSuccess(succeeded func(c *gin.Context) bool) httplock.Option {
	if succeeded == nil {
		return httplock.WithSuccess(nil)
	}
	return httplock.WithSuccess(func(r *http.Request, _ int) bool {
		v := visitOf(r)
		if !v.ran || len(v.c.Errors) != v.errors { // a lock inside may have refused the request
			return false
		}
		out := v.c.Writer
		defer func() { v.c.Writer = out }()
		v.c.Writer = v.wrote // the writer that the handlers used, also while the response is held back
		return succeeded(v.c)
	})
}

// WithRule lets adjust change the Rule of a request: its Mode, OnceFor or EndAfter. If adjust
// leaves Wait or Name empty, the middleware's value is used. With several WithRules, their
// functions run in order. A Key that adjust sets is used as it is: values in it are not encoded as
// in a template. Make it with key.Of if a client can choose a part of it.
func WithRule(adjust func(c *gin.Context, rule *locker.Rule)) httplock.Option {
	if adjust == nil {
		return httplock.WithRule(nil)
	}
	return httplock.WithRule(func(r *http.Request, rule *locker.Rule) { adjust(contextOf(r), rule) })
}
