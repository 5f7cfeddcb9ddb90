package httplock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// direct is a RoundTripper that calls a handler in the same process, so that time can be virtual.
// If lose returns an error for an attempt, the reply of this attempt is lost, although the handler
// has run.
type direct struct {
	to   http.Handler
	lose func(attempt int) error

	attempts int
	keys     []string // the Idempotency-Key of each attempt
}

func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	d.attempts++
	d.keys = append(d.keys, r.Header.Get("Idempotency-Key"))
	w := httptest.NewRecorder()
	served := r.Clone(r.Context())
	served.RequestURI = r.URL.RequestURI()
	d.to.ServeHTTP(w, served)
	if r.Body != nil {
		_ = r.Body.Close()
	}
	if d.lose != nil {
		if err := d.lose(d.attempts); err != nil {
			return nil, err
		}
	}
	return w.Result(), nil
}

// do sends a request through transport. It returns the status and the body of the reply.
func do(t *testing.T, transport http.RoundTripper, r *http.Request) (status int, body string, err error) {
	t.Helper()
	res, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(text), nil
}

func request(ctx context.Context, t *testing.T, method, body string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://shop/orders/42", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func TestAClientComesBackWhenTheServerSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		server := &direct{to: httplock.MustNew(l, "order:42", httplock.WithWait(locker.NoWait))(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				_, _ = w.Write(append(body, '!'))
			}))}
		store.Occupy("order:42", 1500*time.Millisecond)
		began := time.Now()
		r := request(t.Context(), t, http.MethodPost, "two books")
		status, body, err := do(t, &httplock.Transport{Base: server}, r)
		if status != 200 || body != "two books!" || err != nil {
			t.Fatal(status, body, err)
		}
		if took := time.Since(began); took < 1500*time.Millisecond || took > 5*time.Second || server.attempts > 6 {
			t.Errorf("it took %v and %d attempts", took, server.attempts)
		}
		if len(r.Header) != 0 || server.keys[0] != "" {
			t.Errorf("the request was changed: %v, %v", r.Header, server.keys)
		}
	})
}

var errCut = errors.New("the connection was cut")

// The work was done, but its reply was lost. The next attempt has the same Idempotency-Key, and
// gets the stored reply.
func TestALogicalRequestHasOneIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		server := &direct{to: httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(numbered(&runs))}
		server.lose = func(attempt int) error {
			if attempt%3 != 0 {
				return errCut
			}
			return nil
		}
		client := &httplock.Transport{Base: server, IdempotencyKeys: true}
		for i, want := range []string{"run 1 of books", "run 2 of books"} {
			status, body, err := do(t, client, request(t.Context(), t, http.MethodPost, "books"))
			if status != 201 || body != want || err != nil {
				t.Errorf("request %d: %d %q %v", i, status, body, err)
			}
		}
		k := server.keys
		if len(k) != 6 || k[0] == "" || k[0] != k[1] || k[1] != k[2] || k[3] == k[0] || k[3] != k[5] {
			t.Errorf("the keys are %q", k)
		}
		own := request(t.Context(), t, http.MethodPost, "books", "Idempotency-Key", "own")
		if _, _, err := do(t, client, own); err != nil || server.keys[8] != "own" {
			t.Errorf("the caller's own key became %q, %v", server.keys[6:], err)
		}
		if _, _, err := do(t, client, request(t.Context(), t, http.MethodGet, "")); err != nil || server.keys[9] != "" {
			t.Errorf("a GET has the key %q, %v", server.keys[9:], err)
		}
	})
}

