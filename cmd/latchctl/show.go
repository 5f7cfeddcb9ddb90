package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/locker"
)

func newShow(to *servers) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one lock: its holder or readers, and its queue in order",
		Long: `show shows who has a key, and who waits for it, the next one first.

  WAITS    how long ago the waiter came
  MODE     exclusive, or shared for a reader
  PROCESS  waiters with the same number are in one process; - polls, without a queue of its own
  STATE    waits
           next    the key was handed to it, and it has not confirmed yet
           gone    its process does not listen any more: its turn passes to the next one
  WAITER   what the waiter says about itself

trace is the trace under which the holder took the key, if the holder's service sends
its spans (package otel).

A semaphore is shown with its permits, each with its fence, how many units it holds,
and since when: a permit that leaked is renewed, so only its age shows it. MODE is then
the units that the waiter wants, of how many.

Readers are listed with what is left of their leases. They leave no metadata of their
own on the server: holder and since are those of the first reader.

Callers of one process that wait for a key on equal terms mostly share one entry.
On a quorum there is no queue: nobody who waits is shown.`,
		Example: `  latchctl show order:42
  latchctl show order:42 --json | jq .queue`,
		Args: exactly(1, "one key"),
		RunE: func(c *cobra.Command, args []string) error {
			return to.withLooker(c, func(l *looker) error {
				seen, err := l.inspect(c.Context(), args[0])
				if err != nil {
					return err
				}
				queue, err := l.engine.Queue(c.Context(), args[0])
				if err != nil {
					return err
				}
				waiters := make([]waiter, len(queue))
				for i, w := range queue {
					waiters[i] = waiter{w, l.elapsed(w.Since)}
				}
				if asJSON {
					return showJSON(c.OutOrStdout(), seen, waiters)
				}
				return showText(c.OutOrStdout(), seen, waiters)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

// waiter is an entry of a queue. Its field age is the time since the waiter joined the queue.
type waiter struct {
	locker.Waiter
	age time.Duration
}

func (w waiter) state() string {
	switch {
	case w.Handed:
		return "next"
	case w.Gone:
		return "gone"
	}
	return "waits"
}

// mode returns a word for the mode that the waiter wants.
func (w waiter) mode() string {
	if w.Weight > 0 {
		return fmt.Sprintf("%d/%d", w.Weight, w.Limit)
	}
	return w.Mode.String()
}

// waiterJSON is a waiter as --json prints it.
type waiterJSON struct {
	State    string    `json:"state"`
	Mode     string    `json:"mode"`
	Since    time.Time `json:"since,omitzero"`
	Age      float64   `json:"age_seconds,omitempty"`
	Process  int       `json:"process,omitempty"`
	Metadata string    `json:"metadata,omitempty"`
}

func showJSON(out io.Writer, l lock, waiters []waiter) error {
	all := make([]waiterJSON, len(waiters))
	for i, w := range waiters {
		all[i] = waiterJSON{w.state(), w.mode(), w.Since, w.age.Seconds(), w.Process, w.Metadata}
	}
	return writeJSON(out, struct {
		lockJSON
		Queue []waiterJSON `json:"queue"`
	}{l.json(), all})
}

func showText(out io.Writer, l lock, waiters []waiter) error {
	facts := [][]string{{"key", printable(l.key)}, {"state", l.explain()}}
	if l.Held && len(l.Permits) == 0 {
		if !l.Since.IsZero() {
			facts = append(facts, []string{"since", fmt.Sprintf("%s (%s ago)", l.Since.Local().Format(time.DateTime), span(l.age))})
		}
		facts = append(facts, []string{"left", l.untilEnd()}, []string{"fence", l.fence()},
			[]string{"holder", orDash(printable(l.Metadata))}, []string{"trace", orDash(traceOf(l.Traceparent))})
	}
	if step := l.nextStep(); step != "" {
		facts = append(facts, []string{"next step", step})
	}
	tables := []string{grid(append(facts, []string{"waiters", strconv.Itoa(l.Waiters)}))}
	readers := [][]string{{"READER", "PROCESS", "LEFT"}}
	for i, r := range l.Reading {
		readers = append(readers, []string{strconv.Itoa(i + 1), processText(r.Process), span(r.Left)})
	}
	permits := [][]string{{"FENCE", "UNITS", "SINCE", "LEFT", "HOLDER", "TRACE"}}
	for _, p := range l.Permits {
		since := "-"
		if !p.Since.IsZero() && !l.Since.IsZero() {
			since = span(l.age + l.Since.Sub(p.Since))
		}
		permits = append(permits, []string{strconv.FormatUint(p.Fence, 10), strconv.Itoa(p.Weight), since, span(p.Left), orDash(printable(p.Metadata)), orDash(traceOf(p.Traceparent))})
	}
	queue := [][]string{{"#", "WAITS", "MODE", "PROCESS", "STATE", "WAITER"}}
	for i, w := range waiters {
		since := "-"
		if !w.Since.IsZero() {
			since = span(w.age)
		}
		queue = append(queue, []string{strconv.Itoa(i + 1), since, w.mode(), processText(w.Process), w.state(), orDash(printable(w.Metadata))})
	}
	for _, rows := range [][][]string{readers, permits, queue} {
		if len(rows) > 1 {
			tables = append(tables, grid(rows))
		}
	}
	_, err := io.WriteString(out, strings.Join(tables, "\n"))
	return err
}

// processText returns the number of a process, or "-" if the process is not known.
func processText(process int) string {
	if process == 0 {
		return "-"
	}
	return strconv.Itoa(process)
}

// explain describes the state of a lock in a sentence.
func (l lock) explain() string {
	switch state := l.state(); state {
	case "shared":
		return fmt.Sprintf("shared by readers, with %d leases", l.Readers)
	case "permits":
		return fmt.Sprintf("a semaphore: %d of %d units are held", l.Used, l.Limit)
	case "kept":
		return "kept: it was released, and its rule keeps it locked for a time"
	case "foreign":
		return "foreign: another library or program holds it"
	case "free":
		return "free"
	default:
		return state + ": one caller holds it"
	}
}

// untilEnd says how long the lease lasts. A key without a TTL does not end by itself.
func (l lock) untilEnd() string {
	if l.Left < 0 {
		return "∞: the key has no TTL"
	}
	if l.Kept {
		return l.remaining()
	}
	return l.remaining() + ", unless it is renewed"
}

// nextStep says what an operator does about a key of another program, which latchctl cannot break.
func (l lock) nextStep() string {
	if l.state() != "foreign" {
		return ""
	}
	return "GET " + quoted(l.key) + " on the same server and database mostly names the holder; if it is gone, see \"A foreign key without a TTL\" in docs/operations.md"
}

// traceOf returns the trace id of a traceparent, or "" if it has none. Other programs can write to
// the server's keys, so only hexadecimal digits are a trace id.
func traceOf(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" {
		return ""
	}
	return parts[1]
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
