// Command gin-checkout is a small shop on Gin. A table of rules guards its routes, and a client
// may repeat a checkout. Without arguments, the program makes a tour: it starts the shop and a
// Redis in this process, acts as its clients, and prints the replies. With -listen, the program
// serves requests, which you can send with curl.
//
//	go run ./examples/gin-checkout
//	go run ./examples/gin-checkout -listen localhost:8080 -redis redis://localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func main() {
	listen := flag.String("listen", "", "serve at this `address`, such as localhost:8080, instead of making the tour")
	url := flag.String("redis", "", "the `URL` of a Redis, such as redis://localhost:6379 (default: one inside this process)")
	flag.Parse()
	gin.SetMode(gin.ReleaseMode)
	// go-redis would log each failed attempt, but the replies show the failures anyway.
	logging.Disable()

	var err error
	if *listen == "" {
		err = tour(os.Stdout)
	} else {
		err = serve(*listen, *url)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(listen, url string) error {
	if url == "" {
		inside, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer inside.Close()
		url = "redis://" + inside.Addr()
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return fmt.Errorf("%w; a Redis URL looks like redis://user:password@localhost:6379/0", err)
	}
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	defer client.Close()
	s, err := newShop(client, func(context.Context, string) error { return nil })
	if err != nil {
		return err
	}
	server := &http.Server{Addr: listen, Handler: s.engine, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute}
	stopping, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	shutDown := make(chan error, 1)
	context.AfterFunc(stopping, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// During Drain, requests that hold a lock finish, and all others get 503. A program behind
		// a load balancer makes its readiness probe fail first, and waits until that is noticed.
		drained := make(chan error, 1)
		go func() { drained <- s.locker.Drain(ctx) }()
		shutDown <- errors.Join(server.Shutdown(ctx), <-drained, s.locker.Close(context.Background()))
	})
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-shutDown
}
