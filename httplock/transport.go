package httplock

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/sleep"
)

// A Transport is the http.RoundTripper of a client. If the server refuses a request, the Transport
// repeats it after the time in Retry-After. The zero value of a Transport is usable:
//
//	client := &http.Client{Transport: &httplock.Transport{IdempotencyKeys: true}}
//
// A Transport repeats a request whose reply has the status 409, 423, 429 or 503 and a Retry-After.
// Such a reply means that the server did nothing, and it names the time of the retry. If the reply
// is from this package, the Transport uses the member retry_after_ms, which is more exact. The
// pauses grow: the first pause is at least 100 ms, and each further pause is at least twice as long
// as the pause before it. A reply with a body of more than 64 KiB is not repeated, because its body
// is read before the pause; only the request's context limits the time of this read. The Transport
// returns this reply and all other replies, such as lock-lost, to the caller.
//
// A request with an Idempotency-Key, or with a method that is idempotent by RFC 9110, is also
// repeated after an error of the connection. Then it is unknown whether the server has served the
// request.
//
// A request is repeated only if its body can be read again through Request.GetBody. http.NewRequest
// sets GetBody for a bytes.Reader, a bytes.Buffer and a strings.Reader. A request with another body
// is sent once. The pauses end with the request's context. If a pause would end after the context's
// deadline, the last reply is returned at once. A Transport is safe for concurrent use.
type Transport struct {
	// Base sends each attempt. Default: http.DefaultTransport.
	Base http.RoundTripper
	// Retries is how many times a request is repeated; a negative number means never. Default: 6.
	Retries int
	// Within is the longest time from the first attempt to the last attempt. Default: 30 s.
	Within time.Duration
	// IdempotencyKeys adds an Idempotency-Key to each request whose method is not safe. All
	// attempts of a request have the same key. A request that has an Idempotency-Key keeps it. Set
	// IdempotencyKeys for servers that obey the header, such as servers with [NewIdempotency]. A
	// server that ignores the header may serve a repeated request twice. Default: no key is added.
	IdempotencyKeys bool
}

const (
	defaultRetries = 6
	defaultWithin  = 30 * time.Second
	// firstBackoff is the shortest first pause. Each further pause is at least twice as long as the
	// pause before it.
	firstBackoff = 100 * time.Millisecond
	// maxRefusal is the largest length of a refusal's body, in bytes.
	maxRefusal = 64 << 10
)

// RoundTrip sends r, and repeats it by the rules of the Transport. It returns the last reply or
// error.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	attempt := t.first(r)
	for tries := 0; ; tries++ {
		res, err := t.base().RoundTrip(attempt)
		pause, again := t.pause(attempt, res, err, tries)
		if !again || !t.allows(attempt, tries, began, pause) {
			return res, err
		}
		next, ok := anew(attempt)
		if !ok {
			return res, err
		}
		if !sleep.For(r.Context(), pause) {
			if next.Body != nil {
				_ = next.Body.Close() // a RoundTripper closes the body of each request
			}
			return res, err
		}
		attempt = next
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// first returns the request of the first attempt. It is r itself, or a copy of r with an
// Idempotency-Key, because r must not be changed.
func (t *Transport) first(r *http.Request) *http.Request {
	if !t.IdempotencyKeys || safe(r.Method) || r.Method == "" || r.Header.Get(idempotencyHeader) != "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set(idempotencyHeader, rand.Text())
	return r
}

// pause returns how long to wait before the next attempt. again is false if the request must not
// be repeated.
func (t *Transport) pause(r *http.Request, res *http.Response, err error, tries int) (pause time.Duration, again bool) {
	if err != nil {
		again = repeatable(r) && r.Context().Err() == nil
	} else {
		pause, again = advice(res)
	}
	pause = max(pause, firstBackoff<<min(tries, 6))
	// Clients that were refused together must not retry together. So a random time is added to the
	// pause.
	return pause + mathrand.N(pause/10+1), again
}

// allows returns true if Retries, Within and the context's deadline permit another attempt after
// the pause.
func (t *Transport) allows(r *http.Request, tries int, began time.Time, pause time.Duration) bool {
	retries, within := t.Retries, t.Within
	if retries == 0 {
		retries = defaultRetries
	}
	if within <= 0 {
		within = defaultWithin
	}
	at := time.Now().Add(pause)
	if deadline, ok := r.Context().Deadline(); ok && at.After(deadline) {
		return false // the last reply has more information than the end of the context
	}
	return tries < retries && at.Sub(began) <= within
}

// repeatable reports whether a request may be repeated although the server may have served it.
func repeatable(r *http.Request) bool {
	return safe(r.Method) || r.Method == "" || r.Method == http.MethodPut || r.Method == http.MethodDelete ||
		r.Header.Get(idempotencyHeader) != ""
}

// advice returns the time after which the server wants the request again.
func advice(res *http.Response) (pause time.Duration, ok bool) {
	switch res.StatusCode {
	case http.StatusConflict, http.StatusLocked, http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		return 0, false
	}
	if pause, ok = delay(res.Header.Get("Retry-After")); !ok {
		return 0, false
	}
	// The body is read now, so that the connection is free during the pause, and the reply can
	// still be returned.
	rest := res.Body
	text, err := io.ReadAll(io.LimitReader(rest, maxRefusal+1))
	if err != nil || len(text) > maxRefusal {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(text), rest), rest}
		return 0, false
	}
	_ = rest.Close() // the body was read to its end
	res.Body = io.NopCloser(bytes.NewReader(text))
	var p Problem
	if json.Unmarshal(text, &p) == nil && strings.HasPrefix(p.Type, typePrefix) && p.RetryAfterMS > 0 {
		pause = time.Duration(p.RetryAfterMS) * time.Millisecond
	}
	return pause, true
}

// delay reads a Retry-After: a number of seconds or a date.
func delay(text string) (time.Duration, bool) {
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(seconds, 0), 1<<30)) * time.Second, true
	}
	at, err := http.ParseTime(text)
	return max(time.Until(at), 0), err == nil
}

// anew returns the request of the next attempt. ok is false if the body cannot be read again.
func anew(r *http.Request) (next *http.Request, ok bool) {
	next = r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return next, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	next.Body = body
	return next, err == nil
}
