package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var pausedHolder = scene{
	name: "paused", title: "Paused holder",
	text: "Ann and Bob edit one document: each reads version n and writes n + 1. Pause the one that holds the lock: it runs out, " +
		"the other goes on, and the sleeper wakes and writes from an old version. No lock service can stop that. A fence can: a number " +
		"that grows with each grant; the database refuses a smaller one (WHERE fence <= mine). SETNX + DEL has none, and its DEL can free " +
		"somebody else's lock.",
	writes: "writes a version", harm: "overwrites a version it has not read",
	code:   editCode,
	ttl:    time.Second,
	cast:   [][]string{{"Ann"}, {"Bob"}},
	act:    func(ctx context.Context, a *actor) error { return edit(ctx, a, 600*time.Millisecond) },
	script: []cue{{2 * time.Second, "pause"}},
	length: 7 * time.Second,
	card:   editCard,
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "no lock", "writes lost", some, "some"),
			want(cards, "SETNX + DEL", "writes lost", some, "some, because the sleeper overwrites"),
			want(cards, "latchkit", "writes lost", zero, "none"),
			want(cards, "latchkit", "refused by the fence", some, "some"),
		)
	},
}

// editCode is the code of the scenes in which a document is edited.
var editCode = map[string][]string{
	"no lock":     {"sql/scene/document_write.sql"},
	"SETNX + DEL": {"actor.go#naive", "sql/scene/document_write.sql"},
	"latchkit":    {"actor.go#run", "sql/scene/document_write_fenced.sql"},
}

// edit edits the document again and again.
func edit(ctx context.Context, a *actor, length time.Duration) error {
	dice := rand.New(rand.NewPCG(a.Seed, uint64(len(a.name)+int(a.name[0]))))
	for ctx.Err() == nil {
		err := a.under(ctx, locker.Exclusive, func(ctx context.Context) error {
			return editOnce(ctx, a, length+time.Duration(dice.Int64N(int64(length/3))))
		})
		if err != nil && ctx.Err() == nil && !goesOn(err) {
			return err
		}
		_ = sleep(ctx, time.Duration(100+dice.IntN(100))*time.Millisecond) // the loop ends with ctx
	}
	return nil
}

// editOnce reads the document, works, and writes the next version. The work does not look at its
// context, as a call into a library that knows no contexts: so it wakes from a pause right before
// its write.
func editOnce(ctx context.Context, a *actor, length time.Duration) error {
	stop := ctx
	ctx = context.WithoutCancel(ctx) // keeps the lease, and with it the fence
	var base, current, fence int
	var writer string
	mine, err := a.claim(ctx)
	if err != nil {
		return err
	}
	if err := a.db.QueryRowContext(ctx, query("document_read"), a.Run, a.Mode).Scan(&base, &writer, &fence); err != nil {
		return err
	}
	time.Sleep(length)
	if mine == 0 {
		if err := a.db.QueryRowContext(ctx, query("document_read"), a.Run, a.Mode).Scan(&current, &writer, &fence); err != nil {
			return err
		}
		if _, err := a.db.ExecContext(ctx, query("document_write"), base+1, a.name, a.Run, a.Mode); err != nil {
			return err
		}
		if current > base {
			a.emit(page.Event{Who: a.name, Kind: page.Harm, Text: fmt.Sprintf("overwrites version %d of %s, which it has never read", current, writer)})
		} else {
			a.emit(page.Event{Who: a.name, Kind: page.Write, Text: fmt.Sprintf("writes version %d", base+1)})
		}
		return a.result(ctx, 0, "written")
	}
	err = sqllock.FencedUpdate(ctx, a.db, query("document_write_fenced"), base+1, a.name, int64(mine), a.Run, a.Mode)
	switch {
	case errors.Is(err, sqllock.ErrStaleFence):
		if err := a.db.QueryRowContext(ctx, query("document_read"), a.Run, a.Mode).Scan(&current, &writer, &fence); err != nil {
			return err
		}
		a.emit(page.Event{Who: a.name, Kind: page.Refused, Fence: mine,
			Text: fmt.Sprintf("is refused by the database: its fence %d is smaller than %d, the fence of %s", mine, fence, writer)})
		return a.result(ctx, 0, "refused")
	case err != nil:
		return err
	}
	a.emit(page.Event{Who: a.name, Kind: page.Write, Text: fmt.Sprintf("writes version %d", base+1)})
	return errors.Join(a.result(ctx, 0, "written"), context.Cause(stop))
}

// claim shows the fence of the lease to the row, which from then on refuses earlier holders. It
// returns the fence, or 0 without a lease.
func (a *actor) claim(ctx context.Context) (fence uint64, err error) {
	if fence = fenceOf(ctx); fence != 0 {
		err = sqllock.FencedUpdate(ctx, a.db, query("document_claim"), int64(fence), a.Run, a.Mode)
	}
	return fence, err
}

// result records how something has ended.
func (a *actor) result(ctx context.Context, item int, result string) error {
	_, err := a.db.ExecContext(ctx, query("result_add"), a.Run, a.Mode, a.name, item, result)
	return err
}

// editCard counts the writes, and compares them with the version of the document.
func editCard(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
	written, _, err := s.count(ctx, mode, "written")
	if err != nil {
		return c, err
	}
	refused, _, err := s.count(ctx, mode, "refused")
	if err != nil {
		return c, err
	}
	var version, fence int
	var writer string
	if err := s.books.db.QueryRowContext(ctx, query("document_read"), s.run, mode).Scan(&version, &writer, &fence); err != nil {
		return c, err
	}
	lost := max(0, written-version)
	c.Facts = []page.Fact{fact("writes accepted", written, ""), fact("version of the document", version, ""), fact("writes lost", lost, "bad"), fact("refused by the fence", refused, "good")}
	switch {
	case lost > 0:
		c.Tone, c.Verdict = "bad", fmt.Sprintf("Writes that were overwritten by somebody who had never read them: %d.", lost)
	case refused > 0:
		c.Tone, c.Verdict = "good", "The sleeper came too late, and the database refused its write. No accepted write was overwritten."
	case written > 0:
		c.Verdict = "No write is lost so far."
	}
	return c, nil
}
