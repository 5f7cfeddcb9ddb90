package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	rush        = 200 * time.Millisecond // all buyers make their first click within this time
	connections = 100                    // the limit of open connections for all buyers together; other buyers wait
	tries       = 10                     // after this many refusals, a buyer gives up
)

// A crowd is all buyers at one shop. Each is an HTTP client that wants one item.
type crowd struct {
	size int
	seed uint64
	sku  string
	shop string // its URL
	http http.Client
}

// A purchase records how one buyer's attempt to buy an item has ended.
type purchase struct {
	outcome outcome
	refused int           // number of 409 replies before the result
	waited  time.Duration // the time from the first click to the last answer
	err     error         // the error, if the result is failed
}

// outcome is the result of a click. The result of a purchase is the outcome of its last click.
type outcome int

const (
	gotIt   outcome = iota
	soldOut         // 410: no item is left
	gaveUp          // the buyer was refused too often
	failed          // an unexpected reply
)

// buy runs all buyers, and returns the result of each. It returns an error when ctx ends.
func (c *crowd) buy(ctx context.Context) ([]purchase, error) {
	transport := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	c.http.Transport = transport
	ends := make([]purchase, c.size)
	var wg sync.WaitGroup
	for i := range ends {
		wg.Go(func() {
			ends[i] = c.buyer(ctx, i)
		})
	}
	wg.Wait()
	return ends, ctx.Err()
}

// buyer makes the clicks of buyer number i, who clicks again after each "try again later".
func (c *crowd) buyer(ctx context.Context, i int) (e purchase) {
	// Each buyer has random numbers of its own, so the same seed gives the same buyers.
	dice := rand.New(rand.NewPCG(c.seed, ^uint64(i)))
	url := fmt.Sprintf("%s/skus/%s/orders?buyer=%d", c.shop, c.sku, i)
	if e.err = sleep(ctx, time.Duration(dice.Int64N(int64(rush)))); e.err != nil {
		return e
	}
	click := time.Now()
	defer func() { e.waited = time.Since(click) }()
	var later time.Duration
	for range tries {
		if e.err = sleep(ctx, later+time.Duration(dice.Int64N(int64(later/4+1)))); e.err != nil {
			return e
		}
		e.outcome, later, e.err = c.post(ctx, url)
		if e.outcome != gaveUp {
			return e
		}
		e.refused++
	}
	return e
}

// post makes one click. It returns gaveUp if the shop refused the buyer. The buyer may then try
// again later.
func (c *crowd) post(ctx context.Context, url string) (h outcome, later time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return failed, 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return failed, 0, err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusCreated:
		return gotIt, 0, nil
	case http.StatusGone:
		return soldOut, 0, nil
	case http.StatusConflict, http.StatusServiceUnavailable:
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err == nil && seconds >= 0 {
			return gaveUp, time.Duration(seconds) * time.Second, nil
		}
		if resp.StatusCode == http.StatusServiceUnavailable { // the shop has lost its lock during the purchase
			return gaveUp, 0, nil
		}
	}
	return failed, 0, fmt.Errorf("%s: %s", resp.Status, body)
}
