package proc_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
)

// launcher is a program that acts as a test binary. It starts a process, and then the test kills
// the launcher.
var launcher = proc.Register("launcher", func([]string) {
	sleeper, err := proc.Launch(exec.Command("sleep", "600"))
	if err != nil {
		panic(err)
	}
	fmt.Println("launched", sleeper.Pid())
	proc.Listen()
})

func TestKilledTestBinaryLeavesNoProcess(t *testing.T) {
	binary := launcher.Start(t)
	sleeper, err := strconv.Atoi(binary.Expect(t, "launched"))
	if err != nil {
		t.Fatal(err)
	}
	binary.Kill()

	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	deadline := time.After(10 * time.Second)
	for alive(sleeper) {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("process %d outlived the one that started it", sleeper)
		}
	}
}

// alive reports whether the process runs. A zombie does not run.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}
