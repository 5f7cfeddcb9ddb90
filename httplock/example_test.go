package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A handler of net/http runs for one request per order at a time.
func Example() {
	store := lockertest.NewMemory()
	l, err := store.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	store.Occupy("order:43", 1500*time.Millisecond) // another request holds that lock

	mux := http.NewServeMux()
	lock := httplock.MustNew(l, "order:{param.id|int}", httplock.WithWait(locker.NoWait))
	mux.Handle("POST /orders/{id}/pay", lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, _ := httplock.FromContext(r) // r.Context() ends if the lock is lost
		_, _ = fmt.Fprint(w, "paid under ", lease.Key())
	})))

	for _, path := range []string{"/orders/42/pay", "/orders/43/pay"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, http.NoBody))
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("Content-Type"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 text/plain; charset=utf-8, Retry-After ""
	// 409 application/problem+json, Retry-After "1"
}

// A program that stops: the requests that hold a lock finish, and all others are answered 503 with
// Retry-After.
func ExampleNew_shutdown() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: httplock.MustNew(l, "order:{query.id|int}")(http.NotFoundHandler()), ReadHeaderTimeout: time.Second}
	stop := func(ctx context.Context) error {
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(ctx) }() // refuses the waiters, and waits for the holders
		err := errors.Join(server.Shutdown(ctx), <-drained, l.Close(context.Background()))
		return err
	}
	fmt.Println(stop(context.Background()))
	// Output:
	// <nil>
}
