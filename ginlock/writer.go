package ginlock

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// writer is Gin's writer over a response that httplock holds back.
type writer struct {
	gin.ResponseWriter // for the methods that need no change while a response is held back

	to     http.ResponseWriter
	status int
	size   int // -1: nothing was written, as in Gin's own writer
}

var _ gin.ResponseWriter = (*writer)(nil)

func (w *writer) Header() http.Header { return w.to.Header() }
func (w *writer) Status() int         { return w.status }
func (w *writer) Size() int           { return w.size }
func (w *writer) Written() bool       { return w.size >= 0 }

// WriteHeader only notes the status, as Gin's own writer does.
func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.to.WriteHeader(w.status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.to, s)
	w.size += n
	return n, err
}

func (w *writer) Flush() { w.WriteHeaderNow() }

// Hijack is refused: a connection cannot be held back.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// Unwrap returns the response that is held back, so that http.ResponseController does not bypass
// it.
func (w *writer) Unwrap() http.ResponseWriter { return w.to }

// settle forwards a status that came without a body. It does not forward Gin's initial status,
// which may still change.
func (w *writer) settle() {
	if w.status != http.StatusOK {
		w.WriteHeaderNow()
	}
}
