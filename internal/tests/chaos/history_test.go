package chaos_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// instant is a time of the machine's monotonic clock, in ns. All processes of the machine have this
// clock.
type instant int64

func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return instant(ts.Nano())
}

func (i instant) add(d time.Duration) instant       { return i + instant(d) }
func (i instant) since(other instant) time.Duration { return time.Duration(i - other) }

// never is later than all instants of a history.
const never = instant(1<<63 - 1)

// hold is one grant, as its holder saw it.
type hold struct {
	id      string
	process string
	key     string
	shared  bool
	units   int
	fence   uint64
	asked   instant // before the acquire began
	leased  instant // before the lease was asked for; the checker sets it
	granted instant // after the acquire returned
	// alive is a moment before the last look at which the holder was told that it holds the lock.
	alive  instant
	ended  instant // when the holder released the lock, or was told of the loss
	reason string  // released, lost, unclear; "": the process was killed
}

// write is one transaction under a hold. A transaction of a reader has only read.
type write struct {
	op       string
	key      string
	fence    uint64
	reads    bool
	late     bool  // it came after the hold, with nothing but the fence
	before   int64 // the value that it has read
	result   string
	called   instant
	returned instant
}

// The results of a write.
const (
	committed = "committed"
	stale     = "stale"     // the database has refused an old fence
	regressed = "regressed" // the database has refused the fence of a lease that nobody has lost yet
	unclear   = "unclear"
	refused   = "refused" // nothing was changed, for another reason
)

// wait is an acquire without a grant.
type wait struct {
	process  string
	class    string
	asked    instant
	deadline instant // the end of its context or of its Wait
	returned instant
}

// span is a time in which something was so.
type span struct{ from, to instant }

func (s span) meets(o span) bool { return s.from <= o.to && o.from <= s.to }

// history is what all processes of a round have seen.
type history struct {
	holds  []*hold
	writes []write
	waits  []wait
	stalls map[string][]span // for each process: when it did not run
	wrong  []string          // what a process itself has found
	killed map[string]instant
}

// journal writes the history of one process. Each line is one write of the file, so that a killed
// process loses none.
type journal struct{ file *os.File }

func (j journal) note(format string, args ...any) {
	if _, err := fmt.Fprintf(j.file, format+"\n", args...); err != nil {
		panic(err)
	}
}

func (j journal) granted(h *hold) {
	j.note("hold %s %s %s %t %d %d %d %d", h.id, h.process, h.key, h.shared, h.units, h.fence, h.asked, h.granted)
}

func (j journal) ended(h *hold) { j.note("end %s %d %d %s", h.id, h.alive, h.ended, h.reason) }

func (j journal) wrote(w write) {
	j.note("write %s %s %d %t %t %d %s %d %d", w.op, w.key, w.fence, w.reads, w.late, w.before, w.result, w.called, w.returned)
}

func (j journal) waited(w wait) {
	j.note("wait %s %s %d %d %d", w.process, w.class, w.asked, w.deadline, w.returned)
}

func (j journal) stalled(process string, s span) { j.note("stall %s %d %d", process, s.from, s.to) }

func (j journal) wrong(format string, args ...any) { j.note("wrong "+format, args...) }

// readHistory reads the files of a folder.
func readHistory(dir string, killed map[string]instant) (*history, error) {
	h := &history{stalls: map[string][]span{}, killed: killed}
	open := map[string]*hold{}
	names, err := filepath.Glob(filepath.Join(dir, "*.history"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if err := h.read(lines.Text(), open); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
			}
		}
		_ = file.Close()
	}
	for _, one := range h.holds {
		// A killed holder believed in its lock at the grant. Its later looks are not known.
		if one.reason == "" {
			one.alive, one.ended = one.granted, never
			if at, ok := killed[one.process]; ok {
				one.ended = at
			}
		}
	}
	slices.SortFunc(h.holds, func(a, b *hold) int { return int(a.granted - b.granted) })
	return h, nil
}

func (h *history) read(line string, open map[string]*hold) error {
	kind, rest, _ := strings.Cut(line, " ")
	scan := func(into ...any) error {
		_, err := fmt.Sscan(rest, into...)
		return err
	}
	switch kind {
	case "hold":
		o := &hold{}
		if err := scan(&o.id, &o.process, &o.key, &o.shared, &o.units, &o.fence, &o.asked, &o.granted); err != nil {
			return err
		}
		open[o.id] = o
		h.holds = append(h.holds, o)
	case "end":
		var id string
		var alive, ended instant
		var reason string
		if err := scan(&id, &alive, &ended, &reason); err != nil {
			return err
		}
		o := open[id]
		o.alive, o.ended, o.reason = alive, ended, reason
	case "write":
		var w write
		if err := scan(&w.op, &w.key, &w.fence, &w.reads, &w.late, &w.before, &w.result, &w.called, &w.returned); err != nil {
			return err
		}
		h.writes = append(h.writes, w)
	case "wait":
		var w wait
		if err := scan(&w.process, &w.class, &w.asked, &w.deadline, &w.returned); err != nil {
			return err
		}
		h.waits = append(h.waits, w)
	case "stall":
		var process string
		var s span
		if err := scan(&process, &s.from, &s.to); err != nil {
			return err
		}
		h.stalls[process] = append(h.stalls[process], s)
	case "wrong":
		h.wrong = append(h.wrong, rest)
	default:
		return fmt.Errorf("unknown kind of line")
	}
	return nil
}

// stalledIn returns how long a process did not run in a span of time.
func (h *history) stalledIn(process string, in span) (total time.Duration) {
	for _, s := range h.stalls[process] {
		if s.meets(in) {
			total += min(s.to, in.to).since(max(s.from, in.from))
		}
	}
	return total
}
