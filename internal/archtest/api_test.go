package archtest

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "rewrite the golden files of the exported API")

// TestAPI compares the exported API of each public package with its file below api. The files make
// a change of the API visible in a diff.
func TestAPI(t *testing.T) {
	t.Parallel()
	now := publicAPI(t, root(t))
	if *update {
		rewrite(t, now)
	}
	report(t, checkAPI(t, os.DirFS("."), now))
}

// publicAPI maps the golden files to the text that they should hold.
func publicAPI(t testing.TB, dir string) map[string]string {
	t.Helper()
	now := make(map[string]string)
	for _, p := range packages(t, dir) {
		if p.public() {
			name := "api/" + strings.ReplaceAll(p.Dir, "/", "_") + ".txt"
			now[name] = declarations(goCommand(t, dir, "doc", "-all", "./"+p.Dir))
		}
	}
	return now
}

// comment finds the text below a declaration, and comments in a line of their own or at its end.
var comment = regexp.MustCompile("^ {4}.*|^\\s*//.*|\\s*// [^\"`]*$|^\\s+$")

// declarations removes the comments from what `go doc -all` prints, because they change often and
// break nobody. What remains is the package clause and the declarations, gofmted.
func declarations(text string) string {
	clause, text, _ := strings.Cut(text, "\n")
	// The package comment ends with the first heading.
	if i := regexp.MustCompile(`(?m)^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$`).FindStringIndex(text); i != nil {
		text = text[i[0]:]
	} else {
		text = ""
	}
	clause, _, _ = strings.Cut(clause, " //")
	lines := []string{clause}
	for line := range strings.Lines(text) {
		if line = comment.ReplaceAllString(strings.TrimRight(line, "\n"), ""); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// rewrite writes the golden files anew and removes those of packages that are gone.
func rewrite(t testing.TB, now map[string]string) {
	t.Helper()
	if err := os.MkdirAll("api", 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range goldenFiles(t, os.DirFS(".")) {
		if err := os.Remove(filepath.FromSlash(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range now {
		if err := os.WriteFile(filepath.FromSlash(name), []byte(text), 0o600); err != nil {
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
	const toDo = "If the change is intended, run `go test ./internal/archtest -update`, and describe " +
		"in CHANGELOG.md what users notice and what they should do"
	names := append(goldenFiles(t, golden), slices.Collect(maps.Keys(now))...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		text, exported := now[name]
		switch {
		case !exported:
			problems = append(problems, fmt.Sprintf(
				"internal/archtest/%s describes a package that no longer exists. %s.", name, toDo))
		case !exists(golden, name):
			problems = append(problems, fmt.Sprintf(
				"a new public package has no internal/archtest/%s. %s.", name, toDo))
		case read(t, golden, name) != text:
			problems = append(problems, fmt.Sprintf(
				"the exported API differs from internal/archtest/%s. %s; a removed line (-) breaks users.\n%s",
				name, toDo, diff(read(t, golden, name), text)))
		}
	}
	return problems
}

// diff lists the lines that only one of the texts has, "-" for the old one.
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
	if len(lines) == 0 {
		return "(only the order or the number of lines differs)"
	}
	return strings.Join(lines, "\n")
}

func TestAPIRefused(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"go.mod":                "module " + modulePath + "\n\ngo 1.25.0\n",
		"locker/locker.go":      "// Package locker locks.\npackage locker\n\n" + "// A is.\nconst A = \"http://a\" // an address\n\n// T is.\ntype T struct {\n\t// N is.\n\tN int // in ms\n\tm int\n}\n\n// Do does.\nfunc (T) Do() {}\n",
		"locker/locker_test.go": "package locker\n\nfunc ForTests() {}\n",
		"otel/otel.go":          "package otellock\n",
		"otel/internal/x/x.go":  "package x\n",
		"internal/proc/proc.go": "package proc\n",
		"cmd/main.go":           "package main\n",
	})
	const lockerAPI = "package locker\n" +
		"CONSTANTS\nconst A = \"http://a\"\nTYPES\ntype T struct {\n\tN int\n}\nfunc (T) Do()\n"
	now := publicAPI(t, dir)
	if now["api/locker.txt"] != lockerAPI || len(now) != 2 || now["api/otel.txt"] == "" {
		t.Errorf("the public packages are locker and otel: %q\nwant %q", now, lockerAPI)
	}

	golden := fstest.MapFS{
		"api/locker.txt": {Data: []byte(strings.Replace(lockerAPI, "N int", "N uint", 1))},
		"api/gone.txt":   {Data: []byte("package gone\n")},
	}
	expect(t, checkAPI(t, golden, now),
		"breaks users.\n- \tN uint\n+ \tN int",
		"internal/archtest/api/gone.txt describes a package that no longer exists",
		"a new public package has no internal/archtest/api/otel.txt",
	)
}
