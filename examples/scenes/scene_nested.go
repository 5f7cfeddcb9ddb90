package main

import (
	"context"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

var nested = scene{
	name: "nested", title: "A nested call", terminal: true,
	text: "A handler locks an order and calls a function, which locks the same order, because others call it too. " +
		"With SETNX + DEL the function waits for its own caller, until somebody gives up. " +
		"With NewReentrant the lock knows its holder by the context, and the function goes on under the lease of its caller. " +
		"Without NewReentrant, latchkit refuses at once, with ErrSelfDeadlock, instead of waiting.",
	ttl:  time.Second,
	cast: [][]string{{"handler"}},
	act: func(ctx context.Context, a *actor) error {
		reentrant, err := locker.NewReentrant(a.locks)
		if err != nil {
			return err
		}
		rule := locker.Rule{Key: a.key(), TTL: a.scene.ttl, Metadata: a.name}
		for ctx.Err() == nil {
			result := "done"
			function := func(ctx context.Context) error { return sleep(ctx, 30*time.Millisecond) }
			switch a.Mode {
			case "latchkit":
				err = locker.Run(ctx, reentrant, rule, func(ctx context.Context) error {
					if again := locker.Run(ctx, a.locks, rule, function); !errors.Is(again, locker.ErrSelfDeadlock) {
						return errors.Join(errors.New("a lock that is not reentrant was granted twice"), again)
					}
					return locker.Run(ctx, reentrant, rule, function)
				})
			case "SETNX + DEL":
				err = a.naive(ctx, a.naiveKey(), func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
					defer cancel()
					return a.naive(ctx, a.naiveKey(), function)
				})
				if errors.Is(err, context.DeadlineExceeded) {
					err, result = nil, "gave up"
				}
			default:
				err = function(ctx)
			}
			if err == nil {
				err = a.result(ctx, 0, result)
			}
			if err != nil && ctx.Err() == nil && !goesOn(err) {
				return err
			}
		}
		return nil
	},
	length: 3 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		done, _, err := s.count(ctx, mode, "done")
		if err != nil {
			return c, err
		}
		stuck, _, err := s.count(ctx, mode, "gave up")
		c.Facts = []page.Fact{fact("orders done", done, ""), fact("waited for themselves", stuck, "bad")}
		return c, err
	},
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "SETNX + DEL", "waited for themselves", some, "some"),
			want(cards, "latchkit", "orders done", some, "some"),
			want(cards, "latchkit", "waited for themselves", zero, "none"),
		)
	},
}
