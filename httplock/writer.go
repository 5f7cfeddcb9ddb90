package httplock

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/checked"
	"github.com/latchkit/latchkit/internal/framework"
)

// ErrStalled is the cause of a handler's context when the client makes no progress for the time of
// [WithStallTimeout]. Such a client has sent nothing of the body that the handler reads, or has
// taken too little of the response.
var ErrStalled = errors.New("the client makes no progress")

// pace is the context that the handler gets: it ends with the lock, limits slow clients, and
// carries the wait for [Waited]. It limits the time for which the client can block the handler. The
// time in which the handler does other things does not count.
type pace struct {
	context.Context
	end     context.CancelCauseFunc
	request context.Context // ends when the client leaves
	limit   time.Duration   // 0: no limit
	waited  time.Duration   // how long the request has waited for the lock
	client  response
	writer  pacedWriter // writes to the field client

	stalled atomic.Bool
	streams atomic.Bool          // the handler has flushed
	unsent  atomic.Pointer[lost] // the first write that did not reach the client; nil: none

	mu   sync.Mutex // held by a time limit that ends a read or write
	over bool       // the handler has returned
}

// lost is a write that did not reach the client.
type lost struct {
	err error
	at  time.Time
}

// newPace returns the pace of a handler for the request with the context request. ctx ends with
// the lock, and a look at it looks at the lease. So does a look at the pace.
func newPace(ctx, request context.Context, waited time.Duration, client response, limit time.Duration) *pace {
	p := &pace{request: request, limit: limit, waited: waited, client: client}
	p.writer = pacedWriter{client, p}
	p.Context, p.end = checked.WithCancelCause(ctx, ctx)
	return p
}

// Value returns the pace itself for a waitedKey, and values of the outer context for other keys.
func (p *pace) Value(k any) any {
	if _, ok := k.(waitedKey); ok {
		return p
	}
	return p.Context.Value(k)
}

// stop is called when the handler has returned. It waits for a time limit that ends a read or
// write, because frameworks use a ResponseWriter again for other requests.
func (p *pace) stop() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.end(context.Canceled)
}

// untold is the time for which a handler does not learn that its response does not reach the
// client. In this time, it can write the rest of a response, as it would write a response that is
// short enough for net/http's buffer. If it got the error, it could pass the error on, and a
// middleware could roll back the work that counts as done. After this time, writes fail, so that a
// handler ends that writes until a write fails.
const untold = time.Second

// failed returns what the handler gets for err, the error of a write to the client. A handler that
// has flushed sends a stream, which ends by the error of a write.
func (p *pace) failed(err error) error {
	told := framework.OnlyUnsent(err) // by the writer of a lock outside
	if !told && !p.gone(err) {
		return err
	}
	p.unsent.CompareAndSwap(nil, &lost{err, time.Now()})
	if told || p.streams.Load() || time.Since(p.unsent.Load().at) >= untold {
		return framework.Unsent(err)
	}
	return nil
}

// gone reports whether err, the error of a write, says that the client does not get the response.
// Other errors tell the handler that it has made a mistake.
func (p *pace) gone(err error) bool {
	for _, mistake := range [...]error{http.ErrBodyNotAllowed, http.ErrContentLength, http.ErrHijacked} {
		if errors.Is(err, mistake) {
			return false
		}
	}
	if p.stalled.Load() || p.request.Err() != nil { // net/http ends this context before the write returns
		return true
	}
	_, ok := errors.AsType[net.Error](err) // of a file that is sent without a buffer, or of a deadline
	return ok
}

// reading starts the time limit of a read from the client, and returns a function that stops the
// limit.
func (p *pace) reading() (end func() bool) {
	return p.within(func(c *http.ResponseController) error { return c.SetReadDeadline(past) })
}

// writing starts the time limit of a write to the client, and returns a function that stops the
// limit.
func (p *pace) writing() (end func() bool) {
	return p.within(func(c *http.ResponseController) error { return c.SetWriteDeadline(past) })
}

// past is a deadline that ends a read or write at once.
var past = time.Unix(1, 0)

// within starts the time limit of a read or write of the handler, and returns a function that stops
// the limit. If the read or write takes longer than the limit, within ends the handler's context,
// and calls interrupt to end the read or write. If the server does not support deadlines, only the
// context ends. Such a server must have time-outs of its own for reads and writes.
func (p *pace) within(interrupt func(*http.ResponseController) error) (end func() bool) {
	if p.limit == 0 {
		return func() bool { return true }
	}
	return time.AfterFunc(p.limit, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over {
			return
		}
		p.stalled.Store(true)
		p.end(ErrStalled)
		_ = interrupt(http.NewResponseController(p.client))
	}).Stop
}

