package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

var inventory = scene{
	name: "inventory", title: "An inventory by category", terminal: true,
	text: "Eight clerks book goods of sixteen categories, and a booking takes 100 ms. With one lock for the inventory they stand in one line. " +
		"With a lock for each category only clerks of the same category wait for each other. " +
		"Stripes are between the two: four locks for any number of categories, for where each lock leaves something behind.",
	ttl:  time.Second,
	cast: [][]string{{"1", "2", "3", "4", "5", "6", "7", "8"}},
	act: func(ctx context.Context, a *actor) error {
		striped, err := locker.NewStriped(a.locks, 4)
		if err != nil {
			return err
		}
		dice := rand.New(rand.NewPCG(a.Seed, uint64(a.index)))
		book := func(ctx context.Context) error { return sleep(ctx, 100*time.Millisecond) }
		for _, way := range granularities {
			booked := false
			for end := time.Now().Add(1500 * time.Millisecond); ctx.Err() == nil && (!booked || time.Now().Before(end)); {
				category := ":" + strconv.Itoa(dice.IntN(16))
				if way == "one lock" {
					category = ""
				}
				var l locker.Locker = a.locks
				if way == "four stripes" {
					l = striped
				}
				switch {
				case a.Mode == "latchkit":
					err = locker.Run(ctx, l, locker.Rule{Key: a.key() + category, TTL: a.scene.ttl}, book)
				case a.Mode == "SETNX + DEL" && way != "four stripes":
					err = a.naive(ctx, a.naiveKey()+category, book)
				default:
					err = book(ctx)
				}
				if err == nil {
					booked = true
					err = a.result(ctx, 0, way)
				}
				if err != nil && ctx.Err() == nil && !goesOn(err) {
					return err
				}
			}
		}
		return nil
	},
	length: 6 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		for _, way := range granularities {
			n, _, err := s.count(ctx, mode, way)
			if err != nil {
				return c, err
			}
			if mode == "SETNX + DEL" && way == "four stripes" {
				continue // nobody writes them by hand
			}
			c.Facts = append(c.Facts, fact(way, n, ""))
		}
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		one := number(cards["latchkit"], "one lock")
		more := func(n int) bool { return n > one }
		return join(
			want(cards, "latchkit", "one lock", some, "some"),
			want(cards, "latchkit", "a lock a category", more, fmt.Sprintf("more than the %d of one lock", one)),
			want(cards, "latchkit", "four stripes", more, fmt.Sprintf("more than the %d of one lock", one)),
		)
	},
}

// granularities are the results of a booking.
var granularities = []string{"one lock", "a lock a category", "four stripes"}
