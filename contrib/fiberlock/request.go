package fiberlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/binder"
	"github.com/gofiber/utils/v2"
	"github.com/valyala/fasthttp"

	"github.com/latchkit/latchkit/internal/framework"
)

// request converts Fiber's request to a request of net/http. It copies all parts, because fasthttp
// reuses their memory when the handler has returned.
func (v *visit) request() *http.Request {
	from := &v.c.RequestCtx().Request
	uri := string(from.RequestURI())
	r := &http.Request{
		Method: v.c.Method(), RequestURI: uri, Host: string(from.Host()),
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
	default:
		if form, boundary := v.form(from); form != nil {
			r.Body = newFormBody(form, boundary)
		} else if body := from.Body(); len(body) > 0 {
			r.Body = io.NopCloser(bytes.NewReader(bytes.Clone(body)))
		}
	}
	return r.WithContext(v)
}

// form returns the multipart form of the request if fasthttp has read it, and forgotten its bytes.
// A form with a Content-Encoding is not read before the handler, so its bytes are still there, and
// stay encoded: MultipartForm would decode them without a limit.
func (v *visit) form(from *fasthttp.Request) (form *multipart.Form, boundary string) {
	boundary = string(from.Header.MultipartFormBoundary())
	if boundary == "" || len(from.Header.ContentEncoding()) > 0 || v.c.App().Config().DisablePreParseMultipartForm {
		return nil, ""
	}
	form, err := from.MultipartForm()
	if err != nil {
		return nil, ""
	}
	return form, boundary
}

// formBody is the text of a multipart form. fasthttp keeps large files on the disk, so they are
// read from there, and only as far as somebody reads the text.
type formBody struct {
	io.Reader
	files []*formFile
}

// newFormBody writes the parts in the order of their names, because a repeated request must be
// equal to the first one.
func newFormBody(form *multipart.Form, boundary string) *formBody {
	b, text, parts := &formBody{}, new(bytes.Buffer), []io.Reader{}
	flush := func() {
		parts = append(parts, text)
		text = new(bytes.Buffer)
	}
	w := multipart.NewWriter(writerFunc(func(p []byte) (int, error) { return text.Write(p) })) // never fails
	if w.SetBoundary(boundary) != nil {                                                        // Go does not write it
		_ = w.SetBoundary("latchkit") // not a random one: a repeated request must be equal
	}
	for _, name := range slices.Sorted(maps.Keys(form.Value)) {
		for _, value := range form.Value[name] {
			_ = w.WriteField(name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(form.File)) {
		for _, file := range form.File[name] {
			_, _ = w.CreatePart(file.Header)
			flush()
			opened := &formFile{header: file}
			b.files, parts = append(b.files, opened), append(parts, opened)
		}
	}
	_ = w.Close()
	flush()
	b.Reader = io.MultiReader(parts...)
	return b
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Close closes the files of which only a part was read.
func (b *formBody) Close() error {
	for _, f := range b.files {
		f.close()
	}
	return nil
}

// formFile is an uploaded file, which the first Read opens, and the last one closes.
type formFile struct {
	header *multipart.FileHeader
	file   multipart.File
}

func (f *formFile) Read(p []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = f.header.Open(); err != nil {
			return 0, err
		}
	}
	if n, err = f.file.Read(p); err == io.EOF {
		f.close()
	}
	return n, err
}

func (f *formFile) close() {
	if f.file != nil {
		_ = f.file.Close() // it was only read
	}
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

// sources reads the parts of keys with Fiber's methods. It copies Fiber's strings, because they are
// valid only until the handler returns, and a key may be used for longer.
//
// Fiber's methods and Fiber's binders read different values: c.Query returns the first of several
// values, and c.Bind().Query the last, of all names that differ only in their case or, in a query,
// in brackets. A part is refused unless all these values are equal.
type sources struct{}

var _ framework.Sources = sources{}

var errSeveral = errors.New("it comes several times, with different values")

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
			return "", errSeveral
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

// Body returns what c.Body returns: the body, decoded as the Content-Encoding says. c.Body decodes
// without a limit, and a short body can be decoded to gigabytes. So Body decodes by itself, and
// stops after most bytes. A body is refused if it is JSON both before and after, because a handler
// may also read c.BodyRaw.
func (sources) Body(r *http.Request, raw []byte, most int64) ([]byte, error) {
	encodings := string(Ctx(r).Request().Header.ContentEncoding())
	if encodings == "" {
		return raw, nil
	}
	decoded := raw
	for _, encoding := range slices.Backward(strings.Split(strings.ToLower(encodings), ",")) {
		encoding = strings.TrimSpace(encoding)
		if encoding == fiber.StrIdentity {
			continue
		}
		decode, known := decoders[encoding]
		if !known {
			return nil, framework.ErrEncoding
		}
		to := &limited{most: most}
		if _, err := decode(to, decoded); errors.Is(err, errTooLong) {
			return to.Bytes(), nil
		} else if err != nil {
			return nil, err
		}
		decoded = to.Bytes()
	}
	if !bytes.Equal(decoded, raw) && json.Valid(raw) {
		return nil, framework.ErrEncoding
	}
	return decoded, nil
}

// decoders has the functions by which Fiber decodes a body.
var decoders = map[string]func(w io.Writer, p []byte) (int, error){
	fiber.StrGzip: fasthttp.WriteGunzip, "x-gzip": fasthttp.WriteGunzip, fiber.StrDeflate: fasthttp.WriteInflate,
	fiber.StrBr: fasthttp.WriteUnbrotli, fiber.StrBrotli: fasthttp.WriteUnbrotli, fiber.StrZstd: fasthttp.WriteUnzstd,
}

// limited keeps what is written to it, until this is longer than most.
type limited struct {
	bytes.Buffer
	most int64
}

var errTooLong = errors.New("the decoded body is too long")

// Write fails when it has written more than most bytes.
func (l *limited) Write(p []byte) (int, error) {
	n, _ := l.Buffer.Write(p) // never fails
	if int64(l.Len()) > l.most {
		return n, errTooLong
	}
	return n, nil
}
