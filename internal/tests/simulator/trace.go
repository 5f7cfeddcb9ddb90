package simulator

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// trace keeps the last events of a key.
type trace struct {
	notes [1024]note
	n     int
}

type note struct {
	at    time.Duration
	order int
	proc  *process
	text  string
	token token
	value int64
}

// note records an event of process p, or of the server if p is nil. The key -1 means all keys.
func (w *world) note(key int, p *process, text string, t token, value int64) {
	n := note{at: w.now, order: w.events, proc: p, text: text, token: t, value: value}
	if key >= 0 {
		w.traces[key].add(n)
		return
	}
	for key := range w.traces {
		w.traces[key].add(n)
	}
}

func (t *trace) add(n note) {
	t.notes[t.n%len(t.notes)] = n
	t.n++
}

func (t *trace) String() string {
	var all []note
	for i := max(0, t.n-len(t.notes)); i < t.n; i++ {
		all = append(all, t.notes[i%len(t.notes)])
	}
	slices.SortStableFunc(all, func(a, b note) int { return int(a.at - b.at) })
	var b strings.Builder
	for _, n := range all {
		who := "server"
		if n.proc != nil {
			who = fmt.Sprintf("p%d", n.proc.id)
		}
		fmt.Fprintf(&b, "%14.6f s  %-7s %s", n.at.Seconds(), who, n.text)
		if n.token != 0 {
			fmt.Fprintf(&b, " t%d", n.token)
		}
		if n.value != 0 {
			fmt.Fprintf(&b, "  (%d)", n.value)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
