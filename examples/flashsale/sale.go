package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// A result has the numbers of one sale.
type result struct {
	way      way
	sold     int           // orders
	oversold int           // orders beyond the stock
	soldOut  int           // buyers who found no item left
	gaveUp   int           // buyers who gave up after too many refusals
	refused  int           // refusals, including those after which the buyer came back
	p50, p99 time.Duration // how long a buyer waited, from the first click to the last reply
	took     time.Duration
}

// head and row are the table, which fits into a terminal of 80 columns.
const (
	head = "            sold  oversold  sold out  gave up  refused  p50 ms  p99 ms     took\n"
	row  = "%4d  %8d  %8d  %7d  %7d  %6d  %6d  %5.1f s\n"
)

// hold holds the sale three times, each time with another guard of a purchase. It prints the name
// of each when it begins, and its numbers when it has ended.
func (s *sale) hold(out io.Writer) (results []result, err error) {
	url, server := s.redis, "your Redis"
	if url == "" {
		server = "a Redis inside this process"
		if url, err = startRedis(); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(out, "%d items, %d buyers, %s; shops: %d.\n\n%s", s.items, s.buyers, server, s.procs, head)
	for i, way := range ways {
		fmt.Fprintf(out, "%-11s ", way.name)
		r, err := s.holdOnce(shopConfig{way: i, redis: url})
		if err != nil {
			fmt.Fprintln(out)
			return nil, fmt.Errorf("the sale with %s: %w", way.name, err)
		}
		fmt.Fprintf(out, row, r.sold, r.oversold, r.soldOut, r.gaveUp, r.refused,
			r.p50.Milliseconds(), r.p99.Milliseconds(), r.took.Seconds())
		results = append(results, r)
	}
	return results, nil
}

// holdOnce fills the stock, opens the shops, lets the buyers in, and counts the orders.
func (s *sale) holdOnce(cfg shopConfig) (r result, err error) {
	stock := &stock{leftOver: s.items}
	url, stop, err := serve(stock)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	cfg.stock = stockURL(url)
	open := openShop
	if s.procs > 1 {
		open = startShop
	}
	var shops []string
	for range s.procs {
		url, stop, err := open(cfg)
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		shops = append(shops, url)
	}
	// The name of the article keeps this sale apart from others on the same Redis.
	sku, start := rand.Text()[:8], time.Now()
	answers := crowd(s.buyers, shops, sku)
	r = result{way: ways[cfg.way], took: time.Since(start)}
	err = stock.update(^uint64(0), func() { r.sold = stock.orders }) // nobody sells from here on
	r.oversold = max(0, r.sold-s.items)
	return r, errors.Join(err, r.count(answers))
}

// count adds up the answers of the buyers. It returns the error of a buyer whose request failed.
func (r *result) count(answers []answer) (err error) {
	waits := make([]time.Duration, len(answers))
	for i, a := range answers {
		waits[i] = a.waited
		r.refused += a.refused
		switch {
		case a.err != nil:
			err = a.err
		case a.status == http.StatusGone:
			r.soldOut++
		case a.status != http.StatusCreated:
			r.gaveUp++
		}
	}
	slices.Sort(waits)
	r.p50, r.p99 = waits[len(waits)*50/100], waits[len(waits)*99/100]
	return err
}

// openRedis returns a client of a server that answers.
func openRedis(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("%w; a Redis URL looks like redis://user:password@localhost:6379/0", err)
	}
	logging.Disable() // go-redis would log each failed attempt; the error below has the last one
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	if err := client.Ping(context.Background()).Err(); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("no Redis answers at %s: %w", options.Addr, err)
	}
	return client, nil
}

// startRedis starts a miniredis in this process, until the program ends. It is enough to see what
// happens. To prove that a lock is safe, use a real Redis.
func startRedis() (url string, err error) {
	server, err := miniredis.Run()
	if err != nil {
		return "", err
	}
	server.ClockTTL(true)
	go func() { // its clock stands still unless the program sets it
		for now := range time.Tick(time.Millisecond) {
			server.SetTime(now)
		}
	}()
	return "redis://" + server.Addr(), nil
}
