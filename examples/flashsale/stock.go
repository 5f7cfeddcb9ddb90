package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// A stock stands for a database, so that nothing has to be installed: a row with the columns
// left_over and fence, and a table of orders. A purchase runs read, takes the money, and runs sell.
type stock struct {
	mu       sync.Mutex
	leftOver int
	fence    uint64
	orders   int // the true number of sold items, even if leftOver is wrong
}

// errStale says that a later holder of the lock was here.
var errStale = errors.New("0 rows updated: another buyer has the lock by now, and a larger fence")

// update is the statement that stops a holder who is too late, in one transaction with set:
//
//	UPDATE stock SET fence = $fence, … WHERE fence <= $fence
//
// Without a lock the fence is 0, and the row refuses nobody.
func (s *stock) update(fence uint64, set func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence > fence {
		return errStale
	}
	s.fence = fence
	set()
	return nil
}

// read shows the fence of its caller to the row, which refuses earlier holders from here on:
//
//	UPDATE stock SET fence = $fence WHERE fence <= $fence RETURNING left_over
func (s *stock) read(fence uint64) (left int, err error) {
	err = s.update(fence, func() { left = s.leftOver })
	return left, err
}

// sell writes an order, and how many items are left:
//
//	UPDATE stock SET left_over = $left, fence = $fence WHERE fence <= $fence
//	INSERT INTO orders …
//
// A real shop would write "left_over = left_over - 1 WHERE left_over > 0", which needs no lock.
// This statement stands for work that one statement cannot express: the shop has computed left
// from an older read.
func (s *stock) sell(left int, fence uint64) error {
	return s.update(fence, func() {
		s.leftOver = left
		s.orders++
	})
}

// ServeHTTP makes the stock a server, as a database is, for shops in all processes:
//
//	GET  /?fence=7          read
//	POST /?fence=7&left=16  sell
func (s *stock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fence, err := strconv.ParseUint(r.FormValue("fence"), 10, 64)
	left, _ := strconv.Atoi(r.FormValue("left")) // only sell has it
	switch {
	case err != nil:
	case r.Method == http.MethodGet:
		left, err = s.read(fence)
	default:
		err = s.sell(left, fence)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusPreconditionFailed)
		return
	}
	_, _ = fmt.Fprint(w, left) // the shop may have gone
}

// A stockURL is the address of a stock, for the shops.
type stockURL string

func (at stockURL) read(ctx context.Context, fence uint64) (left int, err error) {
	return ask(ctx, http.MethodGet, fmt.Sprintf("%s?fence=%d", at, fence))
}

func (at stockURL) sell(ctx context.Context, left int, fence uint64) error {
	_, err := ask(ctx, http.MethodPost, fmt.Sprintf("%s?fence=%d&left=%d", at, fence, left))
	return err
}

func ask(ctx context.Context, method, url string) (left int, err error) {
	status, body, _, err := send(ctx, method, url)
	switch {
	case err != nil:
		return 0, err
	case status != http.StatusOK:
		return 0, errStale
	}
	return strconv.Atoi(body)
}
