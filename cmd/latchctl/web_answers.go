package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// detail is the state of a chosen key, as the page gets it.
type detail struct {
	Title string      `json:"title"`
	Facts [][2]string `json:"facts"`
	Break string      `json:"break,omitempty"`
	Queue []string    `json:"queue"`
	More  int         `json:"more,omitempty"`
	at    time.Time
}

// row is a key in the table of the page.
type row struct {
	Key     string `json:"key"`
	Shown   string `json:"shown"`
	Waiters int    `json:"waiters"`
	State   string `json:"state"`
	Since   string `json:"since"`
	Left    string `json:"left"`
	Fence   string `json:"fence"`
	Holder  string `json:"holder"`
}

// table returns the keys that the visitor wants to see.
func (w *web) table(r *http.Request) (any, error) {
	find := strings.ToLower(r.FormValue("find"))
	less, ok := orders[r.FormValue("sort")]
	if !ok {
		less = orders["waiters"]
	}
	w.mu.Lock()
	var locks []lock
	for _, l := range w.locks {
		if strings.Contains(strings.ToLower(l.key), find) || strings.Contains(strings.ToLower(l.Metadata), find) {
			locks = append(locks, l)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(locks, func(a, b lock) int { return cmp.Or(less(a, b), orders["key"](a, b)) })
	found := struct {
		Total int   `json:"total"`
		Rows  []row `json:"rows"`
	}{len(locks), []row{}}
	for _, l := range locks[:min(len(locks), webRows)] {
		cells := l.cells()
		found.Rows = append(found.Rows, row{l.key, cells[0], l.Waiters, cells[1], cells[2], cells[3], cells[5], cells[6]})
	}
	return found, nil
}

// detail returns the state of one key. Only keys that a look at all keys has found are shown. A
// look serves all visitors for a second.
func (w *web) detail(r *http.Request) (any, error) {
	key := r.FormValue("name")
	w.mu.Lock()
	d, cached := w.details[key]
	_, known := w.locks[key]
	w.mu.Unlock()
	if cached && time.Since(d.at) < time.Second {
		return d, nil
	}
	if !known {
		return detail{Title: printable(key), Facts: [][2]string{{"state", "free"}}, Queue: []string{}}, nil
	}
	ctx, cancel := w.to.bound(r.Context())
	defer cancel()
	found, err := w.inspect(ctx, key)
	if err == nil {
		err = w.pace(ctx)
	}
	if err != nil {
		return nil, err
	}
	queue, err := w.l.engine.Queue(ctx, key)
	if err != nil {
		return nil, overdue(ctx, err)
	}
	d = describe(found)
	d.More = max(0, len(queue)-webQueue)
	for _, q := range queue[:len(queue)-d.More] {
		v := waiter{q, w.l.elapsed(q.Since)}
		text := fmt.Sprintf("%s, %s, process %s", v.state(), v.mode(), processText(v.Process))
		if !v.Since.IsZero() {
			text += ", for " + span(v.age)
		}
		if v.Metadata != "" {
			text = printable(v.Metadata) + ": " + text
		}
		d.Queue = append(d.Queue, text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.details) > 1000 {
		clear(w.details)
	}
	w.details[key] = d
	return d, nil
}

// describe returns what show prints of a lock, with the line that breaks it.
func describe(l lock) detail {
	d := detail{Title: printable(l.key), Queue: []string{}, at: time.Now()}
	add := func(name, value string) { d.Facts = append(d.Facts, [2]string{name, value}) }
	add("state", l.explain())
	fences := []uint64{l.Fence}
	switch {
	case !l.Held:
		return d
	case len(l.Permits) > 0:
		fences = nil
		for _, p := range l.Permits {
			add("fence "+strconv.FormatUint(p.Fence, 10), fmt.Sprintf("%d units, %s left, %s", p.Weight, span(p.Left), orDash(printable(p.Metadata))))
			fences = append(fences, p.Fence)
		}
	default:
		add("holder", orDash(printable(l.Metadata)))
		add("since", l.ago())
		add("left", l.untilEnd())
		add("fence", l.fence())
		add("trace", orDash(traceOf(l.Traceparent)))
	}
	if step := l.nextStep(); step != "" {
		add("next step", step)
	}
	for i, r := range l.Reading {
		add("reader "+strconv.Itoa(i+1), fmt.Sprintf("process %s, %s left", processText(r.Process), span(r.Left)))
	}
	for _, fence := range fences {
		if checkBreakable(l, fence, true) == nil {
			key := quoted(l.key)
			if strings.HasPrefix(l.key, "-") {
				key = "-- " + key
			}
			d.Break += fmt.Sprintf("latchctl break --fence %d --reason 'say why' %s\n", fence, key)
		}
	}
	d.Break = strings.TrimSuffix(d.Break, "\n")
	return d
}

// quoted returns text as a word of a shell. A key comes from other programs, and the line is made
// to be copied into a shell.
func quoted(text string) string {
	if printable(text) != text {
		var b strings.Builder
		for _, c := range []byte(text) {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
		return "$'" + b.String() + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
