package main

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/page"
)

var killedHolder = scene{
	name: "killed", title: "Killed holder",
	text: "Ann and Bob edit one document again. Kill the one that holds the lock: it cannot release it any more. " +
		"A SETNX without a TTL, as the first one of many programs, then stays for ever, and nobody works until a person deletes the key. " +
		"A lease of latchkit is renewed by its holder: when the holder is gone, nobody renews it, and after the TTL of two seconds at most the next one goes on. " +
		"A new process takes the place of the killed one.",
	writes: "writes a version", harm: "overwrites a version it has not read",
	code:    editCode,
	ttl:     2 * time.Second,
	forever: true,
	cast:    [][]string{{"Ann"}, {"Bob"}},
	act:     func(ctx context.Context, a *actor) error { return edit(ctx, a, 500*time.Millisecond) },
	script:  []cue{{2 * time.Second, "kill"}},
	length:  8 * time.Second,
	card: func(ctx context.Context, s *stage, mode string) (page.Card, error) {
		c, err := editCard(ctx, s, mode)
		if err != nil {
			return c, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		c.Facts = []page.Fact{c.Facts[0], c.Facts[2], fact("holders killed", s.kills[mode], "")}
		next := page.Fact{Name: "the next one had it after", Value: "-"}
		at, stuck := s.killed[mode]
		switch {
		case mode == "no lock":
			next.Value = "no lock"
		case stuck && time.Since(at) > s.ttl:
			next.Value, next.Tone = fmt.Sprintf("not yet, %.0f s", time.Since(at).Seconds()), "bad"
			c.Tone, c.Verdict = "bad", "The lock of the dead process stays. Nobody can work."
		case s.recovery[mode] > 0:
			next.Value, next.Tone = fmt.Sprintf("%.1f s", s.recovery[mode].Seconds()), "good"
			c.Tone, c.Verdict = "good", "The lease of the dead process has ended by itself, and the work goes on."
		}
		c.Facts = append(c.Facts, next)
		return c, nil
	},
	check: func(cards map[string]page.Card) error {
		errs := join(
			want(cards, "latchkit", "holders killed", some, "some"),
			want(cards, "latchkit", "writes lost", zero, "none"),
		)
		if cards["latchkit"].Tone != "good" || cards["SETNX + DEL"].Tone != "bad" {
			errs = join(errs, fmt.Errorf("latchkit: %q; SETNX + DEL: %q", cards["latchkit"].Verdict, cards["SETNX + DEL"].Verdict))
		}
		return errs
	},
}
