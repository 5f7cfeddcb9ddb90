package proc_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/proc/faketest"
)

var (
	// echo repeats each line with the time. The program exits when it gets the line "exit CODE".
	echo = proc.Register("echo", func(args []string) {
		fmt.Println("args", strings.Join(args, "+"))
		for {
			line := proc.Listen()
			if code, found := strings.CutPrefix(line, "exit "); found {
				n, _ := strconv.Atoi(code)
				os.Exit(n)
			}
			fmt.Println(line, time.Now().UnixNano())
		}
	})
	panics = proc.Register("panics", func([]string) { panic("on purpose") })
	silent = proc.Register("silent", func([]string) {})
	races  = proc.Register("races", func([]string) {
		fmt.Fprintln(os.Stderr, "WARNING: DATA RACE")
		fmt.Println("raced")
		proc.Listen()
	})
	stops = proc.Register("stops", func([]string) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		fmt.Println("runs on")
	})
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m).Run()) }

func TestChild(t *testing.T) {
	t.Run("gets its arguments and talks in lines", func(t *testing.T) {
		t.Parallel()
		child := echo.Start(t, "a", "b c")
		if got := child.Expect(t, "args"); got != "a+b c" {
			t.Errorf("args = %q", got)
		}
		child.Send("one")
		child.Send("two")
		child.Expect(t, "one")
		child.Expect(t, "two")
	})

	t.Run("lines that nobody expects are passed over", func(t *testing.T) {
		t.Parallel()
		child := echo.Start(t)
		child.Send("one")
		child.Send("two")
		child.Expect(t, "two")
	})

	t.Run("hands over its exit code", func(t *testing.T) {
		t.Parallel()
		child := echo.Start(t)
		child.Send("exit 7")
		if code := child.Wait(t); code != 7 {
			t.Errorf("exit code %d, want 7", code)
		}
	})

	t.Run("stands still while paused and goes on when resumed", func(t *testing.T) {
		t.Parallel()
		child, witness := echo.Start(t), echo.Start(t)
		child.Expect(t, "args")
		child.Pause()
		child.Send("anybody?")
		for range 10 { // while another child answers ten times, this child would answer too if it were not paused
			witness.Send("here")
			witness.Expect(t, "here")
		}
		resumed := time.Now().UnixNano()
		child.Resume()
		answered, err := strconv.ParseInt(child.Expect(t, "anybody?"), 10, 64)
		if err != nil || answered < resumed {
			t.Errorf("answered at %d, resumed only at %d (%v)", answered, resumed, err)
		}
	})

	t.Run("is gone after Kill, also when paused", func(t *testing.T) {
		t.Parallel()
		child := echo.Start(t)
		child.Pause()
		child.Kill()
		if running(child.Pid()) {
			t.Error("it still exists")
		}
		if code := child.Wait(t); code != -1 {
			t.Errorf("exit code %d, want -1: a signal ended it", code)
		}
	})

	t.Run("ends when its test does, even a failed test that left it paused", func(t *testing.T) {
		t.Parallel()
		var child *proc.Child
		faketest.Run(t, func(t testing.TB) {
			child = echo.Start(t)
			child.Pause()
			t.Fatal("on purpose")
		})
		if running(child.Pid()) {
			t.Error("it outlived its test")
		}
	})

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

	t.Run("may stop itself", func(t *testing.T) {
		t.Parallel()
		child := stops.Start(t)
		child.AwaitStop()
		child.Resume()
		child.Expect(t, "runs on")
	})

	t.Run("fails its test when it ends before it said what is expected", func(t *testing.T) {
		t.Parallel()
		test := faketest.Run(t, func(t testing.TB) { silent.Start(t).Expect(t, "hello") })
		if !test.FailedWith(`before it said "hello"`) {
			t.Errorf("the test had %v", test)
		}
	})

	t.Run("cannot be paused once it is gone", func(t *testing.T) {
		t.Parallel()
		test := faketest.Run(t, func(t testing.TB) {
			child := echo.Start(t)
			child.Kill()
			child.Pause()
		})
		if !test.FailedWith("pause process") {
			t.Errorf("the test had %v", test)
		}
	})
}

func TestLaunchOfMissingProgram(t *testing.T) {
	if _, err := proc.Launch(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want os.ErrNotExist", err)
	}
}

func TestRegisterRefusesTheSameNameTwice(t *testing.T) {
	defer func() {
		if message := fmt.Sprint(recover()); !strings.Contains(message, `"echo" is registered twice`) {
			t.Errorf("recovered %q", message)
		}
	}()
	proc.Register("echo", func([]string) {})
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }
