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

// take returns the tick of a job that cron has started. It returns the latest due tick that was not
// taken. Older ticks may remain: either their jobs have not called take yet, or the Cron was
// stopped before these ticks were due. If the clock was set back and no tick is due, take returns
// the next tick.
func (t *ticks) take(now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.remembered) == 0 {
		return now.Truncate(time.Second) // cron has started the job without a call of Next
	}
	i := max(t.dueCount(now)-1, 0)
	tick := t.remembered[i]
	t.remembered = slices.Delete(t.remembered, i, i+1)
	return tick
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
