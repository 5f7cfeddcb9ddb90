package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var article = scene{
	name: "article", title: "Readers and a writer",
	text: "Four readers read an article, its title and then its text, and an editor writes new versions meanwhile. Without a lock, a reader gets half of each version. " +
		"With SETNX + DEL readers wait for each other, although they change nothing, and the editor gets the lock by luck. " +
		"With latchkit readers share the lock, and the editor's turn comes when the readers of this moment are done. " +
		"Readers who share it have one fence, and the row keeps it: so an editor who comes too late is refused.",
	writes: "writes or reads a version", harm: "has half of each version",
	code: map[string][]string{
		"no lock":     {"sql/scene/document_read.sql", "sql/scene/document_body.sql"},
		"SETNX + DEL": {"actor.go#naive"},
		"latchkit":    {"scene_article.go#modes", "actor.go#run"},
	},
	ttl:  time.Second,
	cast: [][]string{{"editor"}, {"reader 1", "reader 2", "reader 3", "reader 4"}},
	act: func(ctx context.Context, a *actor) error {
		for version := 1; ctx.Err() == nil; version++ {
			var err error
			pause := 60 * time.Millisecond
			//show:modes
			if a.name == "editor" {
				err = a.under(ctx, locker.Exclusive, func(ctx context.Context) error { return rewrite(ctx, a, version) })
				pause = 400 * time.Millisecond
			} else {
				err = a.under(ctx, locker.Shared, func(ctx context.Context) error { return read(ctx, a) })
			}
			//show:end
			err = errors.Join(err, sleep(ctx, pause))
			if err != nil && ctx.Err() == nil && !goesOn(err) {
				return err
			}
		}
		return nil
	},
	length: 6 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (c page.Card, err error) {
		whole, _, err := s.count(ctx, mode, "read")
		if err != nil {
			return c, err
		}
		torn, _, err := s.count(ctx, mode, "torn")
		if err != nil {
			return c, err
		}
		written, _, err := s.count(ctx, mode, "written")
		if err != nil {
			return c, err
		}
		refused, _, err := s.count(ctx, mode, "refused")
		if err != nil {
			return c, err
		}
		c.Facts = []page.Fact{fact("articles read", whole, ""), fact("half of each version", torn, "bad"), fact("versions written", written, ""), fact("refused by the fence", refused, "good")}
		switch {
		case torn > 0:
			c.Tone, c.Verdict = "bad", fmt.Sprintf("%d readers got the title of one version and the text of another.", torn)
		case mode == "latchkit" && whole > 0:
			c.Tone, c.Verdict = "good", "Readers read together, and the editor gets its turn."
		case whole > 0:
			c.Verdict = "Nothing is torn, but readers stand in line one by one."
		}
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		naive := number(cards["SETNX + DEL"], "articles read")
		return join(
			want(cards, "no lock", "half of each version", some, "some"),
			want(cards, "latchkit", "half of each version", zero, "none"),
			want(cards, "latchkit", "versions written", some, "some"),
			want(cards, "latchkit", "articles read", func(n int) bool { return n > naive }, fmt.Sprintf("more than the %d of SETNX + DEL, because readers share", naive)),
		)
	},
}

// rewrite writes a version, after some work.
func rewrite(ctx context.Context, a *actor, version int) error {
	fence, err := a.claim(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, 150*time.Millisecond); err != nil {
		return err
	}
	switch err := sqllock.FencedUpdate(ctx, a.db, query("document_rewrite"), version, a.name, int64(fence), a.Run, a.Mode); {
	case errors.Is(err, sqllock.ErrStaleFence):
		a.emit(page.Event{Who: a.name, Kind: page.Refused, Fence: fence, Text: "is refused by the database: readers with a newer fence are at work"})
		return errors.Join(err, a.result(ctx, version, "refused"))
	case err != nil:
		return err
	}
	a.emit(page.Event{Who: a.name, Kind: page.Write, Text: fmt.Sprintf("writes version %d", version)})
	return a.result(ctx, version, "written")
}

// read reads the title, and then the text.
func read(ctx context.Context, a *actor) error {
	mine, err := a.claim(ctx)
	if err != nil {
		return err
	}
	var title, body int
	var fence uint64
	var writer string
	if err := a.db.QueryRowContext(ctx, query("document_read"), a.Run, a.Mode).Scan(&title, &writer, &fence); err != nil {
		return err
	}
	if err := sleep(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	if err := a.db.QueryRowContext(ctx, query("document_body"), a.Run, a.Mode).Scan(&body, &fence); err != nil {
		return err
	}
	switch {
	case fence > mine:
		a.emit(page.Event{Who: a.name, Kind: page.Refused, Fence: mine, Text: "throws away what it has read: the row has a newer fence"})
		return a.result(ctx, title, "refused")
	case title == body:
		return a.result(ctx, title, "read")
	}
	a.emit(page.Event{Who: a.name, Kind: page.Harm, Text: fmt.Sprintf("has the title of version %d and the text of version %d", title, body)})
	return a.result(ctx, title, "torn")
}

// slug is the mode in the names of keys and queues.
func (c actorConfig) slug() string {
	return strings.NewReplacer(" ", "", "+", "").Replace(strings.ToLower(c.Mode))
}
