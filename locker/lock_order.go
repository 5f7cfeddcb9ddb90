package locker

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// WithOrderCheck calls report when callers of this process take locks in different orders, so that
// their holders could wait for each other for ever: one caller has acquired item while it held
// order, and another one has acquired order while it held item. Nobody has to wait for that, so
// the mistake is reported long before a deadlock happens. A circle of three locks is reported too.
//
// The check sees what a context holds: the locks of each [Run] and [RunAll] around the caller, and
// the lease of [Lease.Context]. It compares the names of the rules if they differ, and the keys in
// any case. So two keys of one name may be taken one in the other, if their order is always the
// same: first account:1, then account:2. RunAll orders its own keys itself, so no two calls of
// RunAll conflict. An acquire with NoWait does not wait, so it conflicts with nothing. Nor does a
// nested hold of [NewReentrant].
//
// report gets a text of several lines: two or three acquires, each with the lock that was held, the
// lock that was taken and the call stack, and what to do. It is called on the goroutine of the
// acquire, before the acquire waits. Each circle of names,
// or of keys of one name, is reported once, and at most 100 circles in all. The check makes no call
// to the server. It needs at most a few megabytes: after 2048 pairs of keys, or of names, it forgets
// them and begins again. Lockers that get the same Option are checked together: give it to all
// Lockers whose keys are the same locks. Default: nil, no check. In tests, use lockertest.Order.
func WithOrderCheck(report func(conflict string)) Option {
	var check *orderCheck
	if report != nil {
		check = &orderCheck{report: report, reported: make(map[string]bool)}
	}
	return anyOption(func(c *config) { c.order = check })
}

// orderStep is an acquire that was made while another lock was held. The keys have the Locker's
// prefix. They need not be the same in all steps: what one step acquires and the next step holds
// has the same name, or the same key.
type orderStep struct {
	heldName, heldKey   string
	takenName, takenKey string
	stack               []uintptr
}

// conflict describes circle, whose last step acquires the lock that the first step holds.
func conflict(circle []orderStep) string {
	var b strings.Builder
	b.WriteString("latchkit: locks are taken in different orders, so their holders can wait for each other for ever; " +
		"take them in one order everywhere, or together with locker.RunAll")
	for _, s := range circle {
		fmt.Fprintf(&b, "\n%s (%s) was acquired while %s (%s) was held:\n%s", s.takenKey, s.takenName, s.heldKey, s.heldName, s.calls())
	}
	return b.String()
}

// calls returns the calls that led to the acquire, the innermost first, without those of this
// package. Each has a line with a tab, the function, its file and its line.
func (s orderStep) calls() string {
	var lines []string
	for frames := runtime.CallersFrames(s.stack); ; {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "github.com/latchkit/latchkit/locker.") || len(lines) > 0 {
			lines = append(lines, fmt.Sprintf("\t%s %s:%d", f.Function, f.File, f.Line))
		}
		if !more {
			return strings.Join(lines, "\n")
		}
	}
}

// orderCheck knows in which orders locks were taken: see [WithOrderCheck].
type orderCheck struct {
	report func(conflict string)

	mu          sync.Mutex
	names, keys orderGraph
	reported    map[string]bool // by orderID
}

// note is called when w begins to acquire its lock. It reports the conflicts with the locks that
// ctx holds.
func (c *orderCheck) note(ctx context.Context, w *waiter) {
	if c == nil || heldIn(ctx) == nil || w.rule.Wait == NoWait {
		return
	}
	var steps []orderStep
	for held := heldIn(ctx); held != nil; held = held.outer {
		switch l := held.lease; {
		case l == nil || l.engine.cfg.order != c || l.state.endError() != nil:
		case l.hold.claim.Key != w.key():
			steps = append(steps, orderStep{heldName: l.rule.Name, heldKey: l.hold.claim.Key, takenName: w.rule.Name, takenKey: w.key()})
		case l.engine == w.engine && l.rule.Limit == 0:
			return // the caller reads already, or is refused, so it does not wait
		}
	}
	ofRunAll := takesIn(ctx).stepsTo(w) // before the mutex, because this calls the caller's context
	var conflicts []string
	c.mu.Lock()
	for _, s := range steps {
		if s.heldName != s.takenName {
			conflicts = c.add(conflicts, &c.names, s.heldName, s.takenName, s)
		}
		conflicts = c.add(conflicts, &c.keys, s.heldKey, s.takenKey, s)
	}
	for _, s := range ofRunAll { // RunAll sorts by key, and need not sort by name
		conflicts = c.add(conflicts, &c.keys, s.heldKey, s.takenKey, s)
	}
	c.mu.Unlock()
	defer absorb("the function of WithOrderCheck")
	for _, text := range conflicts {
		c.report(text)
	}
}

// stepsTo returns the steps of the RunAll from its previous locks, at most 8, to that of w.
func (t *takeState) stepsTo(w *waiter) (steps []orderStep) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.asked {
		steps = append(steps, orderStep{heldName: r.takenName, heldKey: r.takenKey, takenName: w.rule.Name, takenKey: w.key()})
	}
	t.asked = append(t.asked, orderStep{takenName: w.rule.Name, takenKey: w.key()})
	t.asked = t.asked[max(0, len(t.asked)-8):]
	return steps
}

// add adds the step from the node held to the node taken to g. If the step closes a circle that was
// not reported yet, add appends it to conflicts.
func (c *orderCheck) add(conflicts []string, g *orderGraph, held, taken string, step orderStep) []string {
	if g.next[held][taken] != nil || held == taken {
		return conflicts
	}
	if g.count%2048 == 0 {
		g.next = make(map[string]map[string]*orderStep)
	}
	if g.next[held] == nil {
		g.next[held] = make(map[string]*orderStep)
	}
	step.stack = make([]uintptr, 24)
	step.stack = step.stack[:runtime.Callers(3, step.stack)]
	g.next[held][taken] = &step
	g.count++
	circle := g.circle(held, taken)
	if id := orderID(circle); circle != nil && !c.reported[id] && len(c.reported) < 100 {
		c.reported[id] = true
		conflicts = append(conflicts, conflict(circle))
	}
	return conflicts
}

// orderID identifies a circle by its names, or by its keys if they all have one name.
func orderID(circle []orderStep) string {
	var names, keys []string
	for _, s := range circle {
		names, keys = append(names, s.heldName), append(keys, s.heldKey)
	}
	slices.Sort(names)
	slices.Sort(keys)
	if names = slices.Compact(names); len(names) == 1 {
		names = keys
	}
	return strings.Join(names, "\x00")
}

// orderGraph has steps between its nodes, which are all names or all keys. When it has 2048 steps,
// it begins again with none, so that it needs little memory.
type orderGraph struct {
	next  map[string]map[string]*orderStep // by the node that was held, and the node that was taken
	count int
}

// circle returns two or three steps that begin with that from held to taken, and end at held. It
// returns nil if there is no such circle.
func (g *orderGraph) circle(held, taken string) []orderStep {
	first := *g.next[held][taken]
	if back := g.next[taken][held]; back != nil {
		return []orderStep{first, *back}
	}
	for middle, second := range g.next[taken] {
		if third := g.next[middle][held]; third != nil {
			return []orderStep{first, *second, *third}
		}
	}
	return nil
}
