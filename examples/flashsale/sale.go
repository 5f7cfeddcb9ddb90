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

// A result is what one sale came to.
type result struct {
	way      string
	sold     int // orders in the database
	oversold int // orders beyond the stock
	soldOut  int // buyers who were told that nothing is left
	gaveUp   int // buyers who were refused too often
	refused  int // 409s, those included that were followed by another try
	failed   []error
	p50, p99 time.Duration // what buyers waited, from the click to their last answer
	took     time.Duration
}

// A venue is where sales take place: the servers that all shops use, known to answer.
type venue struct {
	redis, dsn string
	closers    []func()
}

// prepare starts the servers that were not given, and asks those that were.
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
		v.redis = local.url()
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
	defer func() { _ = books.close() }()
	return books.migrate(ctx)
}

func (v *venue) close() {
	for _, closer := range slices.Backward(v.closers) {
		closer()
	}
}

// hold holds the sale in each of the three ways, one after the other, and hands over each result as
// it comes. request is what -trace shows; nil without it.
func (s *sale) hold(ctx context.Context, v *venue, bar *bar, each func(result)) (results []result, request *node, err error) {
	for i := range ways {
		trace := s.trace && i == len(ways)-1 // of the last one, latchkit
		cfg := shopConfig{Way: i, Redis: v.redis, DSN: v.dsn, Seed: s.seed, Trace: trace}
		r, n, err := s.once(ctx, cfg, bar)
		if err != nil {
			return nil, nil, fmt.Errorf("the sale with %s: %w", ways[i].name, err)
		}
		each(r)
		results, request = append(results, r), n
	}
	return results, request, nil
}

// once fills the stock, opens the shops, lets the buyers in, and counts.
func (s *sale) once(ctx context.Context, cfg shopConfig, bar *bar) (r result, request *node, err error) {
	books, err := openStore(ctx, cfg.DSN)
	if err != nil {
		return r, nil, err
	}
	defer func() { err = errors.Join(err, books.close()) }()

	// A name of its own for each sale, so that sales on one database do not meet.
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
	stop := bar.show(ways[cfg.Way].name, s.buyers, &crowd.done)
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

// count puts what the buyers say into numbers.
func (s *sale) count(ends []end) (r result) {
	waits := make([]time.Duration, len(ends))
	for i, e := range ends {
		waits[i] = e.waited
		r.refused += e.refused
		switch e.how {
		case gotIt: // counted in the database, where it is true
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

// check is -assert: what must be true of every run, on every machine.
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
