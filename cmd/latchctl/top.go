package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newTop(to *servers) *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use:   "top [PATTERN]",
		Short: "Watch the locks, those with the most waiters first",
		Long: `top shows what ls shows, again and again, the keys with the most waiters first. Each
look reads all keys of the server in small steps, so give a large server a larger
--every.

  w  the most waiters first     a  the oldest lease first
  l  the next to end first      k  by key
  q, Ctrl-C  quit`,
		Example: `  latchctl top
  latchctl top 'order:*' --every 5s`,
		Args: onePattern,
		RunE: func(c *cobra.Command, args []string) error {
			if every <= 0 {
				return usage("top: --every %v: give a positive time", every)
			}
			if !term.IsTerminal(int(os.Stdout.Fd())) {
				return usage("top: it draws on a terminal, and the output is not a terminal; use ls")
			}
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			}
			ctx, cancel := to.bound(c.Context())
			defer cancel()
			l, err := to.look(ctx)
			if err != nil {
				return err
			}
			defer l.close()
			watch := topModel{look: func() tea.Msg {
				ctx, cancel := to.bound(c.Context())
				defer cancel()
				locks, err := l.all(ctx, pattern)
				return lookResult{locks, overdue(ctx, err), time.Now()}
			}, every: every, order: "waiters", pattern: pattern}
			_, err = tea.NewProgram(watch, tea.WithContext(c.Context())).Run()
			if err != nil && c.Context().Err() == context.Canceled {
				return nil
			}
			return err
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "the pause between two looks")
	return c
}

// lookResult is the result of one look at the servers.
type lookResult struct {
	locks []lock
	err   error
	at    time.Time
}

// lookAgain is the message that starts the next look at the servers.
type lookAgain struct{}

// topModel is the state of top: a tea.Model, with which Bubble Tea runs a program at a
// terminal.
type topModel struct {
	look    func() tea.Msg
	every   time.Duration
	order   string // the name of the sort order: a key of the map orders
	pattern string

	lastLook      lookResult
	width, height int
}

// Init starts the first look at the servers.
func (w topModel) Init() tea.Cmd { return w.look }

// Update handles a message. Only one look at the servers is under way at a time. The next look
// begins after a pause.
func (w topModel) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case lookResult:
		if m.err != nil {
			// after an error, the screen still shows the locks of the last look that succeeded
			m.locks = w.lastLook.locks
		}
		w.lastLook = m
		return w, tea.Tick(w.every, func(time.Time) tea.Msg { return lookAgain{} })
	case lookAgain:
		return w, w.look
	case tea.WindowSizeMsg:
		w.width, w.height = m.Width, m.Height
	case tea.KeyPressMsg:
		return w.key(m.String())
	}
	return w, nil
}

// key handles the key name that the user has pressed.
func (w topModel) key(name string) (tea.Model, tea.Cmd) {
	switch name {
	case "q", "ctrl+c", "esc":
		return w, tea.Quit
	}
	w.order = cmp.Or(map[string]string{"w": "waiters", "a": "age", "l": "left", "k": "key"}[name], w.order)
	return w, nil
}

// View draws the screen.
func (w topModel) View() tea.View {
	view := tea.NewView(w.screen())
	view.AltScreen = true
	return view
}

// screen returns the text for the screen. No line is wider than the screen. If not all locks fit,
// the last line has the number of hidden locks.
func (w topModel) screen() string {
	waiters := 0
	for _, l := range w.lastLook.locks {
		waiters += l.Waiters
	}
	lines := []string{fmt.Sprintf("latchctl top %s   %d keys, %d waiting processes, by %s   %s",
		printable(w.pattern), len(w.lastLook.locks), waiters, w.order, w.lastLook.at.Format(time.TimeOnly))}
	switch {
	case w.lastLook.at.IsZero():
		lines[0] = "latchctl top " + printable(w.pattern) + "   looking …"
	case w.lastLook.err != nil:
		lines = append(lines, "! "+printable(w.lastLook.err.Error()))
	}
	lines = append(lines, "w a l k: sort by waiters, age, left, key   q: quit", "")
	locks := slices.Clone(w.lastLook.locks)
	slices.SortStableFunc(locks, orders[w.order])
	rows := rowsOf(locks)
	if w.width > 0 {
		shortenKeys(rows, w.width)
	}
	lines = append(lines, strings.Split(strings.TrimSuffix(grid(rows), "\n"), "\n")...)
	if room := w.height; room > 0 && len(lines) > room {
		hidden := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("… and %d more", hidden))
	}
	for i, line := range lines {
		if w.width > 0 {
			lines[i] = ansi.Truncate(line, w.width, "…")
		}
	}
	return strings.Join(lines, "\n")
}
