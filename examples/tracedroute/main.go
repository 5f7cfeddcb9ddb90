// Command tracedroute guards one Gin route and traces its waits. Set up the OpenTelemetry SDK as
// for any other service. Without the SDK there are no spans and no cost.
package main

import (
	"log"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

func main() {
	observer, err := otellock.New()
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.NewSingle(redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true}), locker.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	r := gin.Default()
	r.POST("/orders/:id/pay", ginlock.New(l, "order:{param.id}"), pay)
	log.Fatal(r.Run("localhost:8080"))
}

func pay(c *gin.Context) {
	lease, _ := ginlock.FromContext(c) // c.Request.Context() ends if the lock is lost
	c.JSON(http.StatusOK, gin.H{"order": c.Param("id"), "fence": lease.Fence()})
}
