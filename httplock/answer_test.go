package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func ofOp(op locker.Op, errs ...error) error {
	return &locker.Error{Op: op, Key: "secret:42", RetryAfter: 1500 * time.Millisecond, Err: errors.Join(errs...)}
}

func TestReplyAnswersTheErrorsOfLocksAndTransactions(t *testing.T) {
	lost := ofOp(locker.OpHold, locker.ErrLost)
	for name, tc := range map[string]struct {
		err    error
		status int
		code   string
		detail string
		retry  string // the header Retry-After
	}{
		"a stale fence":                       {fmt.Errorf("pay: %w", &sqllock.Error{Resource: "secret:42", Fence: 7, Err: sqllock.ErrStaleFence}), 503, httplock.CodeLost, "nothing was changed", "1"},
		"a stale fence, and the loss":         {errors.Join(&sqllock.Error{Err: sqllock.ErrStaleFence}, lost), 503, httplock.CodeLost, "nothing was changed", "2"},
		"too late":                            {&sqllock.Error{Err: sqllock.ErrTooLate}, 503, httplock.CodeLost, "nothing was changed", "1"},
		"an idle transaction, and the loss":   {errors.Join(fmt.Errorf("pay: %w", sqllock.ErrIdle), lost), 503, httplock.CodeLost, "nothing was changed", "2"},
		"done, says the database":             {&sqllock.Error{Err: locker.ErrDone}, 409, httplock.CodeDone, "not done again", ""},
		"done, says the lock server":          {ofOp(locker.OpAcquire, locker.ErrDone), 409, httplock.CodeDone, "not done again", ""},
		"lost":                                {lost, 503, httplock.CodeLost, "may or may not", ""},
		"revoked":                             {ofOp(locker.OpHold, locker.ErrRevoked), 503, httplock.CodeLost, "may or may not", ""},
		"expired":                             {ofOp(locker.OpHold, locker.ErrExpired), 503, httplock.CodeLost, "may or may not", ""},
		"lost, and a second lock was busy":    {errors.Join(ofOp(locker.OpAcquire, locker.ErrBusy), lost), 503, httplock.CodeLost, "may or may not", ""},
		"lost while RunAll took further keys": {ofOp(locker.OpAcquire, locker.ErrLost), 503, httplock.CodeLost, "Nothing was done", "2"},
		"busy":                                {ofOp(locker.OpAcquire, locker.ErrBusy), 409, httplock.CodeBusy, "Nothing was done", "2"},
		"the server is down":                  {ofOp(locker.OpAcquire, locker.ErrUnavailable), 503, httplock.CodeUnavailable, "Nothing was done", "2"},
		"the release was not answered":        {ofOp(locker.OpRelease, locker.ErrUnavailable), 503, httplock.CodeUnavailable, "unknown whether", ""},
		"the process stops, before the work":  {ofOp(locker.OpAcquire, locker.ErrClosed), 503, httplock.CodeClosed, "Nothing was done", "2"},
		"the process stops, during the work":  {ofOp(locker.OpHold, locker.ErrClosed), 503, httplock.CodeClosed, "may or may not", ""},
		"no lock's error":                     {errors.New("no rows"), 200, "", "", ""},
		"the client has left":                 {context.Canceled, 200, "", "", ""},
		"no error":                            {nil, 200, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var told []*httplock.Problem
			w := httptest.NewRecorder()
			answered := httplock.Reply(w, httptest.NewRequestWithContext(t.Context(), "POST", "/", http.NoBody), tc.err, problems(&told))
			if answered != (tc.code != "") || len(told) == 1 != answered {
				t.Fatalf("answered: %v, observed: %v", answered, told)
			}
			if body := w.Body.String(); w.Code != tc.status || !strings.Contains(body, `"code":"`+tc.code) && answered ||
				!strings.Contains(body, tc.detail) || strings.Contains(body, "secret") || w.Header().Get("Retry-After") != tc.retry {
				t.Errorf("%d %s, %v", w.Code, body, w.Header())
			}
			if answered && (!errors.Is(told[0], tc.err) || strings.Contains(told[0].Error(), "secret")) {
				t.Errorf("the Problem is %v", told[0])
			}
		})
	}
}

// The database driver only says that the context was cancelled.
func TestReplyKnowsWhyTheContextOfAHandlerHasEnded(t *testing.T) {
	memory := lockertest.NewMemory()
	l := lockertest.NewLocker(t, memory)
	replied := false
	h := httplock.MustNew(l, "order:42", httplock.WithTTL(100*time.Millisecond))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		memory.Steal("order:42")
		<-r.Context().Done()
		replied = httplock.Reply(w, r, r.Context().Err(), httplock.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
			http.Error(w, "sorry: "+p.Code, p.Status)
		}))
	}))
	if w := send(t.Context(), h, "POST", "/", ""); !replied || w.Code != 503 || w.Body.String() != "sorry: lock-lost\n" {
		t.Errorf("replied: %v; %d %s", replied, w.Code, w.Body)
	}
}

// A handler calls Run itself, and leaves the replies to Reply.
func ExampleReply() {
	store := lockertest.NewMemory()
	l, err := store.NewLocker()
	if err != nil {
		panic(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	store.Occupy("order:43", 1500*time.Millisecond) // another request holds that lock

	pay := func(ctx context.Context, order string) error {
		rule := locker.Rule{Key: "order:" + order, Wait: locker.NoWait}
		return locker.Run(ctx, l, rule, func(context.Context) error { return nil }) // charge, and write the payment
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := pay(r.Context(), r.FormValue("order"))
		switch {
		case httplock.Reply(w, r, err): // busy, lost, unavailable, …
		case err != nil:
			http.Error(w, "the payment failed", http.StatusInternalServerError)
		default:
			_, _ = fmt.Fprint(w, "paid")
		}
	})
	for _, order := range []string{"42", "43"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/pay?order="+order, http.NoBody))
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("Content-Type"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 text/plain; charset=utf-8, Retry-After ""
	// 409 application/problem+json, Retry-After "1"
}

// A wrong option is a mistake that must not become a panic in the first request that fails.
func TestReplyIgnoresOptionsThatNewRefuses(t *testing.T) {
	w := httptest.NewRecorder()
	if !httplock.Reply(w, httptest.NewRequest("POST", "/", nil), locker.ErrBusy, httplock.WithMaxBody(0)) || w.Code != 409 {
		t.Error(w.Code)
	}
}
