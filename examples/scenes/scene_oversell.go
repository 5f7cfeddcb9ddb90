package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/page"
)

var oversell = scene{
	name: "oversell", title: "Oversell",
	text: "Three shops sell 80 items to 120 people. For each of them, a shop reads how many are left, takes the money, and writes one less. " +
		"Without a lock two shops read the same number, and sell the same item twice. SETNX + DEL helps until a payment takes longer than its TTL. " +
		"latchkit renews the lock during the slow payments. A shop is a Gin server, and the lock is one line in its route; the stock is behind a gRPC service, " +
		"which gets the fence, and its SQL refuses a shop that has lost the lock.",
	writes: "sells an item",
	code: map[string][]string{
		"no lock":     {"shop.go#buy"},
		"SETNX + DEL": {"locks.go#naive"},
		"latchkit":    {"locks.go#latchkit", "sql/stock_write.sql"},
	},
	ttl:    lockTTL,
	length: 0, // until all buyers have their answer
	cast:   [][]string{{"shop 1"}, {"shop 2"}, {"shop 3"}},
	act:    serveBuyers,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		sold, err := s.books.sold(ctx, s.sku(mode))
		if err != nil {
			return c, err
		}
		over := max(0, sold-saleItems)
		c.Facts = []page.Fact{fact("items in stock", saleItems, ""), fact("sold", sold, ""), fact("oversold", over, "bad")}
		switch {
		case over > 0:
			c.Tone, c.Verdict = "bad", fmt.Sprintf("%d customers have paid for an item that does not exist.", over)
		case sold == saleItems:
			c.Tone, c.Verdict = "good", "Exactly the stock was sold."
		}
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "no lock", "oversold", some, "some"),
			want(cards, "latchkit", "sold", func(n int) bool { return n == saleItems }, "exactly the stock"),
		)
	},
}

const (
	saleItems  = 80
	saleBuyers = 40 // of each shop
)

// serveBuyers opens a shop, and its buyers come one after the other.
func serveBuyers(ctx context.Context, a *actor) (err error) {
	way := slices.IndexFunc(ways, func(w way) bool { return w.name == a.Mode })
	sh, err := openShop(ctx, shopConfig{
		Way: way, Redis: a.Redis, Stockroom: a.Stockroom, Seed: a.Seed,
		name: a.name, note: a.emit, fastPayment: 50 * time.Millisecond, // long enough to be seen
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sh.close(ctx)) }()
	number := int(a.name[len(a.name)-1] - '1')
	dice := rand.New(rand.NewPCG(a.Seed, uint64(number)))
	c := &crowd{seed: a.Seed, sku: a.Run + "-" + a.Mode, shop: sh.url}
	for i := range saleBuyers {
		if sleep(ctx, time.Duration(dice.Int64N(int64(300*time.Millisecond)))) != nil {
			return nil
		}
		if p := c.buyer(ctx, number*saleBuyers+i); p.outcome == failed && ctx.Err() == nil {
			a.emit(page.Event{Who: a.name, Kind: page.Lost, Text: fmt.Sprintf("sells nothing to buyer %d: %v", i+1, p.err)})
		}
	}
	return nil
}
