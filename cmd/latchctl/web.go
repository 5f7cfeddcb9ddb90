package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

func newWeb(to *servers) *cobra.Command {
	var listen string
	var hosts []string
	w := web{to: to, pattern: "*", locks: map[string]lock{}, seen: map[string]sighting{}}
	c := &cobra.Command{
		Use:   "web [PATTERN]",
		Short: "Show the locks on a page in a browser, with the history of the last minutes",
		Long: `web serves a page on this machine, and looks at the locks for as long as it runs. The
page shows the keys with the most waiters first, their holders and what is left of their
leases, and for a chosen key its queue in order. Lanes show the last minutes of the
busiest keys. The history is sampled: a hold that is shorter than --every may be missing.

The page changes nothing. It shows the latchctl break line to copy. It has no tokens, and
no keys but those that match PATTERN.

The cost on the server is bounded, however many browsers watch: --rate commands a second,
and a walk over all keys (SCAN, TYPE, GETRANGE), after which web pauses for ten times what
it took. A look at 10000 locked keys takes 20 seconds at the default rate; the busiest
keys are looked at every second.

The page listens on this machine only, unless --listen says otherwise. It asks for no
password, so put it behind a proxy that does, and name the proxy's host with --host.`,
		Example: `  latchctl web
  latchctl web 'order:*' --listen 127.0.0.1:9000`,
		Args: onePattern,
		RunE: func(c *cobra.Command, args []string) error {
			if w.every <= 0 || w.rate < 1 {
				return usage("web: --every %v, --rate %d: give positive values", w.every, w.rate)
			}
			if len(args) > 0 {
				w.pattern = args[0]
			}
			return w.run(c, listen, hosts)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:7320", "the address of the page; port 0 takes a free one")
	c.Flags().StringArrayVar(&hosts, "host", nil, "a name of this server besides localhost; repeat it")
	c.Flags().DurationVar(&w.every, "every", time.Second, "the pause between two looks at the busiest keys")
	c.Flags().IntVar(&w.rate, "rate", 500, "how many keys a second are looked at, at most")
	return c
}

const (
	webLanes = 6   // the busiest keys, which have lanes
	webRows  = 200 // keys that the table shows at once
	webQueue = 200 // waiters of a key that the page shows at once
)

// web is the state of the command web.
type web struct {
	to      *servers
	pattern string
	every   time.Duration
	rate    int
	l       *looker
	page    *page.Page

	mu      sync.Mutex
	locks   map[string]lock // as they were looked at last
	looked  time.Time       // when the last look at all keys ended
	took    time.Duration
	problem error
	since   time.Time // of the problem
	seen    map[string]sighting
	lanes   []string
	details map[string]detail
	next    time.Time // when the server may get the next command
}

// sighting is what the last look at a busy key has found.
type sighting struct {
	at      time.Time
	holders map[string]uint64
	left    time.Duration
	waiters int
}

// detail is the state of a chosen key, as the page gets it.
type detail struct {
	Title string      `json:"title"`
	Facts [][2]string `json:"facts"`
	Break string      `json:"break,omitempty"`
	Queue []string    `json:"queue"`
	More  int         `json:"more,omitempty"`
	at    time.Time
}

func (w *web) run(c *cobra.Command, listen string, hosts []string) error {
	ctx, cancel := w.to.bound(c.Context())
	l, err := w.to.look(ctx)
	cancel()
	if err != nil {
		return err
	}
	defer l.close()
	w.l, w.details = l, map[string]detail{}
	w.page = page.New(page.Config{
		Title: "Locks", Lead: "Keys " + printable(w.pattern) + ", looked at by latchctl; it changes nothing.",
		Window: 5 * time.Minute, Lanes: webLanes, Rows: 1, Keys: true, Hosts: hosts,
	})
	w.page.JSON("/keys", w.table)
	w.page.JSON("/key", w.detail)
	w.summary()
	ctx, cancel = context.WithCancel(c.Context())
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() { w.lookAtAll(ctx) })
	looks.Go(func() { w.lookAtBusy(ctx) })
	return w.page.Serve(ctx, listen, func(url string) {
		fmt.Fprintln(c.OutOrStdout(), url)
	})
}

// pace waits until the server may get another command.
func (w *web) pace(ctx context.Context) error {
	w.mu.Lock()
	now := time.Now()
	if w.next.Before(now) {
		w.next = now
	}
	at := w.next
	w.next = at.Add(time.Second / time.Duration(w.rate) * time.Duration(max(1, len(w.l.clients))))
	w.mu.Unlock()
	return pause(ctx, time.Until(at))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inspect looks at one key, at its turn.
func (w *web) inspect(ctx context.Context, key string) (lock, error) {
	if err := w.pace(ctx); err != nil {
		return lock{}, err
	}
	ctx, cancel := w.to.bound(ctx)
	defer cancel()
	found, err := w.l.inspect(ctx, key)
	return found, overdue(ctx, err)
}

// lookAtAll looks at all keys again and again.
func (w *web) lookAtAll(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		scanned, err := w.sweep(ctx)
		w.mu.Lock()
		if err == nil {
			w.looked, w.took = time.Now(), time.Since(start)
		}
		w.mu.Unlock()
		w.report(ctx, err)
		if err != nil {
			scanned = 0 // it waited for servers that do not answer
		}
		_ = pause(ctx, max(w.every, 10*scanned)) // the loop ends with ctx
	}
}

// sweep looks at all keys once. It returns how long the walk over the keys took.
func (w *web) sweep(ctx context.Context) (scanned time.Duration, err error) {
	start := time.Now()
	bounded, cancel := w.to.bound(ctx)
	keys, err := w.l.engine.Keys(bounded, w.pattern)
	err = overdue(bounded, err)
	cancel()
	scanned = time.Since(start)
	if err != nil {
		return scanned, err
	}
	listed := make(map[string]bool, len(keys))
	for _, key := range keys {
		listed[key] = true
	}
	w.mu.Lock()
	for key := range w.locks {
		if !listed[key] {
			delete(w.locks, key)
		}
	}
	w.mu.Unlock()
	// Several looks are on their way at once, so that the rate and not the distance to the server
	// decides how long this takes.
	var work sync.WaitGroup
	errs, places := make([]error, min(16, len(keys))), make(chan string)
	for i := range errs {
		work.Go(func() {
			for key := range places {
				if errs[i] != nil {
					continue // drains, so that the sender is not left waiting
				}
				var found lock
				if found, errs[i] = w.inspect(ctx, key); errs[i] == nil {
					w.keep(found)
				}
			}
		})
	}
	shown := time.Now()
	for _, key := range keys {
		places <- key
		if time.Since(shown) > 2*time.Second {
			shown = time.Now()
			w.summary()
		}
	}
	close(places)
	work.Wait()
	return scanned, errors.Join(errs...)
}

func (w *web) keep(found lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found.Held || found.Waiters > 0 {
		w.locks[found.key] = found
	} else {
		delete(w.locks, found.key)
	}
}

// report tells the page whether the servers answer.
func (w *web) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	if err != nil && w.problem == nil {
		w.since = time.Now()
	}
	w.problem = err
	note := ""
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		note = fmt.Sprintf("Since %s the servers do not answer, and the page shows what was before: %s", w.since.Format(time.TimeOnly), printable(text))
	}
	w.mu.Unlock()
	w.page.Set("note", note)
	w.summary()
}

