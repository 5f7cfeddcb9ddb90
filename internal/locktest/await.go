package locktest

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Slack is how much later than promised an event may happen, because the machine may be busy.
const Slack = 5 * time.Second

// A call may take longer than its context or its wait, but by at most Overstay. On a busy machine,
// its caller may continue up to Room after the call has returned.
const (
	Overstay = 250 * time.Millisecond
	Room     = 750 * time.Millisecond
)

// StuckAfter is the time after which a caller that still waits counts as stuck.
const StuckAfter = 25 * time.Second

// Eventually waits until the function holds returns true. The parameter condition names the awaited
// condition in the error. Use Eventually for conditions that depend on another process or
// connection.
func Eventually(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-bound:
			t.Fatalf("not within a minute: %s", condition)
		}
	}
}

// Within checks that the function do takes no longer than promised + Slack, and returns how long it
// took. The parameter action names the function in the error.
func Within(t *testing.T, promised time.Duration, action string, do func()) time.Duration {
	t.Helper()
	start := time.Now()
	do()
	took := time.Since(start)
	if took > promised+Slack {
		t.Errorf("%s took %v, want %v and at most %v more", action, took, promised, Slack)
	}
	t.Logf("%s took %v, promised are %v", action, took, promised)
	return took
}

// Back checks that the function call takes no longer than promised + Overstay + Room. The parameter
// action names the function in the error.
func Back(t *testing.T, promised time.Duration, action string, call func()) {
	t.Helper()
	start := time.Now()
	call()
	if took := time.Since(start); took > promised+Overstay+Room {
		t.Errorf("%s is back after %v, want %v and at most %v more", action, took, promised+Overstay, Room)
	}
}

// Goroutines returns the stacks of all goroutines that run code of a package of latchkit, such as
// "locker". The external tests of the package do not count as its code.
func Goroutines(pkg string) []string {
	all := make([]byte, 8<<20)
	stacks := strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n")
	return slices.DeleteFunc(stacks, func(s string) bool { return !strings.Contains(s, "latchkit/"+pkg+".") })
}

// RunTogether makes more tests run at once than there are processors. This saves time, because most
// tests wait for servers and for the ends of leases. If the flag -parallel gives the number of
// tests, RunTogether does nothing.
func RunTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}
