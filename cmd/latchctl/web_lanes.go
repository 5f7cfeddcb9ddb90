package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

// sighting is what the last look at a busy key has found.
type sighting struct {
	at      time.Time
	holders map[string]uint64
	left    time.Duration
	waiters int
}

// lookAtBusy looks at the busiest keys again and again, and notes what has happened to them.
func (w *web) lookAtBusy(ctx context.Context) {
	for ctx.Err() == nil {
		var err error
		var longest time.Duration
		for _, key := range w.busiest() {
			var found lock
			if found, err = w.inspect(ctx, key); err != nil {
				break
			}
			w.keep(found)
			w.note(found, time.Now())
			if found.Waiters > 0 {
				var wait time.Duration
				if wait, err = w.longestWait(ctx, key); err != nil {
					break
				}
				longest = max(longest, wait)
			}
		}
		w.mu.Lock()
		w.longest = longest
		w.mu.Unlock()
		if err != nil {
			w.report(ctx, err) // the next look at all keys finds out when the servers are back
		} else {
			w.summary()
		}
		_ = pause(ctx, w.every) // the loop ends with ctx
	}
}

// longestWait returns for how long the first of the waiters of key has waited. On a quorum it is not
// known.
func (w *web) longestWait(ctx context.Context, key string) (longest time.Duration, err error) {
	if err := w.pace(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := w.to.bound(ctx)
	defer cancel()
	queue, err := w.l.engine.Queue(ctx, key)
	for _, q := range queue {
		if !q.Since.IsZero() {
			longest = max(longest, w.l.elapsed(q.Since))
		}
	}
	return longest, overdue(ctx, err)
}

// busiest returns the keys that have lanes: those with the most waiters, then the oldest leases. A
// key keeps its lane until it is neither held nor waited for, or much busier keys need the lane. A
// key for which nobody waits gives its lane to one with waiters.
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
	waited := 0 // keys with waiters and without a lane
	for _, l := range locks[:min(webLanes, len(locks))] {
		if l.Waiters > 0 && !slices.Contains(lanes, l.key) {
			waited++
		}
	}
	for _, l := range slices.Backward(locks) {
		if l.Waiters == 0 && len(lanes)+waited > webLanes {
			lanes = slices.DeleteFunc(lanes, func(key string) bool { return key == l.key })
		}
	}
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
