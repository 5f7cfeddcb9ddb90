package fiberlock

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/valyala/fasthttp"
)

// reply is the response that httplock writes: a Problem, a stored response, or a response that was
// held back. If httplock writes a reply, this reply replaces the response of Fiber's handlers.
type reply struct {
	header http.Header
	before http.Header // headers that outer middlewares have set
	status int         // 0: httplock has written nothing
	body   bytes.Buffer
}

func newReply(resp *fasthttp.Response) *reply {
	before := headerOf(resp)
	before.Del("Content-Type") // this is only fasthttp's default
	return &reply{header: before.Clone(), before: before}
}

func headerOf(resp *fasthttp.Response) http.Header {
	h := make(http.Header)
	for name, value := range resp.Header.All() {
		h.Add(string(name), string(value))
	}
	for _, name := range []string{"Content-Length", "Date", "Connection", "Transfer-Encoding"} { // fasthttp sets these headers itself
		h.Del(name)
	}
	return h
}

// Header returns the headers that will be sent.
func (w *reply) Header() http.Header { return w.header }

// Status returns the status that was written. httplock calls Status to learn whether the reply has
// begun.
func (w *reply) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// Written reports whether the reply has begun. httplock calls Written, because httplock does not
// replace a reply that has begun.
func (w *reply) Written() bool { return w.status != 0 }

// WriteHeader records the status.
func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

// Write collects the body.
func (w *reply) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// send writes the reply w into resp. If httplock has written nothing, send only adds httplock's
// headers.
func (w *reply) send(resp *fasthttp.Response) {
	if w.status == 0 {
		for name, values := range w.header {
			if !slices.Equal(values, w.before[name]) {
				add(resp, name, values[min(len(w.before[name]), len(values)):])
			}
		}
		return
	}
	closes := resp.ConnectionClose()
	resp.Reset()
	if closes {
		resp.SetConnectionClose()
	}
	for name, values := range w.header {
		add(resp, name, values)
	}
	resp.SetStatusCode(w.status)
	resp.SetBodyRaw(w.body.Bytes())
}

func add(resp *fasthttp.Response, name string, values []string) {
	for _, v := range values {
		resp.Header.Add(name, v)
	}
}

// copyTo writes the response of Fiber's handlers to w, where httplock holds back the response.
// It reads a streamed body to its end. The response 101 of a handler that hijacks the
// connection has no body, and stays where it is. copyTo returns the error of a stream that failed,
// or that ended before or after its size. It ignores errors of w, because httplock itself reports a
// response that is too long.
func copyTo(w http.ResponseWriter, resp *fasthttp.Response) error {
	if resp.StatusCode() == http.StatusSwitchingProtocols {
		return nil
	}
	header := w.Header()
	timing := header["Server-Timing"] // httplock has set this header
	maps.Copy(header, headerOf(resp))
	if len(timing) > 0 && !slices.Equal(timing, header["Server-Timing"]) {
		header["Server-Timing"] = append(timing, header["Server-Timing"]...)
	}
	w.WriteHeader(resp.StatusCode())
	if !resp.IsBodyStream() {
		_, _ = w.Write(resp.Body())
		return nil
	}
	size := int64(resp.Header.ContentLength()) // negative: unknown
	from := &stream{Reader: resp.BodyStream()}
	n, err := io.Copy(w, from)
	_ = resp.CloseBodyStream()
	if err == nil && size >= 0 && n != size {
		return fmt.Errorf("the stream had %d bytes instead of %d", n, size)
	}
	return from.err
}

// stream tells the errors of a stream from the errors of the writer to which it is copied.
type stream struct {
	io.Reader
	err error
}

// Read records the error of the stream.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != io.EOF {
		s.err = err
	}
	return n, err
}