func TestWhatAClientDoesNotRepeat(t *testing.T) {
	reply := func(status int, after string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			w.WriteHeader(status)
		}
	}
	plain := func(ctx context.Context, t *testing.T) *http.Request { return request(ctx, t, http.MethodPost, "b") }
	lost := func(int) error { return errCut }
	for name, tc := range map[string]struct {
		to      http.Handler
		lose    func(int) error
		request func(ctx context.Context, t *testing.T) *http.Request
		client  httplock.Transport
		want    int // the expected number of attempts
	}{
		"a refusal":                  {reply(409, "1"), nil, plain, httplock.Transport{}, 7},
		"at most so often":           {reply(503, "1"), nil, plain, httplock.Transport{Retries: 2}, 3},
		"at most so long":            {reply(429, "3"), nil, plain, httplock.Transport{Within: 8 * time.Second}, 3},
		"never":                      {reply(429, "1"), nil, plain, httplock.Transport{Retries: -1}, 1},
		"a date":                     {reply(423, "Sat, 01 Jan 2000 00:00:05 GMT"), nil, plain, httplock.Transport{Retries: 1}, 2},
		"a date that is far away":    {reply(423, "Sat, 01 Jan 2050 00:00:00 GMT"), nil, plain, httplock.Transport{}, 1},
		"no advice":                  {reply(409, ""), nil, plain, httplock.Transport{}, 1},
		"advice that is none":        {reply(409, "soon"), nil, plain, httplock.Transport{}, 1},
		"a failure with advice":      {reply(500, "1"), nil, plain, httplock.Transport{}, 1},
		"a success with advice":      {reply(200, "1"), nil, plain, httplock.Transport{}, 1},
		"a lost reply without a key": {reply(200, ""), lost, plain, httplock.Transport{}, 1},
		"a lost reply with a key":    {reply(200, ""), lost, plain, httplock.Transport{IdempotencyKeys: true}, 7},
		"a lost reply to a PUT": {reply(200, ""), lost, func(ctx context.Context, t *testing.T) *http.Request {
			return request(ctx, t, http.MethodPut, "b")
		}, httplock.Transport{}, 7},
		"a body that cannot be read again": {reply(409, "1"), nil, func(ctx context.Context, t *testing.T) *http.Request {
			r := request(ctx, t, http.MethodPost, "")
			r.Body, r.GetBody = io.NopCloser(io.MultiReader(strings.NewReader("b"))), nil
			return r
		}, httplock.Transport{}, 1},
		"beyond the deadline": {reply(409, "60"), nil, func(ctx context.Context, t *testing.T) *http.Request {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			t.Cleanup(cancel)
			return request(ctx, t, http.MethodPost, "b")
		}, httplock.Transport{Within: time.Hour}, 1},
		"a long refusal": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(409)
			_, _ = w.Write(bytes.Repeat([]byte("x"), 100_000))
		}), nil, plain, httplock.Transport{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &direct{to: tc.to, lose: tc.lose}
				tc.client.Base = server
				_, body, err := do(t, &tc.client, tc.request(t.Context(), t))
				if server.attempts != tc.want || (err != nil) != (tc.lose != nil) {
					t.Errorf("%d attempts, want %d; %v", server.attempts, tc.want, err)
				}
				if name == "a long refusal" && len(body) != 100_000 {
					t.Errorf("the reply has %d bytes", len(body))
				}
			})
		})
	}
}

func TestAPauseEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		store.Occupy("order:42", time.Hour)
		server := &direct{to: httplock.MustNew(l, "order:42", httplock.WithWait(locker.NoWait))(numbered(new(atomic.Int32)))}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		began := time.Now()
		status, body, err := do(t, &httplock.Transport{Base: server}, request(ctx, t, http.MethodPost, "b"))
		if status != 409 || !strings.Contains(body, httplock.CodeBusy) || err != nil || server.attempts != 1 {
			t.Errorf("%d %q %v, %d attempts", status, body, err, server.attempts)
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// opened is a body that counts how many of its kind are open.
type opened struct {
	io.Reader
	n *int
}

func (o opened) Close() error { *o.n--; return nil }

// The body of an attempt that is not made may be an open file.
func TestTheBodyOfAnAttemptThatIsNotMadeIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		r := request(ctx, t, http.MethodPost, "b")
		open := 0
		r.GetBody = func() (io.ReadCloser, error) {
			open++
			return opened{strings.NewReader("b"), &open}, nil
		}
		server := &direct{to: httplock.MustNew(lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), "order:42")(paid)}
		if status, _, err := do(t, &httplock.Transport{Base: server}, r); status != 409 || err != nil || open != 0 {
			t.Errorf("%d %v, %d bodies are open", status, err, open)
		}
	})
}

// On a real network, the first reply breaks off in the middle. Then the request is sent again with
// its body.
func TestAReplyThatWasCutIsAskedForAgain(t *testing.T) {
	var runs, cuts atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(numbered(&runs))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cuts.Add(1) == 1 {
			h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	client := &http.Client{Transport: &httplock.Transport{IdempotencyKeys: true}}
	res, err := client.Post(server.URL, "text/plain", strings.NewReader("two books"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 201 || string(body) != "run 1 of two books" || res.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %q %v %v", res.StatusCode, body, res.Header, err)
	}
}
