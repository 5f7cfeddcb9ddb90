package archtest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
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

// rewrite writes the golden files anew.
func rewrite(t testing.TB, now map[string]string) {
	t.Helper()
	err := errors.Join(os.RemoveAll("api"), os.Mkdir("api", 0o750))
	for name, text := range now {
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func checkAPI(t testing.TB, golden fs.FS, now map[string]string) (problems []string) {
	t.Helper()
	const toDo = "If the change is intended, run `go test ./internal/archtest -update`, and describe " +
		"in CHANGELOG.md what users notice and what they should do"
	names := slices.AppendSeq(find(t, golden, "*.txt"), maps.Keys(now))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		before := ""
		if exists(golden, name) {
			before = read(t, golden, name)
		}
		if before != now[name] {
			problems = append(problems, fmt.Sprintf("the exported API differs from internal/archtest/%s. %s; a removed line (-) breaks users.%s%s",
				name, toDo, only("- ", before, now[name]), only("+ ", now[name], before)))
		}
	}
	return problems
}

// only lists the lines that only the first of two texts has.
func only(sign, text, other string) (lines string) {
	for line := range strings.Lines(text) {
		if !strings.Contains("\n"+other, "\n"+line) {
			lines += "\n" + sign + strings.TrimSuffix(line, "\n")
		}
	}
	return lines
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
		"differs from internal/archtest/api/gone.txt", "breaks users.\n- \tN uint\n+ \tN int", "differs from internal/archtest/api/otel.txt",
	)
}