// summary shows the figures of all keys, and makes browsers get the table.
func (w *web) summary() {
	w.mu.Lock()
	held, waiters := 0, 0
	for _, l := range w.locks {
		if l.Held {
			held++
		}
		waiters += l.Waiters
	}
	looked, look := "not yet", "-"
	if !w.looked.IsZero() {
		looked, look = w.looked.Format(time.TimeOnly), span(w.took)
	}
	facts := []page.Fact{
		{Name: "held", Value: strconv.Itoa(held)}, {Name: "waiting processes", Value: strconv.Itoa(waiters)},
		{Name: "all keys seen", Value: looked}, {Name: "a look takes", Value: look},
	}
	w.mu.Unlock()
	w.page.Set("cards", []page.Card{{Title: "Now", Facts: facts}})
	w.page.Set("keys", time.Now().UnixMilli())
}

// lookAtBusy looks at the busiest keys again and again, and notes what has happened to them.
func (w *web) lookAtBusy(ctx context.Context) {
	for ctx.Err() == nil {
		var err error
		for _, key := range w.busiest() {
			var found lock
			if found, err = w.inspect(ctx, key); err != nil {
				break
			}
			w.keep(found)
			w.note(found, time.Now())
		}
		if err != nil {
			w.report(ctx, err) // the next look at all keys finds out when the servers are back
		} else {
			w.summary()
		}
		_ = pause(ctx, w.every) // the loop ends with ctx
	}
}

