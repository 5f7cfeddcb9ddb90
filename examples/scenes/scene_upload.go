package main

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/page"
)

var longUpload = scene{
	name: "upload", title: "Upload longer than the TTL",
	text: "Ann and Bob upload new versions of one file. An upload takes three seconds, and the TTL is one second: nobody knows in advance how long work takes. " +
		"SETNX + DEL expires in the middle, the other one begins, and one of them overwrites the version of the other. " +
		"latchkit renews the lease while its holder works: the small marks on the bar. So the TTL says how soon a dead holder is noticed, and not how long work may take.",
	writes: "writes a version", harm: "overwrites a version it has not read",
	code:   editCode,
	ttl:    time.Second,
	cast:   [][]string{{"Ann"}, {"Bob"}},
	act:    func(ctx context.Context, a *actor) error { return edit(ctx, a, 3*time.Second) },
	length: 11 * time.Second,
	card:   editCard,
	check: func(cards map[string]page.Card) error {
		return join(
			want(cards, "SETNX + DEL", "writes lost", some, "some, because the lock expires"),
			want(cards, "latchkit", "writes accepted", some, "some"),
			want(cards, "latchkit", "writes lost", zero, "none"),
		)
	},
}
