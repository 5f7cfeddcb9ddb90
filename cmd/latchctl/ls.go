package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/locker"
)

func newLs(to *servers) *cobra.Command {
	var asJSON, foreign bool
	var order string
	c := &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List what is locked: since when, by whom, and how many wait",
		Long: `ls lists the keys that are held, kept or waited for.

  STATE    exclusive  one caller holds the key
           shared     readers hold it; the number says how many leases they have
           permits    a semaphore: how many units are held, of how many
           kept       released, but kept locked for a time by its rule
           foreign    held by another library or program; listed while somebody waits,
                      or with --foreign
           free       nobody holds it, and the next waiter is about to
  SINCE    how long ago the key was granted
  LEFT     until the lease ends, unless its holder renews it; about 2 s for a moment after a
           hand-off; ∞ for a key without a TTL
  WAITERS  places in the queue on the server: a process has one, however many of its callers
           wait, or one for each kind of callers who wait on unequal terms; on a quorum,
           which has no queue, always 0
  FENCE    the number that show, break and the databases know the holder by
  HOLDER   what the holder says about itself: PROGRAM@HOST:PID, or what locker.WithMetadata says

PATTERN is a glob-style pattern of Redis, such as 'order:*'. ls reads all keys of
the server, in small steps that do not block it (SCAN).

With --foreign, ls lists instead the keys that match PATTERN and that a program without
latchkit may have locked: during a migration, who still holds what. For Redis, such a
lock is only a string, so each string that latchkit did not write is listed. Give the
pattern of the locks.`,
		Example: `  latchctl ls
  latchctl ls 'order:*' --sort age
  watch latchctl ls --sort waiters
  latchctl ls --foreign 'job-lock:*'
  latchctl ls --json | jq -r 'select(.waiters > 10) | .key'`,
		Args: onePattern,
		RunE: func(c *cobra.Command, args []string) error {
			less, ok := orders[order]
			if !ok {
				return usage("--sort %s: give one of %s", order, strings.Join(slices.Sorted(maps.Keys(orders)), ", "))
			}
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			} else if foreign {
				return usage("ls --foreign: give the pattern of the locks, such as 'job-lock:*', because every string on the server may be a lock")
			}
			return to.withLooker(c, func(l *looker) error {
				list := l.all
				if foreign {
					list = l.foreign
				}
				locks, err := list(c.Context(), pattern)
				if err != nil {
					return err
				}
				slices.SortStableFunc(locks, less)
				if asJSON {
					return printJSON(c.OutOrStdout(), locks, lock.json)
				}
				return listTable(c.OutOrStdout(), locks)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each lock, one on a line")
	c.Flags().BoolVar(&foreign, "foreign", false, "list the locks of other libraries and programs that match PATTERN, also while nobody waits")
	c.Flags().StringVar(&order, "sort", "key", "key, waiters, age (the oldest lease first) or left (the next to end first)")
	return c
}

// withLooker connects to the servers, and calls the function do, which reads or revokes leases. The
// command's context has the time-out of --timeout.
func (s *servers) withLooker(c *cobra.Command, do func(*looker) error) error {
	ctx, cancel := s.bound(c.Context())
	defer cancel()
	c.SetContext(ctx)
	l, err := s.look(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	return overdue(ctx, do(l))
}

// lockJSON is a lock as --json prints it. Times are in seconds. A key without a TTL has no field
// "left".
type lockJSON struct {
	Key      string    `json:"key"`
	State    string    `json:"state"`
	Fence    uint64    `json:"fence,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Age      float64   `json:"age_seconds,omitempty"`
	Left     *float64  `json:"left_seconds,omitempty"`
	Readers  int       `json:"readers,omitempty"`
	Waiters  int       `json:"waiters"`
	Used     int       `json:"used,omitempty"`
	Limit    int       `json:"limit,omitempty"`
	Metadata string    `json:"metadata,omitempty"`
	Trace    string    `json:"trace_id,omitempty"`

	Reading []readerJSON `json:"reading,omitempty"`
	Permits []permitJSON `json:"permits,omitempty"`
}

// readerJSON is one of the leases that share a key, as --json prints it.
type readerJSON struct {
	Process int     `json:"process,omitempty"`
	Left    float64 `json:"left_seconds"`
}

// permitJSON is a permit of a semaphore as --json prints it.
type permitJSON struct {
	Fence    uint64    `json:"fence"`
	Weight   int       `json:"weight"`
	Kept     bool      `json:"kept,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Left     float64   `json:"left_seconds"`
	Metadata string    `json:"metadata,omitempty"`
	Trace    string    `json:"trace_id,omitempty"`
}

func (l lock) json() lockJSON {
	j := lockJSON{
		Key: l.key, State: l.state(), Fence: l.Fence, Since: l.Since.UTC(), Age: l.age.Seconds(), Readers: l.Readers, Waiters: l.Waiters,
		Used: l.Used, Limit: l.Limit, Metadata: l.Metadata, Trace: traceOf(l.Traceparent),
	}
	for _, r := range l.Reading {
		j.Reading = append(j.Reading, readerJSON{r.Process, r.Left.Seconds()})
	}
	for _, p := range l.Permits {
		j.Permits = append(j.Permits, permitJSON{p.Fence, p.Weight, p.Kept, p.Since, p.Left.Seconds(), p.Metadata, traceOf(p.Traceparent)})
	}
	if l.Since.IsZero() {
		j.Since = time.Time{}
	}
	if l.Held && l.Left >= 0 {
		left := l.Left.Seconds()
		j.Left = &left
	}
	return j
}

// printJSON prints a JSON object for each value, one on a line.
func printJSON[T, J any](w io.Writer, values []T, object func(T) J) error {
	for _, v := range values {
		if err := writeJSON(w, object(v)); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON prints v as one line of JSON. JSON may contain control characters above ASCII, some of
// which a terminal obeys, so writeJSON escapes them.
func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var line strings.Builder
	for _, r := range string(text) {
		if unicode.IsControl(r) {
			fmt.Fprintf(&line, `\u%04x`, r)
		} else {
			line.WriteRune(r)
		}
	}
	_, err = fmt.Fprintln(w, line.String())
	return err
}

func listTable(w io.Writer, locks []lock) error {
	if len(locks) == 0 {
		_, err := fmt.Fprintln(w, "nothing is locked, and nobody waits")
		return err
	}
	_, err := io.WriteString(w, grid(rowsOf(locks)))
	return err
}

// columns has the headings of the columns of ls.
var columns = []string{"KEY", "STATE", "SINCE", "LEFT", "WAITERS", "FENCE", "HOLDER"}

// cells returns one text for each column of ls: the row of the lock l.
func (l lock) cells() []string {
	state := l.state()
	if l.Mode == locker.Shared && l.Held {
		state += " " + strconv.Itoa(l.Readers)
	} else if len(l.Permits) > 0 {
		state += fmt.Sprintf(" %d/%d", l.Used, l.Limit)
	}
	return []string{printable(l.key), state, l.ago(), l.remaining(), strconv.Itoa(l.Waiters), l.fence(), printable(l.Metadata)}
}

func (l lock) ago() string {
	if l.Since.IsZero() {
		return "-"
	}
	return span(l.age)
}

func (l lock) remaining() string {
	switch {
	case !l.Held:
		return "-"
	case l.Left < 0:
		return "∞"
	}
	return span(l.Left)
}

func (l lock) fence() string {
	if l.Fence == 0 {
		return "-"
	}
	return strconv.FormatUint(l.Fence, 10)
}
