package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

const (
	rush        = 200 * time.Millisecond // all buyers make their first click within this time
	connections = 100                    // to one shop; other buyers wait for a connection
	tries       = 10                     // after this many refusals, a buyer gives up
)

// An answer is how a buyer's attempt to buy an item has ended.
type answer struct {
	status  int           // of the last reply
	refused int           // how many times the buyer was told to come back later
	waited  time.Duration // from the first click to the last reply
	err     error         // not nil: an unexpected reply, or none
}

// crowd lets all buyers in, each of whom wants one item, and returns the answer of each.
func crowd(buyers int, shops []string, sku string) []answer {
	answers := make([]answer, buyers)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = buyer(i, shops[i%len(shops)], sku) })
	}
	wg.Wait()
	return answers
}

// buyer makes the clicks of a buyer, who clicks again after each "come back later".
func buyer(number int, shop, sku string) (a answer) {
	url := fmt.Sprintf("%s/skus/%s/orders?buyer=%d", shop, sku, number)
	dice := rand.New(rand.NewPCG(1, ^uint64(number))) // the same in each sale
	time.Sleep(time.Duration(dice.Int64N(int64(rush))))
	click := time.Now()
	defer func() { a.waited = time.Since(click) }()
	for {
		status, body, later, err := send(context.Background(), http.MethodPost, url)
		if err != nil {
			a.err = err
			return a
		}
		switch a.status = status; status {
		case http.StatusCreated, http.StatusGone:
			return a
		case http.StatusConflict, http.StatusServiceUnavailable: // the shop is busy, or has lost its lock
			if a.refused++; a.refused == tries {
				return a
			}
		default:
			a.err = fmt.Errorf("the shop replies %d: %s", status, body)
			return a
		}
		time.Sleep(later + time.Duration(dice.Int64N(int64(later/4)+1)))
	}
}

// web is the HTTP client of all buyers, and of the shops for the stock.
var web = http.Client{Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}}

// send sends a request without a body, and returns the status and the body of the reply. A refused
// caller comes back after the time later.
func send(ctx context.Context, method, url string) (status int, body string, later time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, "", 0, err
	}
	resp, err := web.Do(req)
	if err != nil {
		return 0, "", 0, err
	}
	text, err := io.ReadAll(resp.Body)
	later, _ = time.ParseDuration(resp.Header.Get("Retry-After") + "s")
	return resp.StatusCode, string(text), later, errors.Join(err, resp.Body.Close())
}
