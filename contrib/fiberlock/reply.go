package fiberlock

import (
	"bytes"
	"cmp"
	"net/http"

	"github.com/valyala/fasthttp"
)

// reply is the response that httplock writes: a Problem, or a stored response. If httplock writes
// one, it replaces the response of Fiber's handlers.
type reply struct {
	header http.Header
	before http.Header // headers that outer middlewares have set
	status int         // 0: httplock has written nothing
	past   int         // the status of a handler's response that is sent although it is not stored; 0: none
	seen   int         // the status of a handler's response while nothing is stored; 0: none
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

// Status returns the status that will be sent.
func (w *reply) Status() int { return cmp.Or(w.status, w.past, w.seen, http.StatusOK) }

// Written tells httplock that the reply has begun, so that it writes no other one.
func (w *reply) Written() bool { return w.status != 0 || w.past != 0 }

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

// send writes the reply w into resp. If httplock has written nothing, send only adds the headers
// that httplock has added.
func (w *reply) send(resp *fasthttp.Response) {
	if w.status != 0 {
		closes := resp.ConnectionClose()
		resp.Reset()
		if closes {
			resp.SetConnectionClose()
		}
		resp.SetStatusCode(w.status)
		resp.SetBodyRaw(w.body.Bytes())
	}
	for name, values := range w.header {
		if w.status == 0 {
			values = values[min(len(w.before[name]), len(values)):]
		}
		for _, v := range values {
			resp.Header.Add(name, v)
		}
	}
}
