package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/latchkit/latchkit/locker"
)

var longAndShort = []lock{
	{key: strings.Repeat("x", 200), Info: locker.Info{Held: true, Left: time.Second, Fence: 11}},
	{key: "order:1", Info: locker.Info{Held: true, Left: time.Second, Fence: 12, Metadata: "host-7"}},
}

// One long key used to widen the first column of top, so that the other columns of all rows
// were beyond the edge of the screen.
func TestDefectALongKeyHidAllColumnsOfTop(t *testing.T) {
	t.Parallel()
	w := topModel{order: "key", pattern: "*", width: 80, height: 24}
	w.lastLook = lookResult{longAndShort, nil, time.Now()}
	lines := strings.Split(w.screen(), "\n")
	checkContains(t, strings.Join(lines, "\n"), "KEY", "STATE", "FENCE", "order:1", "host-7", "12", "11", "…")
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("a line is too long: %s", line)
		}
	}
}

// ls prints whole keys, because users copy them from there. A long key does not move the columns
// of the other rows.
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

// top used to count letters, although a Chinese letter is as wide as two. So the columns to the
// right of such a key were not aligned.
func TestDefectWideLettersMovedTheColumns(t *testing.T) {
	t.Parallel()
	wide := []lock{
		{key: "订单:四十二", Info: locker.Info{Held: true, Left: time.Second, Fence: 11, Metadata: "主机"}},
		{key: "cafe\u0301:1", Info: locker.Info{Held: true, Left: time.Second, Fence: 12, Metadata: "host-7"}},
		{key: strings.Repeat("订单", 50), Info: locker.Info{Held: true, Left: time.Second, Fence: 13}},
	}
	lines := strings.Split(grid(rowsOf(wide[:2])), "\n")
	for _, column := range []string{"exclusive", "1s"} {
		at := func(line string) int { return ansi.StringWidth(line[:strings.Index(line, column)]) }
		if at(lines[1]) != at(lines[2]) {
			t.Errorf("the columns are not lined up:\n%s", strings.Join(lines, "\n"))
		}
	}
	w := topModel{order: "key", pattern: "*", width: 60, height: 24, lastLook: lookResult{wide, nil, time.Now()}}
	for line := range strings.SplitSeq(w.screen(), "\n") {
		if n := ansi.StringWidth(line); n > 60 {
			t.Errorf("a line of the screen has the width %d: %s", n, line)
		}
	}
	checkContains(t, w.screen(), "订单", "13", "…")
}

// In the order of expiry, a key without a TTL used to come before the keys that expire soon.
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
