package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// provenance returns where, when and with which versions the figures were measured. Figures
// without this information are useless.
func provenance(ctx context.Context, command string) (string, error) {
	srv, err := launchServer()
	if err != nil {
		return "", err
	}
	redis := srv.witness.InfoMap(ctx, "server").Item("Server", "redis_version")
	if err := srv.close(); err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(what, is string) { fmt.Fprintf(&b, "| %s | %s |\n", what, is) }
	b.WriteString("| | |\n|---|---|\n")
	line("date", time.Now().UTC().Format("2006-01-02 15:04 MST"))
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	line("command", "`"+strings.ReplaceAll(command, home, "$HOME")+"`")
	line("machine", fmt.Sprintf("%s, %d processors, %s/%s, kernel %s", processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, kernel()))
	line("load before", loadAverage())
	line("redis-server", redis+", on loopback, without persistence")
	line("Go", runtime.Version())
	line("latchkit", commit(ctx))
	for _, m := range modules() {
		line(m.Path, m.Version)
	}
	return b.String(), nil
}

func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, is, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(is)
		}
	}
	return "unknown processor"
}

// loadAverage returns the load of the machine, which shows whether other programs use it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ") + " (1, 5, 15 minutes)"
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// commit returns git's description of the source tree, or "unknown commit" if git fails.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown commit"
	}
	return strings.TrimSpace(string(out))
}

// modules returns the modules of the compared libraries, as they are built into this program.
func modules() (used []*debug.Module) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		if slices.Contains([]string{
			"github.com/redis/go-redis/v9", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/redis/rueidis",
		}, m.Path) {
			used = append(used, m)
		}
	}
	return used
}
