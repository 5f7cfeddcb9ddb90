package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// post sends a POST to a real server. It returns the status and the body of the reply.
func post(t *testing.T, server *httptest.Server, path string) (int, string) {
	t.Helper()
	res, err := server.Client().Post(server.URL+path, "", http.NoBody)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(body)
}

func TestTwoHundredClientsRunOneAtATimeOnRedis(t *testing.T) {
	const clients = 200
	redisServer := redistest.Shared(t)
	sold := 0 // only the lock guards this counter, so the race detector reports two holders at once
	var services []*httptest.Server
	for range 2 {
		l, err := locker.New(redisServer.Client(t), locker.WithPrefix(t.Name()+":"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		s := httptest.NewServer(shop(httplock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sold++
			if lease, ok := httplock.FromContext(r); !ok || lease.Key() != "order:42" {
				t.Errorf("%v", lease)
			}
			paid(w, r)
		})))
		defer s.Close()
		services = append(services, s)
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			if code, body := post(t, services[i%2], "/orders/42"); code != http.StatusOK || body != "paid" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wg.Wait()
	if sold != clients {
		t.Errorf("sold %d of %d", sold, clients)
	}
}

func TestAPanicFindsTheLockReleasedAndGoesOn(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := shop(httplock.MustNew(l, "order:{param.id}"), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("out of ink") }))
	left, recovered := -1, any(nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			recovered, left = recover(), store.Len()
			w.WriteHeader(http.StatusInternalServerError)
		}()
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	if code, _ := post(t, server, "/orders/42"); code != http.StatusInternalServerError || recovered != "out of ink" || left != 0 {
		t.Errorf("%d, recovered %v, %d locks are left", code, recovered, left)
	}
}

