package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// A shop is an HTTP server. Several shops, each in its own process, can sell the same stock.
type shop struct {
	stock stockURL
	redis *redis.Client
	locks *locker.Engine
}

// A shopConfig says what a shop needs.
type shopConfig struct {
	way   int // the guard of a purchase, as an index of ways
	redis string
	stock stockURL
}

// openShop starts a shop in this process.
func openShop(cfg shopConfig) (url string, stop func() error, err error) {
	client, err := openRedis(cfg.redis)
	if err != nil {
		return "", nil, err
	}
	// The braces put all locks into one slot, so that only one counter of fences is left behind.
	locks, err := locker.New(client, locker.WithPrefix("{flashsale}:"))
	if err != nil {
		return "", nil, errors.Join(err, client.Close())
	}
	s := &shop{cfg.stock, client, locks}
	mux := http.NewServeMux()
	mux.Handle("POST /skus/{id}/orders", ways[cfg.way].guard(s)(http.HandlerFunc(s.buy)))
	url, stopServer, err := serve(mux)
	stop = func() error { // in this order
		return errors.Join(stopServer(), locks.Close(context.Background()), client.Close())
	}
	return url, stop, err
}

// serve serves h at a free port of the loopback interface.
func serve(h http.Handler) (url string, stop func() error, err error) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), server.Close, nil
}

// purchase sells one item, if one is left. It charges the card under the lock, of which it knows
// only the fence: 0 without a lock. When the lock is lost, ctx ends, and the purchase with it.
func (s *shop) purchase(ctx context.Context, buyer int, fence uint64) (sold bool, err error) {
	left, err := s.stock.read(ctx, fence)
	if err != nil || left <= 0 {
		return false, err
	}
	if err := charge(ctx, buyer); err != nil {
		return false, err
	}
	return true, s.stock.sell(ctx, left-1, fence)
}

// buy answers the request of a buyer.
func (s *shop) buy(w http.ResponseWriter, r *http.Request) {
	var fence uint64
	if lease, ok := httplock.FromContext(r); ok {
		fence = lease.Fence()
	}
	buyer, _ := strconv.Atoi(r.FormValue("buyer")) // each buyer has a number
	sold, err := s.purchase(r.Context(), buyer, fence)
	switch {
	case err == nil && sold:
		w.WriteHeader(http.StatusCreated)
	case err == nil:
		w.WriteHeader(http.StatusGone)
	case errors.Is(err, errStale):
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusConflict)
	case r.Context().Err() != nil: // the lock is lost, as httplock replies
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// charge takes the money of a buyer.
func charge(ctx context.Context, buyer int) error {
	select {
	case <-time.After(paymentTime(buyer)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// paymentTime returns how long the payment of a buyer takes: the same in all three sales. For one
// buyer in twenty it takes longer than a lock's TTL, and for the others 2 to 8 ms.
func paymentTime(buyer int) time.Duration {
	dice := rand.New(rand.NewPCG(1, uint64(buyer)))
	if dice.IntN(20) == 0 {
		return 3*lockTTL/2 + time.Duration(dice.Int64N(int64(lockTTL)))
	}
	return 2*time.Millisecond + time.Duration(dice.Int64N(int64(6*time.Millisecond)))
}

// childVariable is the environment variable that makes this program a child process with one shop.
// Its value is a shopConfig. The child prints its URL, or why there is none. It closes the shop at
// the end of its input, which comes even when the parent is killed.
const childVariable = "FLASHSALE_SHOP"

// startShop starts a shop in a child process.
func startShop(cfg shopConfig) (url string, stop func() error, err error) {
	program, _ := os.Executable() // Start says it if there is none
	child := exec.Command(program)
	value := fmt.Sprintf("%d %q %q", cfg.way, cfg.redis, cfg.stock)
	child.Env = append(os.Environ(), childVariable+"="+value)
	stdin, err := child.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := child.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(stdin.Close(), child.Wait()) }
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if !strings.HasPrefix(line, "http://") {
		return "", nil, errors.Join(fmt.Errorf("a shop in another process: %s", line), stop())
	}
	return strings.TrimSpace(line), stop, nil
}

// runChild is the main function of a child process.
func runChild(config string) {
	var cfg shopConfig
	_, _ = fmt.Sscanf(config, "%d %q %q", &cfg.way, &cfg.redis, &cfg.stock) // as startShop writes it
	url, stop, err := openShop(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(url)
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = stop() // if the parent was killed, the Redis in it does not answer
}
