package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

type (
	source  = key.Source[*http.Request]
	read    = key.Read[*http.Request]
	readAll = key.ReadAll[*http.Request]
)

// sources are the parts of a request. If a part has several values, the first value counts, as with
// the methods that handlers use.
func (c *config) sources() map[string]source {
	sources := map[string]source{
		"param":           {Noun: "path parameter", Bind: c.bindParam},
		"query":           {Noun: "query parameter", Bind: bindQuery},
		"header":          {Noun: "header", Bind: bindHeader},
		"cookie":          {Noun: "cookie", Bind: c.bindCookie},
		"ip":              {Noun: "address of a client", Alone: true, Bind: c.bindIP},
		"body":            {Noun: "member of the body", Bind: c.bindBody, BindAll: c.bindBodies},
		"claim":           {Noun: "claim", Bind: c.bindClaim},
		idempotencySource: {Noun: "header Idempotency-Key", Alone: true, Bind: bindIdempotencyKey},
	}
	if value := c.reader.Value; value != nil {
		sources["value"] = source{Noun: "value", Bind: func(name string) (read, error) {
			return formatted(func(r *http.Request) any { return value(r, name) }), nil
		}}
	}
	for name, value := range c.parts {
		sources[name] = source{Alone: true, Bind: func(string) (read, error) { return own(value), nil }}
	}
	return sources
}

func (c *config) bindParam(name string) (read, error) {
	param := c.reader.Param
	return func(_ context.Context, r *http.Request) (string, error) {
		value, declared := param(r, name)
		if !declared {
			return "", fmt.Errorf("%w: the route has no parameter %q", locker.ErrInvalidRule, name)
		}
		return value, nil
	}, nil
}

func bindQuery(name string) (read, error) {
	return func(_ context.Context, r *http.Request) (string, error) { return firstQuery(r.URL.RawQuery, name), nil }, nil
}

// firstQuery returns what url.ParseQuery(query).Get(name) would return, without making the map.
func firstQuery(query, name string) string {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		k, v, _ := strings.Cut(pair, "=")
		if k != name {
			if !strings.ContainsAny(k, "%+") {
				continue
			}
			if plain, err := url.QueryUnescape(k); err != nil || plain != name {
				continue
			}
		}
		if value, err := url.QueryUnescape(v); err == nil {
			return value
		}
	}
	return ""
}

func bindHeader(name string) (read, error) {
	name = textproto.CanonicalMIMEHeaderKey(name)
	if name == "Host" { // net/http removes it from the headers
		return func(_ context.Context, r *http.Request) (string, error) { return r.Host, nil }, nil
	}
	return func(_ context.Context, r *http.Request) (string, error) {
		if values := r.Header[name]; len(values) > 0 {
			return values[0], nil
		}
		return "", nil
	}, nil
}

func (c *config) bindCookie(name string) (read, error) {
	if cookie := c.reader.Cookie; cookie != nil {
		return func(_ context.Context, r *http.Request) (string, error) { return cookie(r, name), nil }, nil
	}
	return func(_ context.Context, r *http.Request) (string, error) {
		cookie, err := r.Cookie(name)
		if err != nil {
			return "", nil //nolint:nilerr // "" has the same meaning as ErrNoCookie: the part is missing
		}
		return cookie.Value, nil
	}, nil
}

func (c *config) bindIP(string) (read, error) {
	ip := c.reader.IP
	return func(_ context.Context, r *http.Request) (string, error) { return ip(r), nil }, nil
}

func (c *config) bindClaim(name string) (read, error) {
	claims := c.claims
	if claims == nil {
		return nil, errors.New("the middleware does not know the claims of a request; give it WithClaims")
	}
	return formatted(func(r *http.Request) any { return claims(r)[name] }), nil
}

// formatted reads a value that may be of any type.
func formatted(value func(*http.Request) any) read {
	return own(func(r *http.Request) (string, error) { return key.Format(value(r)) })
}

func own(value func(*http.Request) (string, error)) read {
	return func(_ context.Context, r *http.Request) (string, error) {
		text, err := value(r)
		if err != nil {
			return "", &partError{err}
		}
		return text, nil
	}
}

// partError is the error of a function of the program that reads a part. The client cannot correct
// this error.
type partError struct{ err error }

func (e *partError) Error() string { return e.err.Error() }
func (e *partError) Unwrap() error { return e.err }

// idempotencySource is the source for the header Idempotency-Key. The value may have quotation
// marks, as the IETF's draft requires, or no quotation marks, as in services that are older than
// the draft.
const idempotencySource = "idempotency-key"

// idempotencyHeader is the header in which a client names its request.
const idempotencyHeader = "Idempotency-Key"

// maxIdempotencyKey is the largest length of an idempotency key. No known client sends a longer
// key.
const maxIdempotencyKey = 255

func bindIdempotencyKey(string) (read, error) {
	return func(_ context.Context, r *http.Request) (string, error) {
		value := r.Header.Get(idempotencyHeader)
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if len(value) > maxIdempotencyKey {
			return "", errors.New("it is longer than 255 bytes")
		}
		return value, nil
	}, nil
}
