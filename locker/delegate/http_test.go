package delegate_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// inventoryServer starts a server that locks order:42 in each request. The status of its reply
// shows which error the lock returned. The handler appends the delegation header of each request to
// saw.
func inventoryServer(t *testing.T, s service, saw *[]string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := s.receiver.Request(r)
		*saw = append(*saw, r.Header.Get(delegate.Header))
		if err == nil {
			err = locker.Run(r.Context(), s.receiver, locker.Rule{Key: "order:42", Wait: locker.NoWait}, func(context.Context) error { return nil })
		}
		switch {
		case errors.Is(err, delegate.ErrMalformed):
			w.WriteHeader(http.StatusBadRequest)
		case errors.Is(err, delegate.ErrRefused):
			w.WriteHeader(http.StatusPreconditionFailed)
		case errors.Is(err, locker.ErrBusy):
			w.WriteHeader(http.StatusConflict)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func get(ctx context.Context, t *testing.T, c *http.Client, url string, headers ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		r.Header.Add(delegate.Header, h)
	}
	res, err := c.Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	if len(headers) == 0 && r.Header.Get(delegate.Header) != "" {
		t.Error("the transport changed the caller's request")
	}
	return res.StatusCode
}

func TestARequestRunsUnderItsCallersLease(t *testing.T) {
	server := redistest.Shared(t)
	newEngine := func() *locker.Engine {
		l, err := locker.NewSingle(server.Client(t), locker.WithPrefix(t.Name()+":"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			shop, inventory := serviceOf(t, newEngine(), opts...), serviceOf(t, newEngine(), opts...)
			var saw []string
			trusted, other := inventoryServer(t, inventory, &saw), inventoryServer(t, inventory, &saw)
			transport, err := delegate.Transport(nil, shop.sender, strings.TrimPrefix(trusted.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: transport}
			var token string
			shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
				if code := get(ctx, t, client, trusted.URL); code != http.StatusOK {
					t.Errorf("to the trusted host: %d", code)
				}
				if code := get(ctx, t, client, other.URL); code != http.StatusConflict {
					t.Errorf("to another host: %d", code)
				}
				token = base64.RawURLEncoding.EncodeToString(shop.token(ctx, t))
				for name, tc := range map[string]struct {
					url     string
					client  *http.Client
					headers []string
					code    int
				}{
					"the header by hand":             {trusted.URL, http.DefaultClient, []string{token}, http.StatusOK},
					"twice":                          {trusted.URL, http.DefaultClient, []string{token, token}, http.StatusBadRequest},
					"empty":                          {trusted.URL, http.DefaultClient, []string{""}, http.StatusBadRequest},
					"not base64url":                  {trusted.URL, http.DefaultClient, []string{"?" + token}, http.StatusBadRequest},
					"cut":                            {trusted.URL, http.DefaultClient, []string{token[:len(token)-2]}, http.StatusBadRequest},
					"oversized":                      {trusted.URL, http.DefaultClient, []string{strings.Repeat("A", 5000)}, http.StatusBadRequest},
					"sent on to another host":        {other.URL, client, []string{token}, http.StatusConflict},
					"sent on, and exchanged for own": {trusted.URL, client, []string{"?"}, http.StatusOK},
				} {
					if code := get(ctx, t, tc.client, tc.url, tc.headers...); code != tc.code {
						t.Errorf("%s: %d, want %d", name, code, tc.code)
					}
				}
			})
			if code := get(t.Context(), t, http.DefaultClient, trusted.URL, token); code != http.StatusPreconditionFailed {
				t.Errorf("replayed after the release: %d", code)
			}
			for _, h := range saw {
				if h != "" {
					t.Errorf("a handler saw %q, and could send it on", h)
				}
			}
		})
	}
}

func TestARedirectDoesNotCarryADelegationOn(t *testing.T) {
	store := lockertest.NewMemory()
	shop := newService(t, store)
	got := ""
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get(delegate.Header) }))
	defer stranger.Close()
	trusted := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(delegate.Header) == "" {
			t.Error("the trusted host got nothing")
		}
		http.Redirect(w, r, stranger.URL, http.StatusFound)
	}))
	defer trusted.Close()
	transport, err := delegate.Transport(nil, shop.sender, strings.TrimPrefix(trusted.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
		if code := get(ctx, t, &http.Client{Transport: transport}, trusted.URL); code != http.StatusOK || got != "" {
			t.Errorf("%d, the stranger got %q", code, got)
		}
	})
}

type sends func(*http.Request) (*http.Response, error)

func (f sends) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAHostIsTheSameInCapitals(t *testing.T) {
	shop := newService(t, lockertest.NewMemory())
	var got string
	base := sends(func(r *http.Request) (*http.Response, error) {
		got = r.Header.Get(delegate.Header)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
		for host, url := range map[string]string{"Inventory:8080": "http://inventory:8080/", "inventory:8080": "http://INVENTORY:8080/"} {
			transport, err := delegate.Transport(base, shop.sender, host)
			if err != nil {
				t.Fatal(err)
			}
			if code := get(ctx, t, &http.Client{Transport: transport}, url); code != http.StatusOK || got == "" {
				t.Errorf("for %s, to %s: %d, without a delegation", host, url, code)
			}
			got = ""
		}
	})
}

func TestALeaseThatCannotBeDelegatedFailsTheRequest(t *testing.T) {
	store := lockertest.NewMemory()
	shop := newService(t, store)
	transport, err := delegate.Transport(nil, shop.sender, "inventory")
	if err != nil {
		t.Fatal(err)
	}
	shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
		store.Fail(locker.OpDelegate, errors.New("connection reset"))
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(r)
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		if err == nil {
			_ = res.Body.Close()
		}
	})
}

func TestTransportArgumentsThatMakeNoSense(t *testing.T) {
	sender, err := delegate.NewSender()
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no Sender":     func() error { _, err := delegate.Transport(nil, nil, "a"); return err }(),
		"no hosts":      func() error { _, err := delegate.Transport(nil, sender); return err }(),
		"an empty host": func() error { _, err := delegate.Transport(nil, sender, "a", ""); return err }(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "delegate: Transport: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStripLeavesOtherRequestsAsTheyAre(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	if delegate.Strip(r) != r {
		t.Error("a request without a delegation was copied")
	}
	r.Header.Set(delegate.Header, "x")
	r.Header.Set("X-Other", "y")
	s := delegate.Strip(r)
	if s.Header.Get(delegate.Header) != "" || s.Header.Get("X-Other") != "y" || r.Header.Get(delegate.Header) != "x" {
		t.Errorf("%v became %v", r.Header, s.Header)
	}
}
