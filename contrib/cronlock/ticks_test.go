package cronlock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
)

// scheduleAsked returns a schedule with a tick each minute. It has called the schedule's Next once
// with each of the times asked.
func scheduleAsked(t *testing.T, asked ...time.Time) *ticks {
	t.Helper()
	schedule, err := cron.ParseStandard("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	all := &ticks{Schedule: schedule}
	for _, now := range asked {
		all.Next(now)
	}
	return all
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func TestAJobTakesTheTickThatIsDue(t *testing.T) {
	t.Parallel()
	before := noon.Add(-30 * time.Second)
	for name, c := range map[string]struct {
		asked []time.Time
		at    []time.Time
		want  []time.Time
	}{
		"cron has asked for the next":   {[]time.Time{before, noon}, []time.Time{noon.Add(time.Millisecond)}, []time.Time{noon}},
		"a program looks ahead":         {[]time.Time{before, noon, noon.Add(time.Minute), before}, []time.Time{noon}, []time.Time{noon}},
		"stopped before, started again": {[]time.Time{noon.Add(-90 * time.Second), before}, []time.Time{noon}, []time.Time{noon}},
		"two jobs that are late":        {[]time.Time{before, noon}, []time.Time{noon.Add(61 * time.Second), noon.Add(61 * time.Second)}, []time.Time{noon.Add(time.Minute), noon}},
		"set back, and forth again":     {[]time.Time{before}, []time.Time{noon.Add(-time.Second), noon}, []time.Time{noon, noon}},
	} {
		all := scheduleAsked(t, c.asked...)
		var got []time.Time
		for _, now := range c.at {
			got = append(got, all.take(now, 5*time.Second))
		}
		if !slices.EqualFunc(got, c.want, time.Time.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A program may call Next all day to show when its jobs will run. Memory does not grow, and no
// tick is lost.
func TestTicksThatNobodyTakesAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := scheduleAsked(t)
		for range 1000 {
			all.Next(time.Now())
			for ahead := range 100 {
				all.Next(time.Now().Add(time.Duration(ahead) * time.Hour))
			}
			time.Sleep(6 * time.Second)
		}
		if n := len(all.remembered); n > 40 {
			t.Errorf("%d ticks are remembered", n)
		}
		next := all.Next(time.Now())
		time.Sleep(time.Until(next))
		if got := all.take(time.Now(), 0); !got.Equal(next) {
			t.Errorf("the tick is %v, want %v", got, next)
		}
	})
}
