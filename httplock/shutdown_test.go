package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

// With HTTP/1.1 and HTTP/2.
func TestAShutdownCutsNoRequestThatHoldsItsLock(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
				lock := httplock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute))
				mux := http.NewServeMux()
				mux.Handle("POST /orders/{id}", lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if err := work(r.Context()); err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
					}
				})))
				s := httptest.NewUnstartedServer(mux)
				if http2 {
					s.Config.Protocols = new(http.Protocols)
					s.Config.Protocols.SetUnencryptedHTTP2(true)
					s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1000}
				}
				s.Start()
				s.Client().Transport.(*http.Transport).Protocols = s.Config.Protocols
				t.Cleanup(s.Close)
				return locktest.Stopping{Send: func(ctx context.Context, key string) string {
					return locktest.Post(ctx, s.Client(), s.URL+"/orders/"+key)
				}, Stop: s.Config.Shutdown}
			})
		})
	}
}
