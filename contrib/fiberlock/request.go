package fiberlock

import (
	"bytes"
	"io"
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v3"
)

// request converts Fiber's request to a request of net/http. It copies all parts, because fasthttp
// reuses their memory when the handler has returned.
func (v *visit) request() *http.Request {
	from := &v.c.RequestCtx().Request
	uri := string(from.RequestURI())
	r := &http.Request{
		Method: string(from.Header.Method()), RequestURI: uri, Host: string(from.Host()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		RemoteAddr: v.c.RequestCtx().RemoteAddr().String(),
		Header:     make(http.Header), Body: http.NoBody, ContentLength: int64(from.Header.ContentLength()),
	}
	var err error
	if r.URL, err = url.ParseRequestURI(uri); err != nil {
		r.URL = &url.URL{Path: string(from.URI().Path()), RawQuery: string(from.URI().QueryString())}
	}
	for name, value := range from.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	switch {
	case from.IsBodyStream():
		v.body = &lazyBody{from: from.BodyStream()}
		r.Body = v.body
	case len(from.Body()) > 0:
		r.Body = io.NopCloser(bytes.NewReader(from.Body()))
	}
	return r.WithContext(v)
}

// handBack restores a body that httplock has read.
func (v *visit) handBack(r *http.Request) error {
	if v.body == nil || !v.body.begun {
		return nil
	}
	if !v.body.whole {
		// The rest of the body has not arrived yet, and must not be read as the next request.
		v.c.RequestCtx().SetConnectionClose()
		return fiber.ErrRequestEntityTooLarge
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	v.c.RequestCtx().Request.SetBody(data)
	return nil
}

// lazyBody is the body of a request in an app with StreamRequestBody. It records how much was
// read, because bytes cannot be put back into fasthttp's stream.
type lazyBody struct {
	from         io.Reader
	begun, whole bool
}

// Read records how much of the body was read.
func (b *lazyBody) Read(p []byte) (int, error) {
	b.begun = true
	n, err := b.from.Read(p)
	b.whole = b.whole || err == io.EOF
	return n, err
}

// Close leaves the stream to fasthttp.
func (b *lazyBody) Close() error { return nil }
