package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A venue has the servers that all scenes use. Each server has answered at least once.
type venue struct {
	redis, dsn string
	stockroom  *stockroom
	local      bool // the Redis is inside this process, and only for this program
	closers    []func()
}

// prepare starts the servers for which there is no flag, and checks that the other servers answer.
func (p *program) prepare(ctx context.Context) (*venue, error) {
	v := &venue{redis: p.redis, dsn: p.dsn}
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
		folder, err := os.MkdirTemp("", "scenes-")
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
