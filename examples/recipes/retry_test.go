package recipes_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// The order is locked by another pod. The client comes back after the time in Retry-After.
func TestAClientComesBackWhenTheServerSays(t *testing.T) {
	t.Parallel()
	pods := newPods(t)
	var attempts atomic.Int32
	guarded := httplock.MustNew(pods[0].l, "order:42", httplock.WithWait(locker.NoWait))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempts.Add(1)
		guarded.ServeHTTP(w, r)
	}))
	defer server.Close()
	lease, err := pods[1].l.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	call := func(within time.Duration) (code int, body string) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("ship it"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := recipes.ComeBack(server.Client(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, string(text)
	}
	if code, body := call(900 * time.Millisecond); code != http.StatusConflict || !strings.Contains(body, httplock.CodeBusy) || attempts.Load() != 1 {
		t.Errorf("with a short deadline: %d %s after %d attempts", code, body, attempts.Load())
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = lease.Release(context.Background()) })
	if code, body := call(time.Minute); code != http.StatusOK || body != "ship it" || attempts.Load() != 3 {
		t.Errorf("%d %q after %d attempts", code, body, attempts.Load())
	}
}
