package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

var transfers = scene{
	name: "transfers", title: "Transfers from A to B, and from B to A", terminal: true,
	text: "Ann moves money from A to B while Bob moves money from B to A. A transfer needs both accounts. " +
		"Without a lock, transfers overwrite each other. With SETNX + DEL, Ann takes A and waits for B, and Bob takes B and waits for A: for ever. " +
		"RunAll takes several keys always in the same order, in one step when they are free.",
	ttl: time.Second, forever: true,
	cast: [][]string{{"Ann"}, {"Bob"}},
	act: func(ctx context.Context, a *actor) error {
		from, to := "A", "B"
		if a.name == "Bob" {
			from, to = to, from
		}
		for ctx.Err() == nil {
			err := a.underAll(ctx, []string{from, to}, func(ctx context.Context) error { return transfer(ctx, a, from) })
			if err != nil && ctx.Err() == nil && !goesOn(err) {
				return err
			}
		}
		return nil
	},
	length: 5 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		var a, b, ann, bob int
		if err := s.books.db.QueryRowContext(ctx, query("document_balances"), s.run, mode).Scan(&a, &b, &ann, &bob); err != nil {
			return c, err
		}
		lost := max(a-(bob-ann), (bob-ann)-a)
		c.Facts = []page.Fact{fact("transfers", ann+bob, ""), fact("transfers lost", lost, "bad")}
		switch {
		case lost > 0:
			c.Tone, c.Verdict = "bad", fmt.Sprintf("The balances are wrong by %d.", lost)
		case s.quiet(mode) > time.Second:
			c.Tone, c.Verdict = "bad", "Ann and Bob wait for each other, for ever."
		default:
			c.Tone, c.Verdict = "good", "The balances are right, and nobody is stuck."
		}
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		var stuck error
		if cards["SETNX + DEL"].Tone != "bad" {
			stuck = errors.New("SETNX + DEL: there was no deadlock")
		}
		return join(stuck,
			want(cards, "no lock", "transfers lost", some, "some"),
			want(cards, "latchkit", "transfers", some, "some"),
			want(cards, "latchkit", "transfers lost", zero, "none"),
		)
	},
}

// transfer reads both balances, works, and writes both.
func transfer(ctx context.Context, a *actor, from string) error {
	var left, right, ann, bob int
	if err := a.db.QueryRowContext(ctx, query("document_balances"), a.Run, a.Mode).Scan(&left, &right, &ann, &bob); err != nil {
		return err
	}
	amount := 1
	if from == "A" {
		amount = -1
	}
	// Ann and Bob take different times, so that they do not always read at the same moment.
	if err := sleep(ctx, time.Duration(60+int(a.name[0])%7*10)*time.Millisecond); err != nil {
		return err
	}
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Rollback does nothing after Commit
	if _, err := tx.ExecContext(ctx, query("document_transfer"), left+amount, right-amount, a.name, a.Run, a.Mode); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, query("result_add"), a.Run, a.Mode, a.name, 0, "moved"); err != nil {
		return err
	}
	return tx.Commit()
}

// underAll does the work under the locks of several keys.
func (a *actor) underAll(ctx context.Context, names []string, work func(ctx context.Context) error) error {
	switch a.Mode {
	case "latchkit":
		var rules []locker.Rule
		for _, name := range names {
			rules = append(rules, locker.Rule{Key: a.key() + ":" + name, TTL: a.scene.ttl, Metadata: a.name})
		}
		return locker.RunAll(ctx, a.locks, rules, work)
	case "SETNX + DEL":
		for _, name := range names {
			inner := work
			work = func(ctx context.Context) error {
				// Between the two locks, the program asks another service.
				return a.naive(ctx, fmt.Sprint(a.naiveKey(), ":", name), func(ctx context.Context) error {
					return errors.Join(sleep(ctx, 30*time.Millisecond), inner(ctx))
				})
			}
		}
	}
	return work(ctx)
}
