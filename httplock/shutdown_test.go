package httplock_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
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
				}, Stop: s.Config.Shutdown, OneByOne: http2}
			})
		})
	}
}

// The second server has a middleware that holds responses back, and refuses inside of it.
func TestAClientThatMeetsADrainSendsItsNextRequestOverAnotherConnection(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		for under, outside := range map[string]func(http.Handler) http.Handler{
			"New":            func(h http.Handler) http.Handler { return h },
			"NewIdempotency": httplock.MustIdempotency(lockertest.NewLocker(t, lockertest.NewMemory()), idempotency.NewMemory(), "shop"),
		} {
			t.Run(name+" "+under, func(t *testing.T) {
				locktest.CheckARefusedClientReconnects(t, func(l locker.Locker) (*http.Client, string) {
					s := httptest.NewUnstartedServer(shop(func(h http.Handler) http.Handler {
						inside := outside(httplock.MustNew(l, "order:{param.id}")(h))
						return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							r.Header.Set("Idempotency-Key", rand.Text())
							inside.ServeHTTP(w, r)
						})
					}, paid))
					if http2 {
						s.Config.Protocols = new(http.Protocols)
						s.Config.Protocols.SetUnencryptedHTTP2(true)
					}
					s.Start()
					s.Client().Transport.(*http.Transport).Protocols = s.Config.Protocols
					t.Cleanup(s.Close)
					return s.Client(), s.URL + "/orders/42"
				})
			})
		}
	}
}
