package httplock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/internal/errtype"
)

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
	// errSlowBody causes a reply with the status 408.
	errSlowBody = errors.New("the body did not arrive in time")
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
	if tooLarge, ok := errtype.As[*http.MaxBytesError](err); ok { // the error of an http.MaxBytesHandler around this middleware
		return fmt.Errorf("%w: %w", errBodyTooLarge, tooLarge)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // the server's ReadTimeout was over
		return fmt.Errorf("%w: %w", errSlowBody, err)
	case r.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF):
		return errLeft
	}
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

// jsonBody returns the body for a key. A body that is not JSON is refused. The handler could find
// another value in such a body, and then its work would not be under the right lock.
func (c *config) jsonBody(r *http.Request) ([]byte, error) {
	if !c.readsJSON(r) {
		return nil, errNotJSONType
	}
	return contents(r, c.maxBody)
}

// readsJSON reports whether the handler reads the body of r as JSON. A handler of net/http passes
// the body to encoding/json, whatever its type is, so a body without a type is accepted. The
// binding of a framework chooses its parser by the method and by the exact text of the type, and
// may read the query instead of the body. So the framework itself must say that it reads JSON.
func (c *config) readsJSON(r *http.Request) bool {
	contentType := r.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(contentType)
	if err == nil && slices.Contains(c.bodyTypes, media) {
		return true
	}
	isJSON := contentType == "" || err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
	return isJSON && (c.reader.JSON == nil || c.reader.JSON(r))
}
