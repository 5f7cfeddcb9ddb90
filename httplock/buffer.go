package httplock

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"
)

// errResponseTooLarge causes a reply with the status 500. The handler's Write also returns this
// error.
var errResponseTooLarge = errors.New("the response is longer than may be held back")

// callHeld calls the handler. When the response is too long, some handlers abort it by a panic,
// as httputil.ReverseProxy does. callHeld ends this panic, so that the reply 500 can be sent.
func (m *middleware) callHeld(
	ctx context.Context, waited time.Duration, out response, h *held, r *http.Request, next http.Handler,
) (stalled bool) {
	defer func() {
		if !h.over {
			return
		}
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	return m.call(ctx, waited, out, h, r, next)
}

// defaultMaxResponse is the largest size of a response that a Store keeps, in bytes.
const defaultMaxResponse = 64 << 10

// held is a response that is held back.
type held struct {
	to     http.ResponseWriter
	header http.Header
	status int // 0: not set
	body   bytes.Buffer
	most   int

	streams bool // a response that is too long is sent as it is written
	over    bool // the response became too long
	sent    bool // the buffered part was sent; the rest is sent as it is written
}

func (h *held) Header() http.Header {
	if h.sent || h.over && h.streams {
		return h.to.Header()
	}
	return h.header
}

func (h *held) Status() int {
	if h.status == 0 {
		return http.StatusOK
	}
	return h.status
}

func (h *held) Written() bool { return h.status != 0 }

// WriteHeader drops informational responses, because the reply that they announce may never come.
func (h *held) WriteHeader(status int) {
	if h.status != 0 || status < 200 {
		return
	}
	h.status = status
	if h.sent {
		h.to.WriteHeader(status)
	}
}

func (h *held) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	switch {
	case h.sent || h.over && h.streams:
		return h.to.Write(p)
	case h.over || h.body.Len()+len(p) > h.most && !h.streams:
		h.over = true
		return 0, errResponseTooLarge
	case h.body.Len()+len(p) > h.most:
		h.over = true
		h.begin()
		return h.to.Write(p)
	default:
		return h.body.Write(p)
	}
}

// Flush does nothing while the response is held back. So the responses of handlers that flush can
// be held back, too.
func (h *held) Flush() {
	if h.sent || h.over && h.streams {
		_ = http.NewResponseController(h.to).Flush() // the method Flush of an http.Flusher returns no error
	}
}

// SetReadDeadline sets the read deadline of the connection. It is for http.ResponseController:
// while the response is held back, a handler can change nothing of the connection but its
// deadlines.
func (h *held) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(h.to).SetReadDeadline(t)
}

// SetWriteDeadline sets the write deadline of the connection.
func (h *held) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(h.to).SetWriteDeadline(t)
}

// send sends the response. If the handler has written nothing, an outer middleware may still write
// the reply, which is then sent as it is written.
func (h *held) send() {
	h.sent = true
	if h.over {
		return
	}
	if h.status == 0 {
		h.copyHeader()
		return
	}
	h.begin()
}

// begin sends the part of the response that was written so far.
func (h *held) begin() {
	h.copyHeader()
	h.to.WriteHeader(h.status)
	if h.body.Len() > 0 {
		_, _ = h.to.Write(h.body.Bytes()) // a client that has left gets no reply
	}
}

func (h *held) copyHeader() {
	header := h.to.Header()
	clear(header)
	maps.Copy(header, h.header)
}

// changed returns the headers that the handler has added or changed.
func (h *held) changed() http.Header {
	before, changed := h.to.Header(), make(http.Header)
	for name, values := range h.header {
		if !slices.Equal(values, before[name]) {
			changed[name] = values
		}
	}
	return changed
}
