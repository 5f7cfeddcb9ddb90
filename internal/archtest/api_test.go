package archtest

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files of the exported API")

// TestAPI compares the exported API of each public package with its file below api. These files
// show in a diff what a commit adds. What it breaks is found by .ci/api.
func TestAPI(t *testing.T) {
	t.Parallel()
	before, now := make(map[string]string), make(map[string]string)
	dir := root(t)
	for pkg := range packages(t, os.DirFS(dir)) {
		if public(pkg) {
			now["api/"+strings.ReplaceAll(pkg, "/", "_")+".txt"] = declarations(goCommand(t, dir, "doc", "-all", "./"+pkg))
		}
	}
	if *update {
		err := errors.Join(os.RemoveAll("api"), os.Mkdir("api", 0o750))
		for name, text := range now {
			err = errors.Join(err, os.WriteFile(name, []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob("api/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		before[filepath.ToSlash(name)] = read(t, os.DirFS("."), filepath.ToSlash(name))
	}
	report(t, checkAPI(before, now))
}

var (
	// heading finds the first heading, which ends the package comment.
	heading = regexp.MustCompile(`(?m)^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$`)
	// comment finds everything that is no declaration: the text below a declaration, comments in
	// their own line or at the end of a line, and blank lines.
	comment = regexp.MustCompile("(?m)^( {4}.*|\\s*//.*|)\n|\\s*// [^\"`\n]*$")
)

// declarations removes the comments from the output of `go doc -all`, because comments change
// often, and such a change breaks no program. The result has the package clause and the
// declarations, formatted by gofmt.
func declarations(text string) string {
	clause, text, _ := strings.Cut(text, "\n")
	if at := heading.FindStringIndex(text); at != nil {
		text = text[at[0]:]
	} else {
		text = ""
	}
	clause, _, _ = strings.Cut(clause, " //")
	return clause + "\n" + comment.ReplaceAllString(text, "")
}

// checkAPI compares the texts of files with the same name, and returns a problem for each file
// whose text now differs from the recorded text.
func checkAPI(recorded, now map[string]string) (problems []string) {
	names := slices.AppendSeq(slices.Sorted(maps.Keys(recorded)), maps.Keys(now))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if recorded[name] != now[name] {
			problems = append(problems, fmt.Sprintf("the exported API differs from internal/archtest/%s: run "+
				"`go test ./internal/archtest -update`, read the diff, and describe in CHANGELOG.md what users notice", name))
		}
	}
	return problems
}

func TestAPIRefused(t *testing.T) {
	t.Parallel()
	const text = "package locker // import \"x/locker\"\n\nPackage locker locks.\n\nCONSTANTS\n\nconst A = \"http://a\" // an address\n    A is.\n\n" +
		"TYPES\n\ntype T struct {\n\t// N is.\n\tN int // in ms\n\n\t// Has unexported fields.\n}\n    T is.\n\nfunc (T) Do()\n    Do does.\n\n        code\n\n"
	const want = "package locker\nCONSTANTS\nconst A = \"http://a\"\nTYPES\ntype T struct {\n\tN int\n}\nfunc (T) Do()\n"
	if got := declarations(text); got != want {
		t.Errorf("declarations are %q\nwant %q", got, want)
	}
	if got := declarations("package empty // import \"x/empty\"\n\nIt is.\n"); got != "package empty\n" {
		t.Errorf("a package without declarations has %q", got)
	}
	before := map[string]string{"api/locker.txt": strings.Replace(want, "N int", "N uint", 1), "api/gone.txt": "package gone\n", "api/same.txt": "s"}
	expect(t, checkAPI(before, map[string]string{"api/locker.txt": want, "api/otel.txt": "package otellock\n", "api/same.txt": "s"}),
		"differs from internal/archtest/api/gone.txt", "differs from internal/archtest/api/locker.txt", "differs from internal/archtest/api/otel.txt")
}
