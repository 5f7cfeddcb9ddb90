package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/latchkit/latchkit/locker/key"
)

// body is a request's body that was read for the key, and is handed on as if it had not been.
type body struct {
	bytes.Reader
	data   []byte
	origin io.Closer
}

func (b *body) Close() error { return b.origin.Close() }

// errBodyTooLarge is answered 413.
var errBodyTooLarge = errors.New("the body is larger than is read for it")

// contents returns the whole body of r, of at most that many bytes. It stays readable from its beginning.
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
	data, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, errors.New("the body ended before its time")
	}
	if int64(len(data)) > most {
		r.Body = struct { // whoever replies, or goes on without the key, may want all of it
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), r.Body), r.Body}
		return nil, errBodyTooLarge
	}
	b := &body{data: data, origin: r.Body}
	b.Reset(data)
	r.Body = b
	return data, nil
}

func (c *config) bindBody(path string) (read, error) {
	most := c.maxBody
	steps := strings.Split(path, ".")
	if slices.Contains(steps, "") {
		return nil, errors.New("a name in it is empty; write {body.sku}, or {body.items.0.sku}")
	}
	return func(_ context.Context, r *http.Request) (string, error) {
		data, err := contents(r, most)
		if err != nil || len(data) == 0 {
			return "", err
		}
		return member(data, steps)
	}, nil
}

var (
	errNotJSON   = errors.New("the body is not JSON")
	errAmbiguous = errors.New("it is there more than once")
)

// member finds what steps lead to. encoding/json, with which handlers bind their bodies, takes the last of several members
// and ignores the case of their names, and other libraries do not: a body in which they could find different values would be
// locked under one and worked on under the other, so it is refused.
func member(data []byte, steps []string) (string, error) {
	for _, step := range steps {
		var err error
		if data, err = inside(data, step); err != nil || data == nil {
			return "", err
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return "", errNotJSON
	}
	text, err := key.Format(value)
	if err != nil {
		return "", errors.New("it is no text, number or boolean")
	}
	return text, nil
}

// inside returns the member of an object, or the element of an array, that name names; nil when there is none.
func inside(data []byte, name string) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	open, err := d.Token()
	if err != nil {
		return nil, errNotJSON
	}
	var found json.RawMessage
	for i := 0; d.More(); i++ {
		here := false
		switch open {
		case json.Delim('{'):
			token, err := d.Token()
			if err != nil {
				return nil, errNotJSON
			}
			member, _ := token.(string)
			here = strings.EqualFold(member, name)
		case json.Delim('['):
			here = strconv.Itoa(i) == name
		default:
			return nil, nil // a single value has no members
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errNotJSON
		}
		if here && found != nil {
			return nil, errAmbiguous
		}
		if here {
			found = value
		}
	}
	if _, ok := open.(json.Delim); !ok {
		return nil, nil
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, errNotJSON
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNotJSON // more than one value: who binds may take another one
	}
	return found, nil
}
