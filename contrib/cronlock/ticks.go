package cronlock

import (
	"slices"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// ticks is a Schedule that remembers the ticks that its Next has returned. This memory is needed,
// because cron does not pass the time of the tick to the job.
type ticks struct {
	cron.Schedule

	mu         sync.Mutex
	remembered []time.Time // the remembered ticks, in order and without duplicates
}

// Next returns the first tick after now. cron calls Next when cron starts, and each time cron has
// started the job. A program may call Next as well, to show when a job will run.
func (t *ticks) Next(now time.Time) time.Time {
	next := t.Schedule.Next(now)
	if next.IsZero() {
		return next // the schedule has no further tick
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, known := slices.BinarySearchFunc(t.remembered, next, time.Time.Compare); !known {
		t.remembered = slices.Insert(t.remembered, i, next)
	}
	t.tidy(time.Now()) // the time of now is not used, because it may be in the future if a program has called Next
	return next
}

// take returns the tick of a job that starts at the time now. It returns the latest due tick that
// was not taken. Older ticks may remain: either their jobs have not called take yet, or a wrapper
// of the job has skipped them, or the Cron was stopped before these ticks were due.
//
// If no tick is due, cron started the job and the clock was set back, or a program runs the job by
// hand. Then take returns the next tick if it is due within skew, and otherwise the time now. The
// next tick remains in both cases, because cron starts the job of this tick later. If take removed
// the next tick, the process would be one tick ahead of the others for ever.
func (t *ticks) take(now time.Time, skew time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.dueCount(now)
	switch {
	case due > 0:
		tick := t.remembered[due-1]
		t.remembered = slices.Delete(t.remembered, due-1, due)
		return tick
	case len(t.remembered) > 0 && t.remembered[0].Sub(now) <= skew:
		return t.remembered[0]
	}
	return now.Truncate(time.Second)
}

// dueCount returns the number of ticks that are due at the time now. The caller holds t.mu.
func (t *ticks) dueCount(now time.Time) int {
	i, exactly := slices.BinarySearchFunc(t.remembered, now, time.Time.Compare)
	if exactly {
		i++
	}
	return i
}

// tidy drops ticks that no job will take. These are old ticks, and ticks far in the future that
// Next has returned to a program. The caller holds t.mu.
func (t *ticks) tidy(now time.Time) {
	const most = 16 // the largest number of old ticks, and of future ticks, that are kept
	due := t.dueCount(now)
	if ahead := len(t.remembered) - due; ahead > most {
		t.remembered = t.remembered[:due+most]
	}
	if due > most {
		t.remembered = slices.Delete(t.remembered, 0, due-most)
	}
}
