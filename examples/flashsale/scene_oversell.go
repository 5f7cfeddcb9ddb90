package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/latchkit/latchkit/internal/page"
)

var oversell = scene{
	name: "oversell", title: "Oversell",
	text: "A shop has 40 items, and 120 people click at the same moment. For each of them, the shop reads how many are left, takes the money, and writes one less. " +
		"Without a lock many read the same number, and the same item is sold many times. SETNX + DEL helps until a payment takes longer than its TTL. " +
		"latchkit renews the lock during the slow payments, and sells exactly what there is. The shop is a Gin server; the lock is one line in its route.",
	ttl:    lockTTL,
	length: 0, // until all buyers have their answer
	direct: sellAll,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		sold, err := s.books.sold(ctx, s.run+"-"+mode)
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
	saleItems  = 40
	saleBuyers = 120
)

// sellAll holds the sale in all modes at the same time, each in a shop of its own, and waits for
// all buyers.
func sellAll(ctx context.Context, s *stage) error {
	var sales sync.WaitGroup
	errs := make([]error, len(ways))
	for i := range ways {
		sales.Go(func() { errs[i] = s.sell(ctx, i) })
	}
	sales.Wait()
	return errors.Join(errs...)
}

func (s *stage) sell(ctx context.Context, way int) (err error) {
	mode, sku := ways[way].name, s.run+"-"+ways[way].name
	if err := s.books.migrate(ctx); err != nil {
		return err
	}
	if err := s.books.fill(ctx, sku, saleItems); err != nil {
		return err
	}
	sh, err := openShop(ctx, shopConfig{Way: way, Redis: s.venue.redis, DSN: s.venue.dsn, Seed: s.seed, note: func(e page.Event) {
		e.Lane = mode
		s.show(e)
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sh.close(ctx)) }()
	crowd := &crowd{size: saleBuyers, seed: s.seed, sku: sku, shops: []string{sh.url}}
	_, err = crowd.buy(ctx)
	return err
}
