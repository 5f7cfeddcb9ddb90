package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed clock/clock.c
var clockSource []byte

// Clock is the wall clock of a server that StartWithClock has started.
type Clock struct {
	t    testing.TB
	file *os.File
}

// StartWithClock does the work of [Start] for a server whose wall clock can be set. StartWithClock
// needs a C compiler, as the race detector does.
func StartWithClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("the clock of a redis-server is to be set, and its library cannot be compiled: %v\n%s\n"+
			"Install a C compiler: run `make tools` (Debian, as root), or `apt-get install gcc libc6-dev`.", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "clock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	c := &Clock{t, file}
	c.Set(0)
	s, err := launch(&Server{args: args, environ: append(os.Environ(), "LD_PRELOAD="+library, "LATCHKIT_CLOCK="+file.Name())})
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	t.Cleanup(s.cleanUp)
	return s, c
}

// Set makes the server's wall clock differ from the machine's clock by shift.
func (c *Clock) Set(shift time.Duration) {
	c.t.Helper()
	micros := binary.NativeEndian.AppendUint64(nil, uint64(shift.Microseconds()))
	if _, err := c.file.WriteAt(micros, 0); err != nil {
		c.t.Fatal(err)
	}
}
