package httplock_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func onceFor(d time.Duration) httplock.Option {
	return httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = d })
}

// listen starts a server, and returns its address.
func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestPaysOnceWhenTheClientLeaves(t *testing.T) {
	locktest.PaysOnce(t, true, func(t *testing.T, pay func(context.Context), receipt []byte) string {
		once := httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", onceFor(time.Hour))
		return listen(t, shop(once, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pay(r.Context())
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(receipt)
		})))
	})
}

// The service behind the proxy pays. A proxy ends by a panic when its client has left. The request
// to the service does not end then, so that the proxy learns the status.
func TestAProxyPaysOnceWhenTheClientLeaves(t *testing.T) {
	locktest.PaysOnce(t, false, func(t *testing.T, pay func(context.Context), receipt []byte) string {
		upstream := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pay(r.Context())
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(receipt)
		}))
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: upstream})
			r.Out = r.Out.WithContext(context.WithoutCancel(r.Out.Context()))
		}, ErrorLog: log.New(io.Discard, "", 0)}
		once := httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", onceFor(time.Hour))
		return listen(t, shop(once, proxy))
	})
}

// A handler that aborts its response has failed, unless its client has left after the status.
func TestAnAbortedResponseIsAFailureWhileTheClientWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		writes, leaves bool
		runs           int
	}{
		"before the status":                 {false, false, 2},
		"before the status, client is gone": {false, true, 2},
		"after the status":                  {true, false, 2},
		"after the status, client is gone":  {true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			runs := 0
			h := shop(httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", onceFor(time.Hour)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if runs++; runs > 1 {
					return
				}
				if tc.writes {
					w.WriteHeader(http.StatusCreated)
				}
				if tc.leaves {
					leave()
				}
				panic(http.ErrAbortHandler)
			}))
			func() {
				defer func() {
					if p := recover(); p != http.ErrAbortHandler {
						t.Errorf("the response was not aborted: %v", p)
					}
				}()
				send(ctx, h, "POST", "/orders/42", "")
			}()
			if w := send(t.Context(), h, "POST", "/orders/42", ""); runs != tc.runs || (runs == 1) != strings.Contains(w.Body.String(), httplock.CodeDone) {
				t.Errorf("%d %s, %d runs", w.Code, w.Body, runs)
			}
		})
	}
}
