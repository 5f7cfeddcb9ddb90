package main

import (
	"context"
	_ "embed"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	otellock "github.com/latchkit/latchkit/otel"
)

// rulesText has all locks of this service. A second click on checkout is refused at once, and a
// repeated request gets its stored reply without a lock. Filling a cart takes the lock of checkout,
// so a cart cannot be filled during its payment. A basket locks each of its articles, all or none.
//
//go:embed rules.json
var rulesText []byte

// A shop sells the content of a cart. Its handlers contain no locks.
type shop struct {
	engine *gin.Engine
	locker *locker.Engine
	charge func(ctx context.Context, cart string) error // takes the money at the bank
	orders atomic.Int64
}

func newShop(client *redis.Client, charge func(ctx context.Context, cart string) error) (*shop, error) {
	observer, err := otellock.New()
	if err != nil {
		return nil, err
	}
	l, err := locker.New(client, locker.WithObserver(observer)) // this turns tracing on
	if err != nil {
		return nil, err
	}
	rules, err := ginlock.ParseRules(rulesText)
	if err != nil {
		return nil, err
	}
	guard, err := ginlock.FromRules(l, rules,
		ginlock.WithClaims(claims),
		httplock.WithStore(idempotency.NewRedis(client))) // in production, use another Redis for this store
	if err != nil {
		return nil, err
	}
	s := &shop{engine: gin.New(), locker: l, charge: charge}
	s.engine.Use(gin.Recovery(), otelgin.Middleware("shop"), authenticate)
	validate := guard.Mount(s.engine)
	s.engine.POST("/carts/:id/checkout", s.checkout)
	s.engine.PUT("/carts/:id/items", s.fill)
	s.engine.POST("/reservations", s.reserve)
	s.engine.POST("/baskets", s.basket)
	return s, validate()
}

// authenticate stands for your own authentication. Its result is a claim, which a client cannot
// choose freely. In this example the token is the customer's name.
func authenticate(c *gin.Context) {
	customer, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || customer == "" {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "who are you?"})
		return
	}
	c.Set("customer", customer)
}

// claims returns the claims of a request, in which {claim.sub} is the customer.
func claims(c *gin.Context) map[string]any { return map[string]any{"sub": c.GetString("customer")} }

// stop closes the Locker. It takes at most a second. A lock that is held for longer expires after
// its TTL.
func (s *shop) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.locker.Close(ctx)
}

func (s *shop) checkout(c *gin.Context) {
	if err := s.charge(c.Request.Context(), c.Param("id")); err != nil { // the request's context ends if the lock is lost
		c.JSON(http.StatusBadGateway, gin.H{"error": "the bank does not answer"})
		return
	}
	c.JSON(http.StatusCreated, gin.H{"order": s.orders.Add(1)})
}

func (s *shop) fill(c *gin.Context) { c.Status(http.StatusNoContent) }

func (s *shop) reserve(c *gin.Context) {
	var wish struct {
		SKU   string `json:"sku"`
		Count int    `json:"count"`
	}
	if err := c.ShouldBindJSON(&wish); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	c.JSON(http.StatusOK, gin.H{"sku": wish.SKU, "reserved": wish.Count})
}

// basket reserves several articles at once. Its rule in rules.json locks each of these
// articles.
func (s *shop) basket(c *gin.Context) {
	var wish struct {
		Items []struct {
			SKU string `json:"sku"`
		} `json:"items"`
	}
	if err := c.ShouldBindJSON(&wish); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	c.JSON(http.StatusOK, gin.H{"reserved": len(wish.Items)})
}
