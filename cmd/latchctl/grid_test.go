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

// A Chinese letter is as wide as two Latin ones, and a combining accent has no width.
func TestColumnsAreAlignedBesideWideLetters(t *testing.T) {
	t.Parallel()
	wide := []lock{
		{key: "订单:四十二", Info: locker.Info{Held: true, Left: time.Second, Fence: 11, Metadata: "主机"}},
		{key: "cafe\u0301:1", Info: locker.Info{Held: true, Left: time.Second, Fence: 12, Metadata: "host-7"}},
	}
	checkContains(t, grid(rowsOf(wide)), "KEY          STATE", "订单:四十二  exclusive", "cafe\u0301:1       exclusive")
}

// In the order of expiry, a key without a TTL comes behind the keys that expire.
func TestWhatNeverEndsIsSortedLast(t *testing.T) {
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
