package archtest

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "rewrite the golden files of the exported API")

// TestAPI compares the exported API of each public package with its file below
// api, so that a change of it is a diff to look at.
func TestAPI(t *testing.T) {
	t.Parallel()
	dir := root(t)
	now := publicAPI(t, dir)
	if *update {
		rewrite(t, now)
	}
	report(t, checkAPI(t, os.DirFS("."), now))
}

// publicAPI maps the golden files to what they should hold.
func publicAPI(t testing.TB, dir string) map[string]string {
	t.Helper()
	now := make(map[string]string)
	for _, p := range packages(t, dir) {
		if p.public() {
			now["api/"+strings.ReplaceAll(p.Dir, "/", "_")+".txt"] = apiText(t, os.DirFS(dir), p)
		}
	}
	return now
}

// rewrite makes the files below api say what is now.
func rewrite(t testing.TB, now map[string]string) {
	t.Helper()
	if err := os.MkdirAll("api", 0o755); err != nil { //nolint:gosec // a directory of the repository
		t.Fatal(err)
	}
	for name, text := range now {
		if err := os.WriteFile(filepath.FromSlash(name), []byte(text), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	for _, name := range goldenFiles(t, os.DirFS(".")) {
		if _, public := now[name]; public {
			continue
		}
		if err := os.Remove(filepath.FromSlash(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func goldenFiles(t testing.TB, tree fs.FS) []string {
	t.Helper()
	files, err := fs.Glob(tree, "api/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func checkAPI(t testing.TB, golden fs.FS, now map[string]string) (problems []string) {
	t.Helper()
	const toDo = "If it is meant, run `go test ./internal/archtest -update`, and tell users in CHANGELOG.md what they notice and what to do"
	files := goldenFiles(t, golden)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	for _, name := range files {
		text, exported := now[name]
		switch {
		case !exported:
			problems = append(problems, fmt.Sprintf("there is no public package any more for internal/archtest/%s. %s.", name, toDo))
		case !exists(golden, name):
			problems = append(problems, fmt.Sprintf("a new public package has no internal/archtest/%s. %s.", name, toDo))
		default:
			if d := diff(read(t, golden, name), text); d != "" {
				problems = append(problems, fmt.Sprintf("the exported API is not that of internal/archtest/%s. %s; a line with - breaks "+
					"those who use it.\n%s", name, toDo, d))
			}
		}
	}
	return problems
}

// diff lists the lines that only one text has, - for the old one. Each line says one thing and they are sorted, so this
// is all there is to know.
func diff(before, after string) string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	var lines []string
	for _, line := range was {
		if !slices.Contains(is, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			lines = append(lines, "+ "+line)
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	if len(lines) == 0 && before != after {
		return "(only the order or the number of lines differs)"
	}
	return strings.Join(lines, "\n")
}

func TestAPIText(t *testing.T) {
	t.Parallel()
	const source = `// Package p does.
package p

import ("context"; "errors"; "time")

// A is documented.
const (
	A Mode = iota + 1 // first
	b
	C
)
const D, e = 30 * time.Second, 1

var (
	ErrX       = errors.New("its text is no API")
	ErrY error = errY{}
	Z          = &T{name: "z"}
	z          int
)

type Mode uint8
type Seq[T any] = func(yield func(T) bool)
type errY struct{}
func (errY) Error() string { return "y" }

// T has it all.
type T struct {
	_    struct{}
	Name string ` + "`json:\"name\"`" + ` // a comment
	X, y int
	*time.Timer
	inner
}
type inner struct{ Deep int }
func (*inner) Dive(n int) {}
func (t *T) Do(
	ctx context.Context,
	args ...any,
) (n int, err error) { return 0, nil }
func (t T) hidden() {}

type I interface {
	error
	Get(key string) (v string, ok bool)
	secret()
}
type G[K comparable, V any] struct{ Key K }
func (G[K, V]) Get(k K) V { panic(0) }

func Map[A, B any](in []A, f func(A) B) []B { return nil }
func unexported() {}
`
	tree := fstest.MapFS{"p/p.go": {Data: []byte(source)}}
	p := listed{Dir: "p", Name: "p", ImportPath: "example.com/p", GoFiles: []string{"p.go"}}
	const want = `package p // import "example.com/p"

const A Mode = iota + 1 (iota is 0)
const C Mode = iota + 1 (iota is 2)
const D = 30 * time.Second
func (*T) Do(ctx context.Context, args ...any) (n int, err error)
func (G[K, V]) Get(k K) V
func (T, promoted) Dive(n int)
func Map[A any, B any](in []A, f func(A) B) []B
type G[K comparable, V any] struct
type G[K comparable, V any] struct, Key K
type I interface
type I interface, Get(key string) (v string, ok bool)
type I interface, and what is not exported
type I interface, embeds error
type Mode uint8
type Seq[T any] = func(yield func(T) bool)
type T struct
type T struct, Deep int
type T struct, Name string ` + "`json:\"name\"`" + `
type T struct, X int
type T struct, and what is not exported
type T struct, embeds *time.Timer
var ErrX = errors.New(…)
var ErrY error
var Z = &T{…}
`
	if got := apiText(t, tree, p); got != want {
		t.Errorf("got\n%s\n\nwhich differs from what is wanted:\n%s", got, diff(want, got))
	}
}

func TestAPIRefused(t *testing.T) {
	t.Parallel()
	golden := fstest.MapFS{
		"api/same.txt":    {Data: []byte("package same\n\nfunc F()\n")},
		"api/changed.txt": {Data: []byte("package changed\n\nfunc F()\nfunc G()\ntype T struct\n")},
		"api/gone.txt":    {Data: []byte("package gone\n")},
	}
	problems := checkAPI(t, golden, map[string]string{
		"api/same.txt":    "package same\n\nfunc F()\n",
		"api/changed.txt": "package changed\n\nfunc F(n int)\nfunc G()\ntype T struct\ntype T struct, A int\n",
		"api/added.txt":   "package added\n",
	})
	expect(t, problems,
		"those who use it.\n- func F()\n+ func F(n int)\n+ type T struct, A int",
		"there is no public package any more for internal/archtest/api/gone.txt",
		"a new public package has no internal/archtest/api/added.txt",
	)
}

func TestPublic(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"go.mod":                "module " + modulePath + "\n\ngo 1.26.0\n",
		"locker/locker.go":      "package locker\n\ntype Locker int\n",
		"locker/more.go":        "//go:build windows\n\npackage locker\n\nfunc OnWindows() {}\n",
		"locker/locker_test.go": "package locker\n\nfunc ForTests() {}\n",
		"otel/otel.go":          "package otellock\n",
		"otel/internal/x/x.go":  "package x\n",
		"internal/proc/proc.go": "package proc\n",
		"cmd/main.go":           "package main\n",
	})
	now := publicAPI(t, dir)
	if len(now) != 2 || !strings.HasPrefix(now["api/otel.txt"], "package otellock // import \""+path.Join(modulePath, "otel")) {
		t.Errorf("the public packages are locker and otel: %v", now)
	}
	if want := "package locker // import \"" + modulePath + "/locker\"\n\nfunc OnWindows()\ntype Locker int\n"; now["api/locker.txt"] != want {
		t.Errorf("%s\nwant\n%s", now["api/locker.txt"], want)
	}
}
