package httplock

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// showWait adds the header Server-Timing to the response if the request has waited for at least 1
// ms. Browsers show that header.
func showWait(wait time.Duration, header http.Header) {
	if wait >= time.Millisecond {
		ms := strconv.FormatFloat(float64(wait)/float64(time.Millisecond), 'f', 1, 64)
		header.Add("Server-Timing", "lock;dur="+ms)
	}
}

// response is a ResponseWriter that records its progress. Gin's ResponseWriter implements this
// interface.
type response interface {
	http.ResponseWriter
	// Status returns the status that was sent or will be sent: 200 if no status was set.
	Status() int
	// Written reports that the reply has begun and cannot be replaced.
	Written() bool
}

// watch returns w as a response, which records its progress.
func watch(w http.ResponseWriter) response {
	if r, ok := w.(response); ok {
		return r
	}
	return &watched{ResponseWriter: w}
}

// begun reports whether the reply has begun. The result is also right for a writer that collects
// the reply, such as gin-contrib/timeout's, whose own Written returns false.
func begun(out response) bool {
	if out.Written() {
		return true
	}
	sized, ok := out.(interface{ Size() int })
	return ok && sized.Size() > 0
}

// watched is a ResponseWriter of net/http, or of a middleware, with a record of its progress.
type watched struct {
	http.ResponseWriter
	status  int // 0: not written
	escaped bool
}

func (w *watched) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

func (w *watched) Written() bool { return w.status != 0 || w.escaped }

// WriteHeader forwards informational responses, which do not begin the reply.
func (w *watched) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) begin() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

func (w *watched) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

func (w *watched) WriteString(s string) (int, error) {
	w.begin()
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets net/http copy from a file without a buffer.
func (w *watched) ReadFrom(r io.Reader) (int64, error) {
	w.begin()
	return io.Copy(w.ResponseWriter, r)
}

// Flush, FlushError, Hijack and Unwrap are for handlers that use them, directly or by
// http.ResponseController.
func (w *watched) Flush() {
	_ = w.FlushError() // the method Flush of an http.Flusher returns no error
}

// FlushError sends what is buffered. Its error tells a stream that its client has left.
func (w *watched) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack takes over the connection. Then no reply is possible any more. Over HTTP/2 it fails.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.escaped = w.escaped || err == nil
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
