package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/page"
)

// A scene is a story that happens three times side by side: without a lock, with SETNX + DEL, and
// with latchkit. Each scene has a file of its own.
type scene struct {
	name, title, text string
	ttl               time.Duration       // of both locks
	writes, harm      string              // what the marks of a write and of harm mean; "": no such mark
	terminal          bool                // the page does not have it
	forever           bool                // SETNX + DEL without a TTL, as many begin
	code              map[string][]string // by mode: the places of the lines that matter; see excerpt
	cast              [][]string          // the actors of each mode; each inner list is one process
	act               func(ctx context.Context, a *actor) error
	direct            func(ctx context.Context, s *stage) error // runs beside the actors; nil: nothing
	script            []cue                                     // what happens by itself in the terminal
	length            time.Duration                             // in the terminal; 0: until the actors have ended
	card              func(ctx context.Context, s *stage, mode string) (page.Card, error)
	check             func(cards map[string]page.Card) error // implements -assert
}

// A cue is a button that is clicked at a time after the start.
type cue struct {
	at     time.Duration
	button string
}

// scenes are in the order of the page.
var scenes = []*scene{
	&oversell, &pausedHolder, &killedHolder, &longUpload, &article, &duplicate,
	&transfers, &nested, &inventory, &balance,
}

// buttons are what a visitor can do. They hit all three modes at the same time.
var buttons = []page.Choice{
	{Name: "pause", Title: "Pause the holder", Text: "Stops the process that holds the lock for two seconds, longer than the TTL, as a garbage collection or a frozen machine does"},
	{Name: "kill", Title: "Kill it", Text: "Kills the process that holds the lock, as the kernel does when memory is short"},
	{Name: "flush", Title: "Flush Redis", Text: "Deletes the locks, as a restart of a server without persistence does"},
}

// legend says in the words of the scene what its lanes show.
func (s *scene) legend() []page.Sign {
	signs := []page.Sign{
		{Kind: page.Hold, Text: "holds the lock"}, {Kind: page.Wait, Text: "waits"},
		{Kind: page.Renew, Text: "renews its lease"}, {Kind: page.Handoff, Text: "passed to the next waiter"},
		{Kind: page.Stale, Text: "works without the lock"}, {Kind: page.Pause, Text: "paused"},
		{Kind: page.Lost, Text: "lock lost"}, {Kind: page.Write, Text: s.writes},
	}
	if s.harm != "" {
		signs = append(signs, page.Sign{Kind: page.Harm, Text: s.harm})
	}
	if s != &duplicate { // its effect is a mail, and no row that keeps a fence
		signs = append(signs, page.Sign{Kind: page.Refused, Text: "refused by the fence"})
	}
	return signs
}

func findScene(name string) *scene {
	for _, s := range scenes {
		if s.name == name {
			return s
		}
	}
	return nil
}

// query returns the statement in the file of this name.
func query(name string) string {
	text, err := source.ReadFile("sql/scene/" + name + ".sql")
	if err != nil {
		panic(err) // a typing error in this program
	}
	return string(text)
}

// fact is a figure of a card. A count above zero is bad or good, as tone says.
func fact(name string, n int, tone string) page.Fact {
	f := page.Fact{Name: name, Value: strconv.Itoa(n)}
	if n > 0 {
		f.Tone = tone
	}
	return f
}

// number returns the figure of this name, or -1.
func number(c page.Card, name string) int {
	for _, f := range c.Facts {
		if f.Name == name {
			if n, err := strconv.Atoi(f.Value); err == nil {
				return n
			}
		}
	}
	return -1
}

// want returns an error unless the figure of a mode is as expected.
func want(cards map[string]page.Card, mode, name string, ok func(n int) bool, what string) error {
	if n := number(cards[mode], name); !ok(n) {
		return fmt.Errorf("%s: %s is %d; want %s", mode, name, n, what)
	}
	return nil
}

func zero(n int) bool { return n == 0 }
func some(n int) bool { return n > 0 }

// join is errors.Join, for checks.
var join = errors.Join
