package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A reader who pastes the first program of a README into a file gets a program that compiles, and
// that takes a lock on a real server.
func TestTheFirstProgramOfTheReadmeRunsWhenPasted(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, readme := range []string{"README.md", "README.zh-CN.md"} {
		text, err := os.ReadFile(filepath.Join("../..", readme))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "```go\npackage main\n")
		program, _, found := strings.Cut(rest, "```\n")
		const address = "localhost:6379"
		if !found || !strings.Contains(program, address) {
			t.Fatalf("the first program of %s does not name its server, %s:\n%s", readme, address, program)
		}
		pasted := filepath.Join(t.TempDir(), "main.go")
		program = "package main\n" + program
		if err := os.WriteFile(pasted, []byte(strings.ReplaceAll(program, address, server.Addr())), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "go", "run", pasted).CombinedOutput()
		if err != nil || string(out) != "order 42 is mine\n" {
			t.Errorf("the first program of %s: %v\n%s", readme, err, out)
		}
	}
}
