package ginlock

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// An Option sets up a middleware of this package. Options of httplock are Options of this package
// too.
type Option = httplock.Option

// ofGin puts options for Gin before the options that the user gave.
func ofGin(opts []Option) []Option {
	return append([]Option{
		httplock.WithParams(func(r *http.Request, name string) (string, bool) { return contextOf(r).Params.Get(name) }),
		httplock.WithClientIP(func(r *http.Request) string { return contextOf(r).ClientIP() }),
		httplock.WithValues(func(r *http.Request, name string) any {
			value, _ := contextOf(r).Get(name)
			return value
		}),
		httplock.WithFramework(framework.Reader{
			Cookie: func(r *http.Request, name string) string {
				value, _ := contextOf(r).Cookie(name) // "" if there is no such cookie
				return value
			},
			JSON: func(r *http.Request) bool {
				c := contextOf(r)
				return binding.Default(r.Method, c.ContentType()) == binding.Binding(binding.JSON)
			},
		}),
		httplock.WithObserve(observe),
		WithSuccess(func(c *gin.Context) bool { return c.Writer.Status() < http.StatusBadRequest }),
	}, opts...)
}

// WithWait sets how long a request waits for its lock. locker.NoWait refuses at once. Default: 5 s.
func WithWait(d time.Duration) Option { return httplock.WithWait(d) }

// WithTTL sets how long the server keeps the lock when this process dies. Default: the TTL of the
// Locker, 30 s.
func WithTTL(d time.Duration) Option { return httplock.WithTTL(d) }

// WithName sets the name of the lock in traces and metrics. Default: the key's text up to the
// first ':'. If there is no ':', or a part of the request comes before it, the name is "lock".
func WithName(name string) Option { return httplock.WithName(name) }

// WithStatus sets the status of the reply to a request whose lock is busy: 409, 423 or 429.
// Default: 409 Conflict.
func WithStatus(code int) Option { return httplock.WithStatus(code) }

// WithModeByMethod takes the lock Shared for the safe methods (GET, HEAD, OPTIONS, TRACE) and
// Exclusive for all other methods. It needs a Locker with readers; see [httplock.WithModeByMethod].
func WithModeByMethod() Option { return httplock.WithModeByMethod() }

// WithFailOpen runs requests without a lock while the lock server is unavailable; see
// [httplock.WithFailOpen].
func WithFailOpen() Option { return httplock.WithFailOpen() }

// WithBufferedResponse holds the response back, up to most bytes, until the lock server has
// confirmed that the lock was held until the handler returned; see [httplock.WithBufferedResponse].
func WithBufferedResponse(most int) Option { return httplock.WithBufferedResponse(most) }

// WithMaxBody sets how many bytes of a body may be read for a key with {body.NAME}, or for the
// fingerprint. A request with a longer body is answered 413. Default: 1 MiB.
func WithMaxBody(most int64) Option { return httplock.WithMaxBody(most) }

// WithSecret sets the secret for parts like {header.Authorization|hmac}: at least 16 random bytes,
// the same in all processes.
func WithSecret(secret []byte) Option { return httplock.WithSecret(secret) }

// WithLifetime sets for how long [Idempotency] remembers a response. Default: 24 h.
func WithLifetime(d time.Duration) Option { return httplock.WithLifetime(d) }

// WithPart makes {name} a part of keys. The function value reads the part from the request. If
// value returns "", the request lacks the part and is answered 400. If value returns an error, the
// request is answered 500, and the text of the error stays in the process.
func WithPart(name string, value func(c *gin.Context) (string, error)) Option {
	if value == nil {
		return httplock.WithPart(name, nil)
	}
	return httplock.WithPart(name, func(r *http.Request) (string, error) { return value(contextOf(r)) })
}

// WithClaims makes {claim.NAME} a part of keys. claims returns the claims that authentication has
// found.
func WithClaims(claims func(c *gin.Context) map[string]any) Option {
	if claims == nil {
		return httplock.WithClaims(nil)
	}
	return httplock.WithClaims(func(r *http.Request) map[string]any { return claims(contextOf(r)) })
}

// WithKeys locks more keys together with the first key; see [httplock.WithKeys].
func WithKeys(keys ...Key) Option { return httplock.WithKeys(keys...) }

// WithStreamedBody leaves the request's body unread until the handler reads it; see
// [httplock.WithStreamedBody].
func WithStreamedBody() Option { return httplock.WithStreamedBody() }

// WithStallTimeout sets for how long the client may block a handler that holds the lock; see
// [httplock.WithStallTimeout]. Default: 30 s.
func WithStallTimeout(d time.Duration) Option { return httplock.WithStallTimeout(d) }

// WithBodyTypes makes {body.NAME} read bodies of other types as JSON; see [httplock.WithBodyTypes].
func WithBodyTypes(types ...string) Option { return httplock.WithBodyTypes(types...) }

// WithIdempotencyStore sets where the responses of Rules with Idempotency are stored.
func WithIdempotencyStore(store idempotency.Store) Option {
	return httplock.WithIdempotencyStore(store)
}

// WithFinishWithin sets how long a handler under [Idempotency] may continue after its client has
// left. Default: 1 min.
func WithFinishWithin(d time.Duration) Option { return httplock.WithFinishWithin(d) }

// WithFingerprint sets what distinguishes two requests with the same Idempotency-Key; see
// [httplock.WithFingerprint].
func WithFingerprint(distinct func(c *gin.Context, body []byte) ([]byte, error)) Option {
	if distinct == nil {
		return httplock.WithFingerprint(nil)
	}
	return httplock.WithFingerprint(func(r *http.Request, body []byte) ([]byte, error) { return distinct(contextOf(r), body) })
}

// WithFilter guards only requests for which guarded returns true. All other requests run without a
// lock. With several WithFilters, all their functions must return true. Default: every request is
// guarded.
func WithFilter(guarded func(c *gin.Context) bool) Option {
	if guarded == nil {
		return httplock.WithFilter(nil)
	}
	return httplock.WithFilter(func(r *http.Request) bool { return guarded(contextOf(r)) })
}

// WithErrorHandler makes h write the replies. When h is called, the handlers after the middleware
// have been aborted, and p's status and the Retry-After header are set. h may reply in any form; p
// marshals to an object of problem+json. Default: problem+json.
func WithErrorHandler(h func(c *gin.Context, p *Problem)) Option {
	if h == nil {
		return httplock.WithErrorHandler(nil)
	}
	return httplock.WithErrorHandler(func(_ http.ResponseWriter, r *http.Request, p *Problem) {
		c := contextOf(r)
		c.Abort()
		c.Status(p.Status)
		h(c, p)
		c.Writer.WriteHeaderNow()
	})
}

// WithSuccess defines which requests have succeeded, so that Rule.Once remembers their work as
// done. A request to which the handlers have added c.Error has not succeeded. Default: requests
// with a status below 400 have succeeded.
func WithSuccess(succeeded func(c *gin.Context) bool) Option {
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

// WithRule lets adjust change the Rule of a request: its Mode, Once or AtMost. If adjust leaves
// Wait or Name empty, the middleware's value is used. With several WithRules, their functions run
// in order. A Key that adjust sets is used as it is: values in it are not encoded as in a template.
// Make it with key.Of if a client can choose a part of it.
func WithRule(adjust func(c *gin.Context, rule *locker.Rule)) Option {
	if adjust == nil {
		return httplock.WithRule(nil)
	}
	return httplock.WithRule(func(r *http.Request, rule *locker.Rule) { adjust(contextOf(r), rule) })
}
