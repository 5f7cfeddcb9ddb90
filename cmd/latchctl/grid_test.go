package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

var longAndShort = []lock{
	{key: strings.Repeat("x", 200), Info: locker.Info{Held: true, Left: time.Second, Fence: 11}},
	{key: "order:1", Info: locker.Info{Held: true, Left: time.Second, Fence: 12, Metadata: "host-7"}},
}

// One long key moved the columns of all rows beyond the edge of the screen.
func TestDefectALongKeyHidAllColumnsOfTop(t *testing.T) {
	t.Parallel()
	w := watching{order: "key", pattern: "*", width: 80, height: 24}
	w.seen = looked{longAndShort, nil, time.Now()}
	lines := strings.Split(w.screen(), "\n")
	has(t, strings.Join(lines, "\n"), "KEY", "STATE", "FENCE", "order:1", "host-7", "12", "11", "…")
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("a line is too long: %s", line)
		}
	}
}

// ls prints the whole key, because users copy it from there; the other rows stay aligned.
func TestALongKeyMovesOnlyItsOwnRowOfLs(t *testing.T) {
	t.Parallel()
	lines := strings.Split(grid(rowsOf(longAndShort)), "\n")
	if len(lines[0]) > 80 || len(lines[2]) > 80 || !strings.HasPrefix(lines[1], strings.Repeat("x", 200)+"  exclusive") {
		t.Errorf("the table:\n%s", strings.Join(lines, "\n"))
	}
	if strings.Index(lines[0], "STATE") != strings.Index(lines[2], "exclusive") {
		t.Errorf("the columns are not lined up:\n%s", strings.Join(lines, "\n"))
	}
}

// A key without a TTL was listed before the keys that are about to expire.
func TestDefectWhatNeverEndsWasSortedFirst(t *testing.T) {
	t.Parallel()
	locks := []lock{
		{key: "endless", Info: locker.Info{Held: true, Left: -1}}, {key: "free"},
		{key: "late", Info: locker.Info{Held: true, Left: time.Hour}}, {key: "soon", Info: locker.Info{Held: true, Left: time.Second}},
	}
	slices.SortStableFunc(locks, orders["left"])
	if locks[0].key != "soon" || locks[1].key != "late" {
		t.Errorf("the order is %s, %s, %s, %s", locks[0].key, locks[1].key, locks[2].key, locks[3].key)
	}
}