func TestALostLockIsNeverASuccess(t *testing.T) {
	for name, tc := range map[string]struct {
		reply func(w http.ResponseWriter)
		code  int
		body  string
	}{
		"nothing written": {reply: func(http.ResponseWriter) {}, code: 503, body: `"code":"lock-lost"`},
		"headers set": {reply: func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"7"`)
			w.Header().Set("Content-Encoding", "gzip")
		}, code: 503, body: `"code":"lock-lost"`},
		"written already":  {reply: func(w http.ResponseWriter) { _, _ = io.WriteString(w, "paid") }, code: 200, body: "paid"},
		"a status already": {reply: func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) }, code: 202},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				var told []*httplock.Problem
				h := shop(httplock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}", problems(&told)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					store.Steal("order:42")
					<-r.Context().Done()
					if cause := context.Cause(r.Context()); !errors.Is(cause, locker.ErrLost) {
						t.Errorf("the context ended with %v", cause)
					}
					tc.reply(w)
				}))
				w := send(t.Context(), h, "POST", "/orders/42", "")
				if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if h := w.Result().Header; tc.code == 503 && (h.Get("ETag") != "" || h.Get("Content-Encoding") != "" || h.Get("Cache-Control") != "no-store") {
					t.Errorf("headers of the reply that was not sent are left: %v", h)
				}
				if len(told) != 1 || told[0].Code != httplock.CodeLost || !told[0].Failure() || strings.Contains(told[0].Error(), "42") {
					t.Errorf("the log has %v", told)
				}
			})
		})
	}
}

func TestFailOpenRunsOnlyWhatTheServerCannotBeAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		code int
	}{
		"unavailable":       {fmt.Errorf("%w: EOF", locker.ErrUnavailable), 200},
		"busy":              {locker.ErrBusy, 409},
		"too many waiters":  {locker.ErrTooManyWaiters, 429},
		"closed":            {locker.ErrClosed, 503},
		"an odd error":      {errors.New("odd"), 503},
		"unsupported":       {locker.ErrUnsupported, 500},
		"no time to ask":    {context.DeadlineExceeded, 503},
		"not even asked":    {locker.ErrInvalidRule, 500},
		"lost by an undone": {locker.ErrLost, 503},
	} {
		var told []*httplock.Problem
		l := lockerFunc(func(r locker.Rule) error { return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: tc.err} })
		h := shop(httplock.MustNew(l, "order:{param.id}", httplock.WithFailOpen(), problems(&told)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, held := httplock.FromContext(r); held {
				t.Error("there is a lease")
			}
			paid(w, r)
		}))
		w := send(t.Context(), h, "POST", "/orders/42", "")
		if w.Code != tc.code || len(told) != 1 {
			t.Errorf("%s: %d %s, log %v", name, w.Code, w.Body, told)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	l := lockerFunc(func(locker.Rule) error { return locker.ErrUnavailable })
	h := shop(httplock.MustNew(l, "order:{param.id}", httplock.WithFailOpen()), paid)
	if w := send(gone, h, "POST", "/orders/42", ""); w.Code == 200 {
		t.Error("the handler ran for a client that is gone")
	}
}

// While the lock server is down, each request that asks it has to wait. So only a few requests may
// ask the server. If all requests asked the server, all of them would wait.
func TestAnOutageIsRememberedWithFailOpen(t *testing.T) {
	asked := 0
	l := lockerFunc(func(r locker.Rule) error {
		asked++
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrUnavailable}
	})
	h := httplock.MustNew(l, "a", httplock.WithFailOpen())(paid)
	for range 20 {
		if w := send(t.Context(), h, "POST", "/", ""); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if asked != 1 {
		t.Errorf("the server was asked %d times", asked)
	}
}

// The server removes the files that it finds in its own request. The handler gets a copy of this
// request, which the server does not know.
func TestTheFilesOfAFormAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := shop(httplock.MustNew(l, "order:{param.id}"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, err := os.ReadDir(os.TempDir()); err != nil || len(files) == 0 {
			t.Errorf("%d files, %v: the form is not large enough for this test", len(files), err)
		}
		paid(w, r)
	}))
	server := httptest.NewServer(h)
	var body strings.Builder
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("photo", "photo.jpg")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(make([]byte, 11<<20))
	_ = form.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders/42", strings.NewReader(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", form.FormDataContentType())
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	server.Close() // Close waits until the requests have ended
	if files, err := os.ReadDir(os.TempDir()); err != nil || len(files) != 0 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}

func TestTheErrorHandlerWritesTheReply(t *testing.T) {
	l := lockerFunc(func(r locker.Rule) error {
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, RetryAfter: 1500 * time.Millisecond, Err: locker.ErrBusy}
	})
	for name, tc := range map[string]struct {
		handler func(w http.ResponseWriter, r *http.Request, p *httplock.Problem)
		code    int
		body    string
	}{
		"another form": {func(w http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
			http.Error(w, fmt.Sprint(p.Code, " for ", p.RetryAfterMS, " ms"), 420)
		}, 420, "lock-busy for 1500 ms\n"},
		"nothing": {func(http.ResponseWriter, *http.Request, *httplock.Problem) {}, 409, ""},
	} {
		h := shop(httplock.MustNew(l, "order:{param.id}", httplock.WithErrorHandler(tc.handler)), paid)
		if w := send(t.Context(), h, "POST", "/orders/42", ""); w.Code != tc.code || w.Body.String() != tc.body || w.Header().Get("Retry-After") != "2" {
			t.Errorf("%s: %d %v %q", name, w.Code, w.Header(), w.Body)
		}
	}
}

func TestMistakesAreFoundWhenTheProgramStarts(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	store := idempotency.NewMemory()
	var none *locker.Engine
	for says, build := range map[string]func(){
		"httplock: the Locker is nil; make one":                        func() { httplock.MustNew(nil, "a") },
		"httplock: latchkit: acquire: invalid rule: the Locker is nil": func() { httplock.MustNew(none, "a") },
		"httplock: WithMaxBody(0): give the number":                    func() { httplock.MustNew(l, "a", httplock.WithMaxBody(0)) },
		"httplock: the secret has 3 bytes; give at least 16":           func() { httplock.MustNew(l, "a", httplock.WithSecret([]byte("abc"))) },
		"httplock: the Store is nil; make one":                         func() { httplock.MustIdempotency(l, nil, "shop") },
		"httplock: the scope is empty; name the owner":                 func() { httplock.MustIdempotency(l, store, "") },
		"httplock: WithLifetime(-1ns): give the time":                  func() { httplock.MustIdempotency(l, store, "shop", httplock.WithLifetime(-1)) },
		"httplock: the key \"{nothing}\" has the part":                 func() { httplock.MustNew(l, "{nothing}") },
		"httplock: WithWait(0): a wait must have an end":               func() { httplock.MustNew(l, "a", httplock.WithWait(0)) },
		"httplock: WithPathValues: the function is nil; give the one":  func() { httplock.MustNew(l, "a", httplock.WithPathValues(nil)) },
	} {
		got := func() (text string) {
			defer func() { text = fmt.Sprint(recover()) }()
			build()
			return ""
		}()
		if !strings.HasPrefix(got, says) {
			t.Errorf("%q, want %q", got, says)
		}
	}
}

func TestAWaitIsShownToTheClient(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := httplock.MustNew(l, "a")(paid)
	if w := send(t.Context(), h, "POST", "/", ""); strings.Contains(w.Header().Get("Server-Timing"), "lock;dur=1") {
		t.Errorf("%v", w.Header())
	}
	store.Occupy("a", 0)
	time.AfterFunc(50*time.Millisecond, func() { store.Free("a") })
	if w := send(t.Context(), h, "POST", "/", ""); w.Code != 200 || !strings.HasPrefix(w.Header().Get("Server-Timing"), "lock;dur=") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
