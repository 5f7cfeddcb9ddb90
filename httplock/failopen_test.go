package httplock_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// After a probe was answered, one request at a time asks the server, and all others run at once.
// The client of that one request may leave, or the request may get a stored reply. In both cases,
// the request does not prove that the server answers again.
func TestOnlyAnAnswerOfTheServerEndsAnOutage(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, post func(context.Context, string)){
		"the client left":     postAndLeave,
		"the reply is stored": func(ctx context.Context, post func(context.Context, string)) { post(ctx, "stored") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				h := httplock.MustIdempotency(lockertest.NewLocker(t, store), idempotency.NewMemory(), "shop", httplock.WithFailOpen())(paid)
				post := func(ctx context.Context, key string) { send(ctx, h, "POST", "/", "", "Idempotency-Key", key) }
				post(t.Context(), "stored")
				store.Fail(locker.OpAcquire, errors.New("no route to the server"))
				post(t.Context(), "the first request of the outage")
				<-time.After(time.Minute)
				ask(t.Context(), post)
				var waited atomic.Int32
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						began := time.Now()
						post(t.Context(), strconv.Itoa(i))
						if time.Since(began) > 0 {
							waited.Add(1)
						}
					})
				}
				all.Wait()
				if n := waited.Load(); n > 1 {
					t.Errorf("%d requests have waited for the server", n)
				}
			})
		})
	}
}

// distant is a Locker whose server needs 5 ms for each answer.
type distant struct{ locker.Locker }

func (d distant) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	<-time.After(5 * time.Millisecond)
	return d.Locker.Acquire(ctx, r)
}

// The server answers again, and its first answer reports that the work is done. This answer ends
// the outage for the breaker, so no later request runs the work again.
func TestDoneWorkEndsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		var runs atomic.Int32
		h := httplock.MustNew(distant{lockertest.NewLocker(t, store)}, "order:42", httplock.WithFailOpen(),
			httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = 24 * time.Hour }))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			w.WriteHeader(http.StatusNoContent)
		}))
		post := func() { send(t.Context(), h, "POST", "/", "") }
		post()
		store.Fail(locker.OpAcquire, errors.New("no route to the server"))
		post()
		if n := runs.Load(); n != 2 {
			t.Fatalf("positive control: %d runs, and the outage should have let one pass", n)
		}
		store.Fail(locker.OpAcquire, nil)
		<-time.After(time.Minute)
		post()
		var all sync.WaitGroup
		for range 20 {
			all.Go(post)
		}
		all.Wait()
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs of done work after the outage", n-2)
		}
	})
}

// postAndLeave posts for a client that leaves while the server is asked.
func postAndLeave(ctx context.Context, post func(ctx context.Context, key string)) {
	ctx, leave := context.WithCancel(ctx)
	time.AfterFunc(100*time.Millisecond, leave)
	post(ctx, "left")
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
