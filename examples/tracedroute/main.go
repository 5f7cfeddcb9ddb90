// Command tracedroute guards one Gin route and traces its waits. Set up the OpenTelemetry SDK as
// for any other service. Without the SDK there are no spans and no cost.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// redisLog passes the messages of go-redis about its connections on to slog.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, v ...any) {
	slog.WarnContext(ctx, "redis: "+fmt.Sprintf(format, v...))
}

func main() {
	redis.SetLogger(redisLog{})
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	listener, err := net.Listen("tcp", "localhost:8080")
	if err != nil {
		log.Fatal(err)
	}
	stopping, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := serve(stopping, client, listener); err != nil {
		log.Fatal(err)
	}
}

// serve answers requests until the context stopping ends. It returns when the requests that are
// under way have been answered.
func serve(stopping context.Context, client redis.UniversalClient, listener net.Listener) error {
	observer, err := otellock.New()
	if err != nil {
		return err
	}
	l, err := locker.New(client, locker.WithObserver(observer))
	if err != nil {
		return err
	}
	r := gin.Default()
	r.POST("/orders/:id/pay", ginlock.MustNew(l, "order:{param.id|int}"), pay)
	server := &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	shutDown := make(chan error, 1)
	context.AfterFunc(stopping, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// During Drain, requests that hold a lock finish, and all others get 503. A program behind
		// a load balancer makes its readiness probe fail first, and waits until that is noticed.
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(ctx) }()
		shutDown <- errors.Join(server.Shutdown(ctx), <-drained, l.Close(ctx))
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-shutDown
}

func pay(c *gin.Context) {
	lease, _ := ginlock.FromContext(c) // c.Request.Context() ends if the lock is lost
	c.JSON(http.StatusOK, gin.H{"order": c.Param("id"), "fence": lease.Fence()})
}
