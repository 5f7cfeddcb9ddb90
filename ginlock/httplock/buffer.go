package httplock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/latchkit/latchkit/locker"
)

// errResponseTooLarge is answered 500, and what a handler's Write returns.
var errResponseTooLarge = errors.New("the response is longer than may be held back")

// held is a response that is held back.
type held struct {
	to     http.ResponseWriter
	header http.Header
	status int // 0: not set
	body   bytes.Buffer
	most   int

	streams bool // what is too long goes out as it is written
	over    bool // it became too long
}

func (h *held) Header() http.Header { return h.header }

func (h *held) Status() int {
	if h.status == 0 {
		return http.StatusOK
	}
	return h.status
}

func (h *held) Written() bool { return h.status != 0 }

// WriteHeader drops informational responses: they would tell of a reply that may never come.
func (h *held) WriteHeader(status int) {
	if h.status == 0 && status >= 200 {
		h.status = status
	}
}

func (h *held) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	switch {
	case h.over && h.streams:
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

// Flush does nothing, so that handlers which flush as they go can be held back as well.
func (h *held) Flush() {}

// send lets the response go.
func (h *held) send() {
	if h.over {
		return
	}
	if h.status == 0 { // whoever is outside may still write
		h.copyHeader()
		return
	}
	h.begin()
}

// begin sends what there is.
func (h *held) begin() {
	h.copyHeader()
	h.to.WriteHeader(h.status)
	if h.body.Len() > 0 {
		_, _ = h.to.Write(h.body.Bytes()) // a client that is gone cannot be told
	}
}

func (h *held) copyHeader() {
	header := h.to.Header()
	clear(header)
	maps.Copy(header, h.header)
}

// changed returns the headers that the handler has set, without those that were there before.
func (h *held) changed() http.Header {
	before, changed := h.to.Header(), make(http.Header)
	for name, values := range h.header {
		if !slices.Equal(values, before[name]) {
			changed[name] = values
		}
	}
	return changed
}

// buffered runs the handler, gives the lock up, and only then lets the response go: the release is the question whether the
// lock was held until then, and its answer the proof. A handler that failed has nothing to be proud of, but its reply may tell
// what was seen under the lock, so it needs the proof as well.
func (m *middleware) buffered(ctx context.Context, out response, r *http.Request, next http.Handler) error {
	lease, err := leaseOf(ctx)
	if err != nil {
		return err
	}
	h := &held{to: out, header: out.Header().Clone(), most: cmp.Or(m.maxResponse, defaultMaxResponse), streams: m.store != nil}
	if m.store == nil {
		m.call(ctx, h, r, next)
	} else if err := m.remember(ctx, h, r, next); err != nil {
		return err
	}
	if h.over && !h.streams {
		return errResponseTooLarge
	}
	succeeded := m.succeeded(r, h.Status())
	release := lease.Release
	if succeeded {
		release = lease.Complete
	}
	if err := release(r.Context()); err != nil { // as Run does, outside of the work
		return err
	}
	h.send()
	if !succeeded {
		return errFailed
	}
	return nil
}

// leaseOf finds the lease in the context of Run's function, which always has one.
func leaseOf(ctx context.Context) (*locker.Lease, error) {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return nil, locker.ErrLost
	}
	return lease, nil
}

// defaultMaxResponse bounds the responses that a Store remembers.
const defaultMaxResponse = 1 << 20
