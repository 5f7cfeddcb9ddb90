package fiberlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/binder"
	"github.com/gofiber/utils/v2"

	"github.com/latchkit/latchkit/internal/framework"
)

// readStream reads the body of a request in an app with StreamRequestBody, because bytes cannot be
// put back into fasthttp's stream.
func readStream(c fiber.Ctx) error {
	from := c.Request()
	if !from.IsBodyStream() {
		return nil
	}
	limit := c.App().Config().BodyLimit
	data, err := io.ReadAll(io.LimitReader(from.BodyStream(), int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fiber.ErrRequestEntityTooLarge
	}
	if err == nil {
		from.SetBody(data)
	}
	return err
}

// requestOf converts Fiber's request to a request of net/http. It copies all parts, because
// fasthttp reuses their memory when the handler has returned.
func requestOf(c fiber.Ctx) *http.Request {
	from := c.Request()
	path, query := from.URI().Path(), from.URI().QueryString()
	r := &http.Request{
		Method: c.Method(), RequestURI: string(from.RequestURI()), Host: string(from.Host()),
		URL:        &url.URL{Path: string(path), RawPath: string(from.URI().PathOriginal()), RawQuery: string(query)},
		RemoteAddr: c.RequestCtx().RemoteAddr().String(), Header: make(http.Header),
		Body: io.NopCloser(bytes.NewReader(bodyOf(c))), ContentLength: int64(from.Header.ContentLength()),
	}
	for name, value := range from.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r
}

// bodyOf returns the body. Of a multipart form whose bytes fasthttp has forgotten, bodyOf returns a
// text that is equal for equal forms, except for the content of files.
func bodyOf(c fiber.Ctx) []byte {
	from := c.Request()
	if len(from.Header.MultipartFormBoundary()) > 0 && len(from.Header.ContentEncoding()) == 0 && !c.App().Config().DisablePreParseMultipartForm {
		if form, err := from.MultipartForm(); err == nil {
			text, _ := json.Marshal(form) // it has only texts and numbers
			return text
		}
	}
	return bytes.Clone(from.Body())
}

// sources reads the parts of keys with Fiber's methods. It copies Fiber's strings, which are valid
// only until the handler returns. c.Query returns the first of several values, and c.Bind().Query
// the last, of all names that differ only in their case or, in a query, in brackets. A part is
// refused unless all these values are equal.
type sources struct{}

// Param returns c.Params.
func (sources) Param(r *http.Request, name string) (string, bool) {
	c := Ctx(r)
	if name == "*" || name == "+" {
		name += "1" // Fiber's name of the first wildcard
	}
	return strings.Clone(c.Params(name)), slices.Contains(c.Route().Params, name)
}

// Query returns c.Query.
func (sources) Query(r *http.Request, name string) (string, error) {
	c := Ctx(r)
	return only(name, c.Query(name), c.RequestCtx().QueryArgs().All())
}

// Header returns c.Get.
func (sources) Header(r *http.Request, name string) (string, error) {
	c := Ctx(r)
	return only(name, c.Get(name), c.Request().Header.All())
}

// Cookie returns c.Cookies.
func (sources) Cookie(r *http.Request, name string) (string, error) {
	c := Ctx(r)
	return only(name, c.Cookies(name), c.Request().Header.Cookies())
}

// only returns a copy of the value of name, unless pairs have another value for which a binder
// could take this name.
func only(name, value string, pairs iter.Seq2[[]byte, []byte]) (string, error) {
	name = plain.Replace(name)
	for k, v := range pairs {
		if string(v) != value && strings.EqualFold(plain.Replace(string(k)), name) {
			return "", errors.New("it comes several times, with different values")
		}
	}
	return strings.Clone(value), nil
}

// plain removes what the binders ignore in a name, and a bit more: to refuse too much is harmless.
var plain = strings.NewReplacer("[", "", "]", "", ".", "")

// IP returns c.IP.
func (sources) IP(r *http.Request) string { return strings.Clone(Ctx(r).IP()) }

// JSON reports whether c.Bind().Body parses the body as JSON.
func (sources) JSON(r *http.Request) bool {
	contentType := strings.ToLower(string(Ctx(r).Request().Header.ContentType()))
	return binder.FilterFlags(utils.ParseVendorSpecificContentType(contentType)) == fiber.MIMEApplicationJSON
}

// Body returns the body, unless c.Body would decode it.
func (sources) Body(r *http.Request, raw []byte, _ int64) ([]byte, error) {
	if len(r.Header["Content-Encoding"]) > 0 {
		return nil, framework.ErrEncoding
	}
	return raw, nil
}
