package proc_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/proc/faketest"
)

var (
	panics = proc.Register("panics", func([]string) { panic("on purpose") })
	races  = proc.Register("races", func([]string) {
		fmt.Fprintln(os.Stderr, "WARNING: DATA RACE")
		fmt.Println("raced")
		proc.Listen()
	})
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m).Run()) }

func TestADefectOfAChildFailsItsTest(t *testing.T) {
	t.Run("fails its test when it fails on its own", func(t *testing.T) {
		t.Parallel()
		test := faketest.Run(t, func(t testing.TB) { <-panics.Start(t).Exited() })
		if !test.FailedWith("ended on its own") || !test.Logged("panic: on purpose") {
			t.Errorf("the test had %v", test)
		}
	})

	t.Run("fails its test when it has a data race, though it is killed before it can end", func(t *testing.T) {
		t.Parallel()
		test := faketest.Run(t, func(t testing.TB) { races.Start(t).Expect(t, "raced") })
		if !test.FailedWith("DATA RACE") {
			t.Errorf("the test had %v", test)
		}
	})
}
