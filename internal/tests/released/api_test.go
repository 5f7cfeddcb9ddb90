package released

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Who removes a stable name that the last tag has is stopped, unless the CHANGELOG names it.
func TestTheAPIOfTheLastTagIsKept(t *testing.T) {
	t.Parallel()
	from, repository := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod":              "module " + root + "\n\ngo 1.26.0\n",
		"README.md":           read(t, filepath.Join(checkout(t), "README.md")),
		"CHANGELOG.md":        "# Changelog\n\n## v0.1.0\n\nlocker.Run runs.\n",
		"locker/locker.go":    "package locker\n\nfunc Run() {}\n\nfunc WithAdaptiveTTL() {}\n",
		"locker/lead/lead.go": "package lead\n\nfunc Run() {}\n",
	} {
		name = filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, name, text)
	}
	commit(t, repository, from)

	expect := func(step string, passes bool, want string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(checkout(t), ".ci", "api"), repository)
		out, err := cmd.CombinedOutput()
		if (err == nil) != passes || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%swant %q", step, err, out, want)
		}
	}
	expect("without a tag", true, "no version is tagged")
	git(t, repository, "tag", "v0.1.0-rc.1")
	git(t, repository, "tag", "v0.1.0")
	expect("without a change", true, "")

	write(t, filepath.Join(repository, "locker", "lead", "lead.go"), "package lead\n")
	write(t, filepath.Join(repository, "locker", "locker.go"), "package locker\n\nfunc Run() {}\n\nfunc New() {}\n")
	expect("without unstable names", true, "may change: locker.WithAdaptiveTTL: removed\nmay change: locker/lead.Run: removed\n")

	write(t, filepath.Join(repository, "locker", "locker.go"), "package locker\n")
	expect("without a stable name", false, "breaking: locker.Run: removed\n")

	write(t, filepath.Join(repository, "CHANGELOG.md"), "## v0.2.0\n\n`locker.Run` is gone: use Go.\n\n"+read(t, filepath.Join(from, "CHANGELOG.md")))
	expect("without a stable name that the CHANGELOG names", true, "breaking, as CHANGELOG.md says: locker.Run: removed\n")
}
