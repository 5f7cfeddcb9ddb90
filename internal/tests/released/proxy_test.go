package released

import (
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// release makes a release of the present files by the commands of CONTRIBUTING.md. It returns a
// folder that serves the tagged modules as a module proxy: what the go command downloads from the
// tags, as the public proxy does.
func release(t *testing.T, version string) (proxy string) {
	t.Helper()
	repository, proxy := t.TempDir(), t.TempDir()
	commit(t, repository, checkout(t))
	download := []string{"mod", "download"}
	for tag := range strings.Lines(run(t, repository, nil, ".ci/prepare-release", version)) {
		tag = strings.TrimSpace(tag)
		git(t, repository, "tag", tag)
		download = append(download, path.Join(root, path.Dir(tag))+"@"+version)
	}
	env := []string{
		"GOWORK=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + proxy, "GOPROXY=direct", "GOSUMDB=off",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + repository + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + root,
	}
	run(t, t.TempDir(), env, "go", download...)
	return filepath.Join(proxy, "cache", "download")
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
