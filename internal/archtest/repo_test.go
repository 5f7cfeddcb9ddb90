package archtest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/errtype"
)

// modulePath is the root module's.
const modulePath = "github.com/latchkit/latchkit"

// root finds the directory of the root module: the nearest go.mod above.
func root(t testing.TB) string {
	t.Helper()
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod in or above %s", start)
		}
	}
}

// repo is the tree that the rules hold for.
func repo(t testing.TB) fs.FS {
	t.Helper()
	return os.DirFS(root(t))
}

// find lists the files whose name matches one of the patterns of [path.Match], in
// all modules; testdata and hidden directories are nobody's code.
func find(t testing.TB, tree fs.FS, patterns ...string) []string {
	t.Helper()
	var found []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		for _, p := range patterns {
			if ok, err := path.Match(p, d.Name()); err != nil || ok {
				found = append(found, name)
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t testing.TB, tree fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(tree, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func exists(tree fs.FS, name string) bool {
	_, err := fs.Stat(tree, name)
	return err == nil
}

// listed is what go list says of a package.
type listed struct {
	Dir        string // in the module, with slashes: "locker/lockertest"
	ImportPath string
	Name       string

	GoFiles        []string // those of this system; none is a test
	CgoFiles       []string
	IgnoredGoFiles []string // those of other systems, tests among them
}

// files are the Go files of all systems, without tests.
func (p listed) files() []string {
	all := slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles)
	return slices.DeleteFunc(all, func(name string) bool {
		return strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")
	})
}

// public tells packages that users can import.
func (p listed) public() bool {
	return p.Name != "main" && !slices.Contains(strings.Split(p.Dir, "/"), "internal")
}

// packages lists the packages of the module at dir, and of none below it.
func packages(t testing.TB, dir string) []listed {
	t.Helper()
	if resolved, err := filepath.EvalSymlinks(dir); err == nil { // go list does the same
		dir = resolved
	}
	var all []listed
	stream := json.NewDecoder(strings.NewReader(goCommand(t, dir, "list", "-find", "-json", "./...")))
	for stream.More() {
		var p listed
		if err := stream.Decode(&p); err != nil {
			t.Fatal(err)
		}
		below, err := filepath.Rel(dir, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		p.Dir = filepath.ToSlash(below)
		all = append(all, p)
	}
	return all
}

// goCommand runs the go command as if there were no go.work, and returns what it printed.
func goCommand(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errtype.As[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// matches knows a pattern of import paths: "x", or "x/..." for x and all below it.
func matches(pattern, importPath string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return importPath == base || strings.HasPrefix(importPath, base+"/")
	}
	return importPath == pattern
}

// lookup finds the reason of the pattern that an import path matches.
func lookup(rules map[string]string, importPath string) (why string, ok bool) {
	for pattern, why := range rules {
		if matches(pattern, importPath) {
			return why, true
		}
	}
	return "", false
}

// report fails the test once per problem.
func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// expect fails unless there is a problem for each of the wanted pieces of text, and no other.
func expect(t *testing.T, problems []string, want ...string) {
	t.Helper()
	rest := slices.Clone(problems)
	for _, w := range want {
		i := slices.IndexFunc(rest, func(p string) bool { return strings.Contains(p, w) })
		if i < 0 {
			t.Errorf("nobody complains of %q, only:\n\t%s", w, strings.Join(rest, "\n\t"))
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	for _, p := range rest {
		t.Errorf("this complaint was not expected: %s", p)
	}
}

// write makes a directory with these files, for what the go command must see.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
