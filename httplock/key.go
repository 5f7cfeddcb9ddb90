package httplock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
)

type (
	source  = template.Source[*http.Request]
	read    = template.Read[*http.Request]
	readAll = template.ReadAll[*http.Request]
)

// sources are the parts of a request. If a part has several values, the first value counts, as with
// the methods that handlers use.
func (c *config) sources() map[string]source {
	sources := map[string]source{
		"param":           {Noun: "path parameter", Bind: c.bindParam},
		"query":           {Noun: "query parameter", Bind: named(c.reader.Sources.Query)},
		"header":          {Noun: "header", Bind: named(c.reader.Sources.Header)},
		"cookie":          {Noun: "cookie", Bind: named(c.reader.Sources.Cookie)},
		"ip":              {Noun: "address of a client", Alone: true, Bind: c.bindIP},
		"body":            {Noun: "member of the body", Bind: c.bindBody, BindAll: c.bindBodies},
		"claim":           {Noun: "claim", Bind: c.bindClaim},
		idempotencySource: {Noun: "header Idempotency-Key", Alone: true, Bind: c.bindIdempotencyKey},
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

// chosen reports whether a client chooses the text of a part.
func chosen(part template.Ref) bool {
	switch part.Source {
	case "param", "query", "header", "cookie", "body":
		return true
	}
	return false
}

func (c *config) bindParam(name string) (read, error) {
	param := c.reader.Sources.Param
	if values := c.pathValue; values != nil {
		param = func(r *http.Request, name string) (value string, declared bool) {
			value, declared = values(r)[name]
			return value, declared
		}
	}
	return func(_ context.Context, r *http.Request) (string, error) {
		value, declared := param(r, name)
		if !declared {
			return "", fmt.Errorf("%w: the route has no parameter %q", locker.ErrInvalidRule, name)
		}
		return value, nil
	}, nil
}

// named returns the Bind of a source that needs only the name of a part.
func named(of func(r *http.Request, name string) (string, error)) func(string) (read, error) {
	return func(name string) (read, error) {
		return func(_ context.Context, r *http.Request) (string, error) { return of(r, name) }, nil
	}
}

func (c *config) bindIP(string) (read, error) {
	return func(_ context.Context, r *http.Request) (string, error) { return c.reader.Sources.IP(r), nil }, nil
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
	return own(func(r *http.Request) (string, error) { return template.Format(value(r)) })
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

func (c *config) bindIdempotencyKey(string) (read, error) {
	return func(_ context.Context, r *http.Request) (string, error) {
		value, err := c.reader.Sources.Header(r, idempotencyHeader)
		if err != nil {
			return "", err
		}
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if len(value) > maxIdempotencyKey {
			return "", errors.New("it is longer than 255 bytes")
		}
		return value, nil
	}, nil
}

// body is a request's body that was read before the lock was taken. Handlers can read it as if it
// had not been read.
type body struct {
	bytes.Reader
	data   []byte
	origin io.Closer
}

func (b *body) Close() error { return b.origin.Close() }

var (
	// errBodyTooLarge causes a reply with the status 413.
	errBodyTooLarge = errors.New("the body is larger than this route reads for its key or its fingerprint")
	// errBodyCut causes a reply with the status 400.
	errBodyCut = errors.New("the body cannot be read to its end")
	// errNotJSONType causes a reply with the status 415.
	errNotJSONType = errors.New("the key reads JSON, but the Content-Type is not JSON")
)

// errLeft means that the client has left before its body was complete. No client receives the
// reply.
var errLeft = fmt.Errorf("the client has left before its body was complete: %w", context.Canceled)

// prefetch reads the body of r, up to most bytes, before the lock is taken, because a slow client
// must not hold the lock while its body arrives. The rest of a longer body stays in r.Body, after
// the bytes that were read.
func prefetch(r *http.Request, most int64) error {
	_, err := contents(r, most)
	if errors.Is(err, errBodyTooLarge) {
		return nil
	}
	return err
}

// contents returns the whole body of r, if the body has no more bytes than the parameter most. The
// body stays readable from its beginning.
func contents(r *http.Request, most int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if b, ok := r.Body.(*body); ok {
		if int64(len(b.data)) > most {
			return nil, errBodyTooLarge
		}
		return b.data, nil
	}
	if l, ok := r.Body.(*longBody); ok && l.read >= most {
		return nil, errBodyTooLarge
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, bodyError(r, err)
	}
	if int64(len(data)) > most {
		r.Body = &longBody{Reader: io.MultiReader(bytes.NewReader(data), r.Body), Closer: r.Body, read: int64(len(data))}
		return nil, errBodyTooLarge
	}
	b := &body{data: data, origin: r.Body}
	b.Reset(data)
	r.Body = b
	return data, nil
}

// longBody is a body of which only the beginning was read before the lock was taken.
type longBody struct {
	io.Reader
	io.Closer
	read int64
}

// bodyError returns the reason why a body cannot be read.
func bodyError(r *http.Request, err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok { // the error of an http.MaxBytesHandler around this middleware
		return fmt.Errorf("%w: %w", errBodyTooLarge, tooLarge)
	}
	if errors.Is(r.Context().Err(), context.Canceled) {
		return errLeft
	}
	// io.ErrUnexpectedEOF does not say that the client has left: a middleware that decodes bodies
	// returns it for a body that the client has cut.
	return fmt.Errorf("%w: %w", errBodyCut, err)
}

func (c *config) bindBody(path string) (read, error) {
	steps, err := c.bodySteps(path)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, r *http.Request) (string, error) {
		data, err := c.jsonBody(r)
		if err != nil || len(data) == 0 {
			return "", err
		}
		return member(data, steps)
	}, nil
}

// bindBodies returns a function that reads a list, such as {body.items.*.sku}.
func (c *config) bindBodies(path string) (readAll, error) {
	steps, err := c.bodySteps(path)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, r *http.Request) ([]string, error) {
		data, err := c.jsonBody(r)
		if err != nil || len(data) == 0 {
			return nil, err
		}
		return members(data, steps)
	}, nil
}

func (c *config) bodySteps(path string) ([]string, error) {
	steps := strings.Split(path, ".")
	if slices.Contains(steps, "") {
		return nil, errors.New("a name in it is empty; write {body.sku}, {body.items.0.sku} or {body.items.*.sku}")
	}
	return steps, nil
}

// jsonBody returns the body for a key, as the handler sees it. A body that the framework would not
// parse as JSON is refused. The handler could find another value in such a body, and then its work
// would not be under the right lock.
func (c *config) jsonBody(r *http.Request) ([]byte, error) {
	if !c.reader.Sources.JSON(r) {
		return nil, errNotJSONType
	}
	raw, err := contents(r, c.maxBody)
	if err != nil || len(raw) == 0 {
		return nil, err
	}
	data, err := c.reader.Sources.Body(r, raw, c.maxBody)
	if err == nil && int64(len(data)) > c.maxBody {
		return nil, errBodyTooLarge
	}
	return data, err
}

// netHTTP reads requests as the methods of net/http do.
type netHTTP struct{ framework.NetHTTP }

var _ framework.Sources = netHTTP{}

// Param returns r.PathValue.
func (netHTTP) Param(r *http.Request, name string) (value string, declared bool) {
	value = r.PathValue(name)
	return value, value != "" || slices.Contains(braced(r.Pattern), name)
}

// IP returns the host of r.RemoteAddr.
func (netHTTP) IP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// JSON reports whether r has no type, or the type of JSON. Handlers pass the body to encoding/json
// themselves, whatever its type is. A handler that parses a form needs the type of a form.
func (netHTTP) JSON(r *http.Request) bool {
	contentType := r.Header.Get("Content-Type")
	if contentType == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}
