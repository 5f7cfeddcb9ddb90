package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/page"
)

// play runs a scene in the terminal, with its script, and prints its figures.
func (p *program) play(ctx context.Context, v *venue, sc *scene, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n%s\n\n", sc.title, wrapped(sc.text, 96))
	var mu sync.Mutex
	start := time.Now()
	st, err := openStage(ctx, sc, v, p.seed, func(e page.Event) {
		switch e.Kind {
		case page.Lost, page.Refused, page.Harm, page.Pause, page.Resume, page.Kill:
			mu.Lock()
			defer mu.Unlock()
			if p.trace {
				fmt.Fprintf(out, "%6.2f s  %-11s  %s %s\n", time.Since(start).Seconds(), e.Lane, e.Who, e.Text)
			}
		default: // it happens too often to be read
		}
	})
	if err != nil {
		return err
	}
	cards, byMode, err := p.perform(ctx, st)
	if err = errors.Join(err, st.close()); err != nil {
		return err
	}
	for _, c := range cards {
		fmt.Fprintf(out, "%s\n", c.Title)
		for _, f := range c.Facts {
			fmt.Fprintf(out, "  %-28s %s\n", f.Name, f.Value)
		}
		if c.Verdict != "" {
			fmt.Fprintf(out, "  %s\n", c.Verdict)
		}
	}
	if p.assert {
		if err := sc.check(byMode); err != nil {
			return fmt.Errorf("assertion failed: %w", err)
		}
		fmt.Fprintln(out, "Assertions hold.")
	}
	return nil
}

// perform lets the script of a scene happen, and returns the figures. With -assert, the script
// happens again, four times at most, if a busy machine was too late for it.
func (p *program) perform(ctx context.Context, st *stage) ([]page.Card, map[string]page.Card, error) {
	for round := 0; ; round++ {
		if err := st.follow(ctx); err != nil {
			return nil, nil, err
		}
		cards, byMode, err := st.cards(ctx)
		if err != nil || !p.assert || round == 4 || st.check(byMode) == nil {
			return cards, byMode, err
		}
	}
}

// follow lets the script of the scene happen once.
func (s *stage) follow(ctx context.Context) error {
	start := time.Now()
	for _, c := range s.script {
		if err := sleep(ctx, time.Until(start.Add(c.at))); err != nil {
			return err
		}
		if err := s.do(c.button); err != nil {
			return err
		}
	}
	if s.length == 0 {
		s.work.Wait()
		return ctx.Err()
	}
	return sleep(ctx, time.Until(start.Add(s.length)))
}

// theatre shows the scenes on a page, one at a time.
type theatre struct {
	ctx   context.Context //nolint:containedctx // it is the life of the program, and ends the scenes
	venue *venue
	seed  uint64
	page  *page.Page

	mu    sync.Mutex // one scene begins or ends at a time
	scene *scene     // the one that runs, or did not begin
	stage *stage
	stop  context.CancelFunc
	shown sync.WaitGroup
}

// serve shows the scenes on a page until ctx ends.
func (p *program) serve(ctx context.Context, v *venue, out io.Writer) error {
	var choices []page.Choice
	for _, sc := range scenes {
		if !sc.terminal {
			choices = append(choices, page.Choice{Name: sc.name, Title: sc.title, Text: sc.text, Legend: sc.legend()})
		}
	}
	t := &theatre{ctx: ctx, venue: v, seed: p.seed, page: page.New(page.Config{
		Title: "What a lock is for", Lead: "The same thing happens three times side by side. Choose a scene, and break it on purpose.",
		Window: 20 * time.Second, Lanes: len(ways), Scenes: choices, Buttons: buttons,
	})}
	for _, c := range choices {
		t.page.Action("scene-"+c.Name, func() error { return t.begin(findScene(c.Name)) })
	}
	for _, b := range buttons {
		t.page.Action(b.Name, func() error { return t.do(b.Name) })
	}
	t.page.Action("again", t.again)
	defer t.finish()
	if err := t.begin(scenes[0]); err != nil {
		return err
	}
	return t.page.Serve(ctx, p.http, func(url string) { fmt.Fprintf(out, "The scenes are at %s\n", url) })
}

// begin ends the scene that runs, and begins another.
func (t *theatre) begin(sc *scene) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.beginScene(sc)
}

// again begins the scene that runs anew.
func (t *theatre) again() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.beginScene(t.scene)
}

// beginScene is begin for a caller that has t.mu.
func (t *theatre) beginScene(sc *scene) error {
	if err := t.endScene(); err != nil {
		return err
	}
	t.scene = sc
	t.page.Clear()
	lanes := make([]page.Lane, len(ways))
	for i, w := range ways {
		lanes[i] = page.Lane{ID: w.name, Title: w.name, Rows: slices.Concat(sc.cast...)}
	}
	t.page.Set("lanes", lanes)
	t.page.Set("scene", sc.name)
	st, err := openStage(t.ctx, sc, t.venue, t.seed, t.page.Add)
	if err != nil {
		return err
	}
	t.stage = st
	t.page.Set("note", "")
	var ctx context.Context
	ctx, t.stop = context.WithCancel(t.ctx)
	t.shown.Go(func() { t.count(ctx, st) })
	return nil
}

// count shows the figures of the scene until ctx ends.
func (t *theatre) count(ctx context.Context, st *stage) {
	for {
		cards, _, err := st.cards(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			t.page.Set("note", err.Error())
		default:
			t.page.Set("cards", cards)
		}
		if sleep(ctx, 300*time.Millisecond) != nil {
			return
		}
	}
}

// do does to the scene what a button says.
func (t *theatre) do(button string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stage == nil {
		return errors.New("no scene runs; start again")
	}
	return t.stage.do(button)
}

// endScene ends the scene that runs. The caller has t.mu.
func (t *theatre) endScene() error {
	if t.stage == nil {
		return nil
	}
	t.stop()
	t.shown.Wait()
	err := t.stage.close()
	t.stage = nil
	return err
}

func (t *theatre) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.endScene() // the program ends
}

// wrapped breaks a text into lines.
func wrapped(text string, width int) string {
	var b strings.Builder
	n := 0
	for word := range strings.FieldsSeq(text) {
		if n+len(word)+1 > width {
			b.WriteString("\n")
			n = 0
		} else if n > 0 {
			b.WriteString(" ")
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	return b.String()
}
