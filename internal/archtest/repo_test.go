package archtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// modulePath is the path of the root module.
const modulePath = "github.com/latchkit/latchkit"

// TestRules checks the repository. Each rule returns what is wrong with a tree of files.
func TestRules(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(testing.TB, fs.FS) []string{
		"imports": checkImports,
		"readme":  checkReadme,
		"links":   checkLinks,
		"chinese": checkChinese,
		"lua":     checkLua,
		"hygiene": checkHygiene,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report(t, check(t, os.DirFS(root(t))))
		})
	}
}

// root finds the directory of the root module: the nearest parent with a go.mod.
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

// find returns the files of tree, in all modules, whose name matches one of the patterns of
// [path.Match]. The folder testdata and hidden folders are left out.
func find(t testing.TB, tree fs.FS, patterns ...string) (found []string) {
	t.Helper()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		base := d.Name()
		if err == nil && d.IsDir() && name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata") {
			return fs.SkipDir
		}
		fits := func(pattern string) bool { ok, _ := path.Match(pattern, base); return ok }
		if !d.IsDir() && slices.ContainsFunc(patterns, fits) {
			found = append(found, name)
		}
		return err
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

// packages returns the Go files of each folder of the root module, without tests, by folder. The
// map contains the files for all systems.
func packages(t testing.TB, tree fs.FS) map[string][]string {
	t.Helper()
	modules := find(t, tree, "go.mod")
	all := make(map[string][]string)
	for _, name := range find(t, tree, "*.go") {
		nested := func(mod string) bool { return strings.HasPrefix(name, path.Dir(mod)+"/") }
		if !strings.HasSuffix(name, "_test.go") && !slices.ContainsFunc(modules, nested) {
			all[path.Dir(name)] = append(all[path.Dir(name)], name)
		}
	}
	return all
}

// public reports whether users can import the package in dir.
func public(dir string) bool { return !slices.Contains(strings.Split(dir, "/"), "internal") }

// goCommand runs the go command in dir, as if there were no go.work, and returns the command's
// output.
func goCommand(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// report fails the test, with one error for each problem.
func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// expect checks that each problem contains one of the wanted texts, and that each wanted text is
// in one problem.
func expect(t *testing.T, problems []string, want ...string) {
	t.Helper()
	rest := slices.Clone(problems)
	for _, w := range want {
		i := slices.IndexFunc(rest, func(p string) bool { return strings.Contains(p, w) })
		if i < 0 {
			t.Errorf("no complaint has %q, only:\n\t%s", w, strings.Join(rest, "\n\t"))
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	for _, p := range rest {
		t.Errorf("this complaint was not expected: %s", p)
	}
}

// treeOf returns a tree of files with the given contents, by path, for the test of a rule.
func treeOf(files map[string]string) fs.FS {
	tree := make(fstest.MapFS)
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}
