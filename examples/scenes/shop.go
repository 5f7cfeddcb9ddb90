package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/examples/scenes/stock"
	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

// shopConfig is the configuration of a shop.
type shopConfig struct {
	Way       int // the guard of a purchase, as an index of the slice ways
	Redis     string
	Stockroom string // its address
	Seed      uint64
	Trace     bool

	name        string           // of the shop, on the page
	note        func(page.Event) // shows on the page what the guards do; nil without a page
	fastPayment time.Duration    // a payment takes at least this long
}

// A shop is a Gin server on a port of the loopback interface. Several shops, each in its own
// process, can sell the same stock. The stock is behind a gRPC service, the stockroom.
type shop struct {
	shopConfig
	conn   *grpc.ClientConn
	stock  stock.StockClient
	redis  *redis.Client
	locks  *locker.Engine
	tracer *tracer // nil: no traces
	server *http.Server
	url    string
}

// openShop starts a shop. If ctx ends during the start, openShop fails. After the start, ctx
// does not affect the shop.
func openShop(ctx context.Context, cfg shopConfig) (*shop, error) {
	s := &shop{shopConfig: cfg}
	if s.note == nil {
		s.note = func(page.Event) {}
	}
	if err := s.open(ctx, cfg); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *shop) open(ctx context.Context, cfg shopConfig) (err error) {
	if s.conn, err = dialStockroom(cfg.Stockroom); err != nil {
		return err
	}
	s.stock = stock.NewStockClient(s.conn)
	if s.redis, err = openRedis(ctx, cfg.Redis); err != nil {
		return err
	}
	// The braces are a hash tag. With the tag, all locks are in one slot, so only one fence
	// counter is left behind.
	locks := []locker.SingleOption{locker.WithPrefix("{scenes}:")}
	if cfg.Trace {
		s.tracer = newTracer()
		observer, err := s.tracer.observer()
		if err != nil {
			return err
		}
		locks = append(locks, locker.WithObserver(observer))
	}
	if cfg.note != nil {
		locks = append(locks, locker.WithObserver(watcher{cfg.note}))
	}
	if s.locks, err = locker.New(s.redis, locks...); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String()
	s.server = &http.Server{Handler: s.router(ways[cfg.Way].guard(s)), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(listener) }() // until close
	return nil
}

// close ends the requests first, and then closes the resources that they use. It closes all
// resources even when ctx has ended.
func (s *shop) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.Shutdown(ctx))
	}
	if s.locks != nil {
		errs = append(errs, s.locks.Close(ctx))
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

func (s *shop) router(guard gin.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode) // debug mode prints the routes
	r := gin.New()
	if s.tracer != nil {
		// before the guard, so that the wait for the lock is part of the request's span
		r.Use(s.tracer.middleware())
	}
	name := func(c *gin.Context) {
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), named{}, s.name))
	}
	r.POST("/skus/:id/orders", name, guard, s.buy)
	return r
}

// buy sells one item. It reads the stock, takes the money, and writes the stock. Its only code for
// locks is the fence, which it passes on: without a lock, fence is 0. When the lock is lost, ctx
// ends, and with it the call that is under way.
func (s *shop) buy(c *gin.Context) {
	ctx, sku := c.Request.Context(), c.Param("id")
	buyer, err := strconv.Atoi(c.Query("buyer"))
	if err != nil {
		c.AbortWithStatus(http.StatusBadRequest)
		return
	}
	fence := fenceOf(ctx)
	//show:buy
	left, err := s.read(ctx, &stock.ReadRequest{Sku: sku, Fence: fence})
	//show:end
	if err != nil {
		s.fail(c, err)
		return
	}
	if left <= 0 {
		c.Status(http.StatusGone)
		return
	}
	//show:buy
	if err := s.charge(ctx, buyer); err != nil {
		s.fail(c, err)
		return
	}
	if err := s.sell(ctx, &stock.SellRequest{Sku: sku, Fence: fence, Buyer: int64(buyer), Left: left - 1}); err != nil {
		s.fail(c, err)
		return
	}
	//show:end
	s.note(page.Event{Who: s.name, Kind: page.Write, Text: fmt.Sprintf("sells an item, and writes that %d are left", left-1)})
	c.Status(http.StatusCreated)
}

// fenceOf returns the fence of the lease of ctx, or 0.
func fenceOf(ctx context.Context) uint64 {
	if lease, ok := locker.FromContext(ctx); ok {
		return lease.Fence()
	}
	return 0
}

func (s *shop) read(ctx context.Context, r *stock.ReadRequest) (left int64, err error) {
	ctx, end := step(ctx, "read stock")
	defer end()
	reply, err := s.stock.Read(ctx, r)
	return reply.GetLeft(), err
}

func (s *shop) sell(ctx context.Context, r *stock.SellRequest) error {
	ctx, end := step(ctx, "write order and stock")
	defer end()
	_, err := s.stock.Sell(ctx, r)
	return err
}

// charge takes the money. A buyer's payment takes the same time in all modes.
func (s *shop) charge(ctx context.Context, buyer int) error {
	ctx, end := step(ctx, "charge the card")
	defer end()
	return sleep(ctx, max(paymentTime(s.Seed, buyer), s.fastPayment))
}

// paymentTime returns how long the payment of a buyer takes. For one buyer in twenty, it takes
// longer than a lock's TTL. For the other buyers, it takes 2 to 8 ms.
func paymentTime(seed uint64, buyer int) time.Duration {
	r := rand.New(rand.NewPCG(seed, uint64(buyer)))
	if r.IntN(20) == 0 {
		return 3*lockTTL/2 + time.Duration(r.Int64N(int64(lockTTL)))
	}
	return 2*time.Millisecond + time.Duration(r.Int64N(int64(6*time.Millisecond)))
}

// sleep pauses for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fail replies that no item was bought. It writes no reply when ctx has ended, because the guard
// then replies that the lock was lost.
func (s *shop) fail(c *gin.Context, err error) {
	if c.Request.Context().Err() != nil {
		c.Status(http.StatusServiceUnavailable)
		return
	}
	if status.Code(err) == codes.Aborted {
		s.note(page.Event{Who: s.name, Kind: page.Refused, Text: "is refused by the database: " + status.Convert(err).Message()})
		c.Header("Retry-After", "0")
		c.AbortWithStatus(http.StatusConflict)
		return
	}
	c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
}
