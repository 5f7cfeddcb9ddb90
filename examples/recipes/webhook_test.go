package recipes_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAWebhookIsHandledOnce(t *testing.T) {
	t.Parallel()
	var handled atomic.Int32
	var broken atomic.Bool
	broken.Store(true)
	event := func(r *http.Request) (string, error) {
		if id := r.Header.Get("Event-Id"); id != "" {
			return id, nil
		}
		return "", errors.New("no event")
	}
	handle := func(context.Context, *http.Request) error {
		if broken.Load() {
			return errors.New("no database")
		}
		handled.Add(1)
		return nil
	}
	pods := newPods(t)
	sends := func(p pod, id string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hook", strings.NewReader("{}"))
		r.Header.Set("Event-Id", id)
		recipes.Webhook(p.l, event, handle).ServeHTTP(w, r)
		return w.Code
	}
	if code := sends(pods[0], ""); code != http.StatusBadRequest {
		t.Errorf("a request without an event: %d", code)
	}
	if code := sends(pods[0], "evt_1"); code != http.StatusInternalServerError {
		t.Errorf("a handler that fails: %d", code)
	}
	broken.Store(false)
	together(pods, 10, func(p pod) {
		if code := sends(p, "evt_1"); code != http.StatusOK && code != http.StatusConflict {
			t.Errorf("an event that comes again: %d", code)
		}
	})
	if code := sends(pods[1], "evt_1"); code != http.StatusOK {
		t.Errorf("an event that was handled: %d", code)
	}
	if n := handled.Load(); n != 1 {
		t.Errorf("handled %d times", n)
	}
}

// Redis does not answer when the work is done, so nobody knows whether the event is marked.
func TestAnEventWhoseMarkIsMissingIsHandledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		handled := 0
		hook := recipes.Webhook(l, func(*http.Request) (string, error) { return "evt_1", nil }, func(context.Context, *http.Request) error {
			if handled++; handled == 1 {
				store.Fail(locker.OpRelease, errors.New("no answer"))
			}
			return nil
		})
		attempt := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			hook.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hook", http.NoBody))
			return w
		}
		w := attempt()
		if want := "the event was not handled, or handled and not marked\n"; w.Code != http.StatusInternalServerError || w.Body.String() != want {
			t.Errorf("%d %q", w.Code, w.Body)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble; the lease ends with its TTL
		store.Fail(locker.OpRelease, nil)
		if w := attempt(); w.Code != http.StatusOK || handled != 2 {
			t.Errorf("%d, handled %d times", w.Code, handled)
		}
	})
}