// busiest returns the keys that have lanes: those with the most waiters, then the oldest leases. A
// key keeps its lane until it is neither held nor waited for, or much busier keys need the lane.
func (w *web) busiest() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	locks := make([]lock, 0, len(w.locks))
	for _, l := range w.locks {
		locks = append(locks, l)
	}
	slices.SortFunc(locks, func(a, b lock) int {
		return cmp.Or(orders["waiters"](a, b), orders["age"](a, b), orders["key"](a, b))
	})
	rank := map[string]int{}
	for i, l := range locks {
		rank[l.key] = i
	}
	lanes := slices.DeleteFunc(slices.Clone(w.lanes), func(key string) bool {
		r, ok := rank[key]
		return !ok || r >= 2*webLanes
	})
	for _, l := range locks {
		if len(lanes) < webLanes && !slices.Contains(lanes, l.key) {
			lanes = append(lanes, l.key)
		}
	}
	for _, key := range w.lanes {
		if !slices.Contains(lanes, key) {
			w.leave(key)
		}
	}
	w.lanes = lanes
	shown := make([]page.Lane, len(lanes))
	for i, key := range lanes {
		shown[i] = page.Lane{ID: key, Title: printable(key)}
	}
	w.page.Set("lanes", shown)
	return lanes
}

// leave ends the bars of a key that loses its lane. The caller has w.mu.
func (w *web) leave(key string) {
	for who := range w.seen[key].holders {
		w.page.Add(page.Event{Lane: key, Who: who, Kind: page.Free})
	}
	w.page.Add(page.Event{Lane: key, Kind: page.Queue})
	delete(w.seen, key)
}

// note compares a look at a busy key with the look before.
func (w *web) note(found lock, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.seen[found.key]
	holders := found.holders()
	add := func(e page.Event) { e.Lane = found.key; w.page.Add(e) }
	freed := false
	for who, fence := range before.holders {
		if holders[who] != fence {
			add(page.Event{Who: who, Kind: page.Free})
			freed = true
		}
	}
	for who, fence := range holders {
		if old, held := before.holders[who]; held && old == fence {
			continue
		}
		add(page.Event{Who: who, Kind: page.Hold, Fence: fence, At: now.Add(-found.age).UnixMilli()})
		if freed && before.waiters > 0 {
			add(page.Event{Who: who, Kind: page.Handoff, Text: "got the lock after a wait"})
		}
	}
	if known && !freed && len(holders) == 1 && found.Left > before.left-now.Sub(before.at)+200*time.Millisecond {
		for who := range holders {
			add(page.Event{Who: who, Kind: page.Renew})
		}
	}
	if found.Waiters != before.waiters {
		add(page.Event{Kind: page.Queue, N: found.Waiters})
	}
	w.seen[found.key] = sighting{now, holders, found.Left, found.Waiters}
}

// holders returns the names of the holders, with their fences.
func (l lock) holders() map[string]uint64 {
	all := map[string]uint64{}
	name := func(metadata string, fence uint64) string {
		return cmp.Or(shorten(printable(metadata)), fmt.Sprintf("fence %d", fence))
	}
	switch {
	case !l.Held:
	case len(l.Permits) > 0:
		for _, p := range l.Permits {
			all[name(p.Metadata, p.Fence)] = p.Fence
		}
	case l.Foreign:
		all["another program"] = 0
	case l.Mode == locker.Shared:
		all["readers"] = l.Fence
	default:
		all[name(l.Metadata, l.Fence)] = l.Fence
	}
	return all
}

// shorten cuts a text that is too long for a lane.
func shorten(text string) string {
	if all := []rune(text); len(all) > 60 {
		return string(all[:59]) + "…"
	}
	return text
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

// detail returns the state of one key. Only keys that a look at all keys has found are shown, and
// each of them is looked at once a second at most.
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
		add("left", l.remaining()+", unless it is renewed")
		add("fence", l.fence())
		add("trace", orDash(traceOf(l.Traceparent)))
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
