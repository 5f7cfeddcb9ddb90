package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A result has the numbers of one sale.
type result struct {
	way      string
	sold     int // orders in the database
	oversold int // orders in excess of the stock
	soldOut  int // buyers who found no item left
	gaveUp   int // buyers who gave up after too many refusals
	refused  int // replies 409, including those after which the buyer tried again
	failed   []error
	p50, p99 time.Duration // how long a buyer waited, from the click to the last reply
	took     time.Duration
}

// A venue has the servers that all shops use. Each server has answered at least once.
type venue struct {
	redis, dsn string
	stockroom  *stockroom
	local      bool // the Redis is inside this process, and only for this program
	closers    []func()
}

// prepare starts the servers for which there is no flag, and checks that the other servers answer.
func (s *sale) prepare(ctx context.Context) (*venue, error) {
	v := &venue{redis: s.redis, dsn: s.dsn}
	if err := v.open(ctx); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *venue) open(ctx context.Context) error {
	if v.redis == "" {
		local, err := startRedis()
		if err != nil {
			return fmt.Errorf("start the Redis inside this process: %w", err)
		}
		v.closers = append(v.closers, local.close)
		v.redis, v.local = local.url(), true
	}
	if v.dsn == "" {
		folder, err := os.MkdirTemp("", "flashsale-")
		if err != nil {
			return err
		}
		v.closers = append(v.closers, func() { _ = os.RemoveAll(folder) })
		v.dsn = filepath.Join(folder, "shop.db")
	}
	client, err := openRedis(ctx, v.redis)
	if err != nil {
		return err
	}
	_ = client.Close()
	books, err := openStore(ctx, v.dsn)
	if err != nil {
		return err
	}
	v.closers = append(v.closers, func() { _ = books.close() })
	if err := books.migrate(ctx); err != nil {
		return err
	}
	if v.stockroom, err = openStockroom(ctx, books); err != nil {
		return err
	}
	v.closers = append(v.closers, v.stockroom.close)
	return nil
}

func (v *venue) close() {
	for _, closer := range slices.Backward(v.closers) {
		closer()
	}
}

// hold runs the sale three times, each time with another guard of a purchase. It passes each
// result to onResult. The result request is the purchase that -trace shows, or nil without
// -trace.
func (s *sale) hold(ctx context.Context, v *venue, bar *bar, onResult func(result)) (results []result, request *node, err error) {
	for i := range ways {
		trace := s.trace && i == len(ways)-1 // trace only the last way, which is latchkit
		cfg := shopConfig{Way: i, Redis: v.redis, Stockroom: v.stockroom.addr, Seed: s.seed, Trace: trace}
		r, n, err := s.holdOne(ctx, v.stockroom.store, cfg, bar)
		if err != nil {
			return nil, nil, fmt.Errorf("the sale with %s: %w", ways[i].name, err)
		}
		onResult(r)
		results, request = append(results, r), n
	}
	return results, request, nil
}

// holdOne runs one sale with the shops of cfg. It fills the stock, starts the shops, runs the
// buyers, and counts the orders.
func (s *sale) holdOne(ctx context.Context, books *store, cfg shopConfig, bar *bar) (r result, request *node, err error) {
	// Each sale has an article of its own, so that sales on one database do not disturb each
	// other.
	sku := strings.ToLower(rand.Text()[:8])
	defer func() { err = errors.Join(err, books.clear(context.WithoutCancel(ctx), sku)) }()
	if err := books.fill(ctx, sku, s.items); err != nil {
		return r, nil, err
	}

	shops, err := openBranches(ctx, cfg, s.procs)
	defer func() { err = errors.Join(err, closeBranches(ctx, shops)) }()
	if err != nil {
		return r, nil, err
	}

	crowd := &crowd{size: s.buyers, seed: s.seed, sku: sku}
	for _, shop := range shops {
		crowd.shops = append(crowd.shops, shop.url)
	}
	stop := bar.show(ways[cfg.Way].name, s.buyers, &crowd.buyersDone)
	start := time.Now()
	ends, err := crowd.buy(ctx)
	took := time.Since(start)
	stop()
	if err != nil {
		return r, nil, err
	}
	r = s.count(ends)
	r.way, r.took = ways[cfg.Way].name, took
	if r.sold, err = books.sold(ctx, sku); err != nil {
		return r, nil, err
	}
	r.oversold = max(0, r.sold-s.items)
	if cfg.Trace {
		request, err = slowestPurchase(ctx, crowd.shops)
	}
	return r, request, err
}

// count adds up the results of the buyers.
func (s *sale) count(ends []purchase) (r result) {
	waits := make([]time.Duration, len(ends))
	for i, e := range ends {
		waits[i] = e.waited
		r.refused += e.refused
		switch e.outcome {
		case gotIt: // not counted here, because the database has the true number
		case soldOut:
			r.soldOut++
		case gaveUp:
			r.gaveUp++
		case failed:
			r.failed = append(r.failed, e.err)
		}
	}
	slices.Sort(waits)
	r.p50, r.p99 = waits[len(waits)*50/100], waits[len(waits)*99/100]
	return r
}

// check implements -assert. It checks conditions that hold in every run on every machine.
func check(s *sale, results []result) error {
	var errs []error
	none, ours := results[0], results[len(results)-1]
	if want := min(s.items, s.buyers); ours.sold != want {
		errs = append(errs, fmt.Errorf("%s sold %d items instead of %d", ours.way, ours.sold, want))
	}
	if none.oversold == 0 {
		errs = append(errs, fmt.Errorf("%s sold %d of %d items, so the sale did not need a lock; try more -buyers", none.way, none.sold, s.items))
	}
	return errors.Join(errs...)
}