// body returns b with the time limit. A body that was read before the lock was taken needs no
// limit.
func (p *pace) body(b io.ReadCloser) io.ReadCloser {
	if b == nil || b == http.NoBody {
		return b
	}
	if _, read := b.(*body); read {
		return b
	}
	return &pacedBody{b, p}
}

type pacedBody struct {
	io.ReadCloser
	pace *pace
}

func (b *pacedBody) Read(p []byte) (int, error) {
	defer b.pace.reading()()
	return b.ReadCloser.Read(p)
}

// pacedWriter is the writer to the client while the lock is held.
type pacedWriter struct {
	response
	pace *pace
}

// maxPaced is the number of bytes that a client must take within the limit.
const maxPaced = 64 << 10

func (w *pacedWriter) Write(b []byte) (int, error) { return w.PaceWrite(w.response, b) }

// PaceWrite writes b to the client through the parameter to, under the time limit. Adapters that
// have a writer of their own call PaceWrite.
func (w *pacedWriter) PaceWrite(to io.Writer, b []byte) (n int, err error) {
	if lost := w.pace.unsent.Load(); lost != nil {
		if err := w.pace.failed(lost.err); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	for {
		part := b[n:min(len(b), n+maxPaced)]
		end := w.pace.writing()
		written, err := to.Write(part)
		end()
		n += written
		if err != nil {
			if err := w.pace.failed(err); err != nil {
				return n, err
			}
			return len(b), nil
		}
		if n >= len(b) {
			return n, nil
		}
	}
}

func (w *pacedWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// ReadFrom copies a file in parts, because each part shows that the client makes progress. net/http
// can still send each part without a buffer. Other sources may be quiet for a long time, so
// ReadFrom reads them outside of the time limit.
func (w *pacedWriter) ReadFrom(r io.Reader) (n int64, err error) {
	if !isFile(r) || w.pace.unsent.Load() != nil {
		n, err = io.Copy(struct{ io.Writer }{w}, r)
		if n == 0 && err == nil { // the copy of an empty source begins the reply as well
			_, err = io.Copy(w.response, struct{ io.Reader }{http.NoBody})
		}
		return n, err
	}
	for {
		part := &io.LimitedReader{R: r, N: maxPaced}
		end := w.pace.writing()
		written, err := io.Copy(w.response, part)
		end()
		if err != nil {
			rest, err := w.rest(r, err)
			if err != nil {
				return n + written, err
			}
			return n + maxPaced - part.N + rest, nil
		}
		if n += written; part.N > 0 {
			return n, nil
		}
	}
}

// rest copies the rest of the file r after the copy of a part has failed with err. Only a further
// read tells whether the file has failed, or the client.
func (w *pacedWriter) rest(r io.Reader, err error) (n int64, _ error) {
	var next [1]byte
	read, failed := r.Read(next[:])
	if failed != nil && failed != io.EOF {
		return 0, failed
	}
	if err := w.pace.failed(err); err != nil {
		return 0, err
	}
	n, err = io.Copy(struct{ io.Writer }{w}, r)
	return n + int64(read), err
}

// isFile reports whether r reads a regular file. An *os.File can also be a pipe.
func isFile(r io.Reader) bool {
	if part, ok := r.(*io.LimitedReader); ok {
		r = part.R
	}
	f, ok := r.(fs.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// Flush sends what is buffered.
func (w *pacedWriter) Flush() { _ = w.FlushError() }

// FlushError sends what is buffered. It is for http.ResponseController.
func (w *pacedWriter) FlushError() error {
	w.pace.streams.Store(true)
	defer w.pace.writing()()
	return http.NewResponseController(w.response).Flush()
}

// Hijack takes over the connection. From then on, the connection has no time limit.
func (w *pacedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.response).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.response }

type waitedKey struct{}

// Waited returns how long the request of ctx has waited for its lock. If the request has several
// locks, Waited returns the wait for the innermost lock. Waited is for logs and traces.
func Waited(ctx context.Context) (wait time.Duration, locked bool) {
	p, ok := ctx.Value(waitedKey{}).(*pace)
	if !ok {
		return 0, false
	}
	return p.waited, true
}

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

// Flush, Hijack and Unwrap are for handlers that use them, directly or by http.ResponseController.
func (w *watched) Flush() {
	w.begin()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the method Flush of an http.Flusher returns no error
}

// Hijack takes over the connection. Then no reply is possible any more. Over HTTP/2 it fails.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.escaped = w.escaped || err == nil
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
