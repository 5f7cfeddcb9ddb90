package frameworks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestARouteOfEachFrameworkIsLocked(t *testing.T) {
	for name, serve := range map[string]func(locker.Locker) http.Handler{
		"gorilla/mux": gorilla, "go-zero": goZero, "go-zero with rules": goZeroRules, "Kratos": withKratos, "chi": withChi, "huma": withHuma,
	} {
		t.Run(name, func(t *testing.T) {
			memory := lockertest.NewMemory()
			server := httptest.NewServer(serve(lockertest.NewLocker(t, memory)))
			t.Cleanup(server.Close)
			memory.Occupy("order:43", 0)
			for _, c := range []struct {
				id     string
				status int
				body   string
			}{
				{"42", http.StatusOK, "order:42 42"},
				{"042", http.StatusOK, "order:42 042"},
				{"forty-two", http.StatusBadRequest, ""},
			} {
				status, body := post(t, server.URL+"/orders/"+c.id+"/ship")
				if status != c.status || c.body != "" && body != c.body {
					t.Errorf("%s was answered %d %q, want %d %q", c.id, status, body, c.status, c.body)
				}
			}
			go func() {
				for memory.Queued() == 0 {
					<-time.After(time.Millisecond)
				}
				memory.Free("order:43")
			}()
			if status, body := post(t, server.URL+"/orders/43/ship"); status != http.StatusOK {
				t.Errorf("a request that waited was answered %d %q", status, body)
			}
			if memory.Len() != 0 {
				t.Error("a lock was not released")
			}
		})
	}
}

func post(t testing.TB, url string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer func() { _ = w.Body.Close() }()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Error(err)
	}
	return w.StatusCode, string(text)
}
