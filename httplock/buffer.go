package httplock

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"
)

// errEscaped is the error of a handler that has written to the response of an outer middleware.
var errEscaped = errors.New("the handler has written past the response that is held back, " +
	"as gin.Engine.HandleContext makes it do; so the client got the response at once, " +
	"and it cannot be repeated; call the other handler directly, and not through the router")

// escaped reports that the handler has replied by out itself, although its response was to be held
// back, and whether it has succeeded by the status of that reply.
func (m *middleware) escaped(out response, r *http.Request) (succeeded bool) {
	m.report(r, escaped.problem(errEscaped))
	return out.Status() < http.StatusBadRequest
}

// maxStored is the largest size of a response that a Store keeps, in bytes.
const maxStored = 64 << 10

// held is a response that is held back until it is stored.
type held struct {
	to     http.ResponseWriter
	header http.Header
	status int         // 0: not set
	sealed http.Header // the header when the status was set
	body   bytes.Buffer
	whole  bool // a response that is too long is held back, too: until its COMMIT, or as its framework does

	over bool // the response became too long, so it is sent as it is written
	sent bool // the handler has returned; the rest is sent as it is written
}

// newHeld returns a response that is held back, and sent to out later.
func newHeld(out response, whole bool) *held {
	return &held{to: out, header: out.Header().Clone(), whole: whole}
}

func (h *held) Header() http.Header {
	if h.sent || h.over {
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
	h.status, h.sealed = status, h.header.Clone()
	if h.sent {
		h.to.WriteHeader(status)
	}
}

func (h *held) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	switch {
	case h.sent || h.over:
		return h.to.Write(p)
	case h.body.Len()+len(p) > maxStored && !h.whole:
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
	if h.sent || h.over {
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
	switch {
	case h.over:
	case h.status == 0:
		h.copy(h.header)
	default:
		h.begin()
	}
}

// begin sends the part of the response that was written so far.
func (h *held) begin() {
	h.copy(h.sealed)
	h.to.WriteHeader(h.status)
	if h.body.Len() > 0 {
		_, _ = h.to.Write(h.body.Bytes()) // a client that has left gets no reply
	}
}

func (h *held) copy(from http.Header) {
	header := h.to.Header()
	clear(header)
	maps.Copy(header, from)
}

// changed returns the headers that the handler has added or changed before it has set the status. A
// header without values is one that the handler has removed, or, as for net/http, one that must not
// be sent.
func (h *held) changed() http.Header {
	before, changed, now := h.to.Header(), make(http.Header), h.sealed
	if h.status == 0 {
		now = h.header
	}
	for name, values := range now {
		if old, had := before[name]; !had || !slices.Equal(values, old) {
			changed[name] = values
		}
	}
	for name := range before {
		if _, kept := now[name]; !kept {
			changed[name] = nil
		}
	}
	return changed
}
