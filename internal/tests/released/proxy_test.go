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
	repository, public, proxy := t.TempDir(), t.TempDir(), t.TempDir()
	commit(t, repository, checkout(t))
	git(t, repository, "remote", "add", "origin", public)
	run(t, public, nil, "git", "init", "--quiet", "--bare")
	_, commands, _ := strings.Cut(read(t, filepath.Join(checkout(t), "CONTRIBUTING.md")), "```\n.ci/prepare-release")
	commands, _, _ = strings.Cut(commands, "```")
	commands = strings.NewReplacer("v0.1.0", version, "/tmp/tags", filepath.Join(proxy, "tags")).Replace(".ci/prepare-release" + commands)
	run(t, repository, nil, "bash", "-c", commands)
	released := strings.Fields(run(t, public, nil, "git", "tag"))
	download := []string{"mod", "download"}
	for _, tag := range released {
		download = append(download, path.Join(root, path.Dir(tag))+"@"+version)
	}

	// Who types them again changes nothing.
	if err := exec.CommandContext(t.Context(), "bash", "-c", "cd "+repository+" && "+commands).Run(); err == nil || len(strings.Fields(git(t, repository, "tag"))) != len(released) {
		t.Errorf("a second release of %s: %v", version, err)
	}
	env := []string{
		"GOWORK=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + proxy, "GOPROXY=direct", "GOSUMDB=off",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + public + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + root,
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
	git(t, repository, "init", "--quiet", "--initial-branch=main")
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
