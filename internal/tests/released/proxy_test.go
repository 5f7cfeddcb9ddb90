package released

import (
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// release makes a release of the present files by the commands of CONTRIBUTING.md. It returns a
// folder that serves the tagged modules as a module proxy. The code of the Go team decides which
// file belongs to which module.
func release(t *testing.T, version string) (proxy string) {
	t.Helper()
	repository, proxy := t.TempDir(), t.TempDir()
	commit(t, repository, checkout(t))
	for tag := range strings.Lines(run(t, repository, nil, ".ci/prepare-release", version)) {
		tag = strings.TrimSpace(tag)
		git(t, repository, "tag", tag)
		folder := strings.TrimPrefix(path.Dir(tag), ".") // "" for the root module
		m := module.Version{Path: path.Join(root, folder), Version: version}
		dir := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "list"), version+"\n")
		write(t, filepath.Join(dir, version+".info"), `{"Version":"`+version+`","Time":"2026-12-01T00:00:00Z"}`)
		write(t, filepath.Join(dir, version+".mod"), git(t, repository, "show", tag+":"+path.Join(folder, "go.mod")))
		archive, err := os.Create(filepath.Join(dir, version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(zip.CreateFromVCS(archive, m, repository, tag, folder), archive.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return proxy
}

// checkout returns the folder of this repository.
func checkout(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// commit makes a repository in an empty folder. Its one commit has the present files below from, but
// for those that git ignores. A repository in from stays as it is.
func commit(t *testing.T, repository, from string) {
	t.Helper()
	git(t, repository, "init", "--quiet")
	git(t, repository, "config", "user.name", "the test")
	git(t, repository, "config", "user.email", "test@example.com")
	git(t, repository, "--work-tree", from, "add", "--all")
	git(t, repository, "commit", "--quiet", "--message", "the present files")
	git(t, repository, "reset", "--quiet", "--hard")
}

func git(t *testing.T, repository string, args ...string) string {
	t.Helper()
	return run(t, repository, nil, "git", append([]string{"--git-dir", filepath.Join(repository, ".git")}, args...)...)
}

// run runs a command in a folder, and returns its standard output.
func run(t *testing.T, folder string, env []string, command string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = failed.Stderr
		}
		t.Fatalf("%s %s: %v\n%s%s", command, strings.Join(args, " "), err, out, stderr)
	}
	return string(out)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
