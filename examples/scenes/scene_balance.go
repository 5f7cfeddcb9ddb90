package main

import (
	"context"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/optimistic"
)

var balance = scene{
	name: "balance", title: "The balance of an account", terminal: true,
	text: "Eight tellers add to one balance in Redis: each reads it, adds one, and writes it. " +
		"With latchkit, half of them take a lock, and half use optimistic.Update on a second account: it writes only if nobody has written meanwhile, and else tries again. " +
		"A short change of one value in Redis needs no lock.",
	ttl:  time.Second,
	cast: [][]string{{"teller 1", "teller 2", "teller 3", "teller 4", "teller 5", "teller 6", "teller 7", "teller 8"}},
	act: func(ctx context.Context, a *actor) error {
		add := func(ctx context.Context) error {
			n, _ := a.redis.Get(ctx, a.account("lock")).Int() // a missing key is 0
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
			return a.redis.Set(ctx, a.account("lock"), n+1, 0).Err()
		}
		for ctx.Err() == nil {
			var err error
			result := "by lock"
			if a.Mode == "latchkit" && a.index%2 == 1 {
				result = "by update"
				err = optimistic.Update(ctx, a.redis, a.account("update"), func(_ context.Context, old []byte) ([]byte, error) {
					n, _ := strconv.Atoi(string(old))
					return strconv.AppendInt(nil, int64(n+1), 10), nil
				}, optimistic.WithAttempts(1000))
			} else {
				err = a.under(ctx, locker.Exclusive, add)
			}
			if err == nil {
				err = a.result(context.WithoutCancel(ctx), 0, result)
			}
			if err != nil && ctx.Err() == nil && !goesOn(err) {
				return err
			}
		}
		return nil
	},
	length: 4 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		cfg := actorConfig{Scene: s.name, Mode: mode, Run: s.run}
		lost := 0
		for _, way := range []string{"lock", "update"} {
			n, _, err := s.count(ctx, mode, "by "+way)
			if err != nil {
				return c, err
			}
			if way == "update" && mode != "latchkit" {
				continue
			}
			value, _ := s.redis.Get(ctx, cfg.account(way)).Int() // a missing key is 0
			c.Facts = append(c.Facts, fact("deposits by "+way, n, ""))
			lost += max(0, n-value)
		}
		c.Facts = append(c.Facts, fact("deposits lost", lost, "bad"))
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "no lock", "deposits lost", some, "some"),
			want(cards, "latchkit", "deposits by lock", some, "some"),
			want(cards, "latchkit", "deposits by update", some, "some"),
			want(cards, "latchkit", "deposits lost", zero, "none"),
		)
	},
}

// account is the key of a balance.
func (c actorConfig) account(way string) string {
	return "{scenes}:balance:" + c.Run + ":" + c.slug() + ":" + way
}
