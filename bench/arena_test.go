package main

import (
	"os"
	"testing"
	"time"
)

// TestOverlapIsSeen shows that holders that overlap are counted as violations.
func TestOverlapIsSeen(t *testing.T) {
	srv := startServer(t)
	for name, crowd := range map[string]shape{
		"between processes": {processes: 4, workers: 1, oneKey: true},
		"inside of one":     {processes: 1, workers: 16, oneKey: true},
	} {
		t.Run(name, func(t *testing.T) {
			sections := 0.0
			for range 50 { // on a busy machine, the workers may not overlap at each attempt
				got, err := crowd.take(t.Context(), srv, unlocked, 200*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if got.client.Violations > 0 {
					return
				}
				sections += got.acquisitions
			}
			t.Errorf("nobody noticed that %.0f critical sections were not locked", sections)
		})
	}
}

func TestAReaderBesideAWriterIsSeen(t *testing.T) {
	srv := startServer(t)
	got, err := shelf{processes: 2, readers: 4, writers: 4}.take(t.Context(), srv, unlocked, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got.lent.Violations == 0 {
		t.Errorf("nobody noticed that %.0f reads and %.0f writes per second were not locked", got.reads(), got.writes())
	}
}

type numbered uint64

func (n numbered) Fence() uint64 { return uint64(n) }

func TestArena(t *testing.T) {
	name := arenaFile(t)
	ours, err := openArena(name)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := openArena(name) // the test opens the arena again, as another process would
	if err != nil {
		t.Fatal(err)
	}
	type fencedHold struct {
		noHold
		numbered
	}
	for _, c := range []struct {
		what string
		do   func() int
		want int
	}{
		{"the first enters", func() int { return ours.enter(fencedHold{numbered: 5}) }, 0},
		{"another enters while he is inside", func() int { return theirs.enter(fencedHold{numbered: 6}) }, 1},
		{"who leaves is not the last", func() int { return ours.leave() }, 1},
		{"the last leaves", func() int { return theirs.leave() }, 0},
		{"an older fence enters", func() int { return ours.enter(fencedHold{numbered: 5}) }, 1},
		{"and leaves", func() int { return ours.leave() }, 0},
		{"the same fence again", func() int { return ours.enter(fencedHold{numbered: 5}) }, 1},
		{"and leaves", func() int { return ours.leave() }, 0},
		{"who has no fence", func() int { return ours.enter(noHold{}) }, 0},
	} {
		if got := c.do(); got != c.want {
			t.Errorf("%s: %d violations, want %d", c.what, got, c.want)
		}
	}
}

// arenaFile returns the file of an arena. The end of the test removes the file.
func arenaFile(t *testing.T) string {
	t.Helper()
	name, err := makeArena()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return name
}
