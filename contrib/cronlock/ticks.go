package cronlock

import (
	"slices"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// ticks is a Schedule that remembers the ticks that Next has returned, because cron does not pass a
// job its tick.
type ticks struct {
	cron.Schedule

	mu    sync.Mutex
	named []time.Time // in order, without duplicates
}

// Next returns the tick after now. cron calls it when it starts, and each time it has started the
// job; a program may call it as well, to show when a job runs.
func (t *ticks) Next(now time.Time) time.Time {
	next := t.Schedule.Next(now)
	if next.IsZero() {
		return next // the schedule has no further tick
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, known := slices.BinarySearchFunc(t.named, next, time.Time.Compare); !known {
		t.named = slices.Insert(t.named, i, next)
	}
	t.tidy(time.Now()) // now may be in the future, if a program called Next
	return next
}

// take returns the tick of a job that cron has started: the latest due tick that was not taken.
// Older ticks belong to jobs that have not called take yet, or the Cron was stopped before they
// were due. If the clock was set back and no tick is due, take returns the next tick.
func (t *ticks) take(now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.named) == 0 {
		return now.Truncate(time.Second) // cron started the job without a call of Next
	}
	i := max(t.due(now)-1, 0)
	tick := t.named[i]
	t.named = slices.Delete(t.named, i, i+1)
	return tick
}

// due is how many ticks are due. t.mu is held.
func (t *ticks) due(now time.Time) int {
	i, exactly := slices.BinarySearchFunc(t.named, now, time.Time.Compare)
	if exactly {
		i++
	}
	return i
}

// tidy drops ticks that no job will take: old ticks, and ticks far in the future that a program
// asked for. t.mu is held.
func (t *ticks) tidy(now time.Time) {
	const most = 16 // how many of each are kept
	due := t.due(now)
	if ahead := len(t.named) - due; ahead > most {
		t.named = t.named[:due+most]
	}
	if due > most {
		t.named = slices.Delete(t.named, 0, due-most)
	}
}
