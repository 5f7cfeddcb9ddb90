package ginlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// refusal returns a Locker that returns err. err contains the key, which no client may see.
func refusal(err error, retryAfter time.Duration) locker.Locker {
	return lockerFunc(func(r locker.Rule) error {
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, RetryAfter: retryAfter, Err: err}
	})
}

func TestEachRefusalHasItsReply(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		after    time.Duration
		opts     []httplock.Option
		status   int
		code     string
		retry    string // the header Retry-After
		retryMS  int64
		reported bool
	}{
		"busy":                     {err: locker.ErrBusy, after: 1200 * time.Millisecond, status: 409, code: "lock-busy", retry: "2", retryMS: 1200},
		"busy for a millisecond":   {err: locker.ErrBusy, after: time.Millisecond, status: 409, code: "lock-busy", retry: "1", retryMS: 1},
		"busy for less than that":  {err: locker.ErrBusy, after: time.Microsecond, status: 409, code: "lock-busy", retry: "1", retryMS: 1},
		"busy for a second":        {err: locker.ErrBusy, after: time.Second, status: 409, code: "lock-busy", retry: "1", retryMS: 1000},
		"busy for a bit more":      {err: locker.ErrBusy, after: time.Second + 1, status: 409, code: "lock-busy", retry: "2", retryMS: 1001},
		"busy for nobody knows":    {err: locker.ErrBusy, status: 409, code: "lock-busy", retry: "1", retryMS: 1000},
		"busy and out of time":     {err: fmt.Errorf("%w: %w", context.DeadlineExceeded, locker.ErrBusy), after: time.Second, status: 409, code: "lock-busy", retry: "1", retryMS: 1000},
		"done":                     {err: locker.ErrDone, status: 409, code: "already-done"},
		"too many waiters":         {err: locker.ErrTooManyWaiters, after: 3 * time.Second, status: 429, code: "too-many-waiters", retry: "3", retryMS: 3000},
		"unavailable":              {err: fmt.Errorf("%w: EOF", locker.ErrUnavailable), status: 503, code: "lock-unavailable", retry: "1", retryMS: 1000, reported: true},
		"unavailable, not busy":    {err: errors.Join(locker.ErrBusy, locker.ErrUnavailable), status: 503, code: "lock-unavailable", retry: "1", retryMS: 1000, reported: true},
		"closed":                   {err: locker.ErrClosed, status: 503, code: "lock-closed", retry: "1", retryMS: 1000},
		"a key that is no key":     {err: fmt.Errorf("%w: too long", locker.ErrInvalidKey), status: 400, code: "invalid-key"},
		"a rule that is no rule":   {err: fmt.Errorf("%w: too long", locker.ErrInvalidRule), status: 500, code: "lock-misconfigured", reported: true},
		"unsupported":              {err: locker.ErrUnsupported, status: 500, code: "lock-misconfigured", reported: true},
		"revoked before it began":  {err: locker.ErrRevoked, status: 503, code: "lock-lost", retry: "1", retryMS: 1000, reported: true},
		"no time to ask at all":    {err: context.DeadlineExceeded, status: 503, code: "lock-unavailable", retry: "1", retryMS: 1000, reported: true},
		"a context of the backend": {err: fmt.Errorf("%w: %w", locker.ErrUnavailable, context.Canceled), status: 503, code: "lock-unavailable", retry: "1", retryMS: 1000, reported: true},
		"an error of its own":      {err: errors.New("odd"), status: 503, code: "lock-unavailable", retry: "1", retryMS: 1000, reported: true},
	} {
		t.Run(name, func(t *testing.T) {
			ran := false
			var see seen
			server := httptest.NewServer(engine(&see, ginlock.MustNew(refusal(tc.err, tc.after), "canary:{param.id}", tc.opts...), func(*gin.Context) { ran = true }))
			res, err := server.Client().Post(server.URL+"/orders/canary", "", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			var body struct {
				Type, Title, Detail, Instance, Code string
				Status                              int
				RetryAfterMS                        int64 `json:"retry_after_ms"`
			}
			raw, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			decoder := json.NewDecoder(bytes.NewReader(raw))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&body); err != nil {
				t.Fatalf("%v in %s", err, raw)
			}
			server.Close()

			if res.StatusCode != tc.status || body.Status != tc.status || body.Code != tc.code || ran {
				t.Errorf("%d %s, handler ran: %v", res.StatusCode, raw, ran)
			}
			if got := res.Header.Get("Retry-After"); got != tc.retry || body.RetryAfterMS != tc.retryMS {
				t.Errorf("Retry-After %q and %d ms, want %q and %d", got, body.RetryAfterMS, tc.retry, tc.retryMS)
			}
			if got := res.Header.Get("Content-Type"); got != "application/problem+json" || res.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("Content-Type %q, %v", got, res.Header)
			}
			if !strings.HasSuffix(body.Type, "#"+tc.code) || body.Title == "" || body.Detail == "" {
				t.Errorf("%+v", body)
			}
			if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(body.Instance) {
				t.Errorf("instance %q", body.Instance)
			}
			if (len(see.errors) == 1) != tc.reported || see.outcome != tc.code {
				t.Errorf("a logger saw %+v", see)
			}
			if shown := string(raw) + fmt.Sprint(res.Header, see); strings.Contains(shown, "canary") {
				t.Errorf("the key was shown: %s", shown)
			}
		})
	}
}

func TestTheErrorHandlerWritesTheReply(t *testing.T) {
	for name, tc := range map[string]struct {
		handler func(c *gin.Context, p *httplock.Problem)
		body    string
	}{
		"another form": {
			handler: func(c *gin.Context, p *httplock.Problem) { c.String(p.Status, "%s for %d ms", p.Code, p.RetryAfterMS) },
			body:    "lock-busy for 1500 ms",
		},
		"nothing": {handler: func(*gin.Context, *httplock.Problem) {}},
		"not even a wrong Next": {
			handler: func(c *gin.Context, _ *httplock.Problem) { c.Next() },
		},
	} {
		e := engine(nil, ginlock.MustNew(refusal(locker.ErrBusy, 1500*time.Millisecond), "order:{param.id}", ginlock.WithErrorHandler(tc.handler)), ok)
		if w := post(t.Context(), e, "/orders/42"); w.Code != http.StatusConflict || w.Body.String() != tc.body || w.Header().Get("Retry-After") != "2" {
			t.Errorf("%s: %d %v %q", name, w.Code, w.Header(), w.Body)
		}
	}
}

func TestAProblemIsAnErrorWithoutTheKey(t *testing.T) {
	var problem *httplock.Problem
	e := gin.New()
	e.POST("/orders/:id", func(c *gin.Context) {
		c.Next()
		problem, _ = ginlock.Outcome(c)
	}, ginlock.MustNew(refusal(fmt.Errorf("%w: EOF", locker.ErrUnavailable), 0), "order:{param.id}"), ok)
	post(t.Context(), e, "/orders/42")
	if got := problem.Error(); got != "lock-unavailable: acquire: the lock server is unavailable: EOF" {
		t.Errorf("%q", got)
	}
	if e, ok := errors.AsType[*locker.Error](problem); !ok || e.Key != "order:42" || !errors.Is(problem, locker.ErrUnavailable) {
		t.Errorf("the Locker's error is not found in %v", problem)
	}
	if problem.ErrorType() != "lock-unavailable" {
		t.Errorf("%q", problem.ErrorType())
	}
}
