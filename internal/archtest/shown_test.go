package archtest

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestShown holds docs/guarantees.md to its tests: what is claimed links to a test file, with the
// name of the test as the link's title.
func TestShown(t *testing.T) {
	t.Parallel()
	report(t, checkShown(t, repo(t)))
}

var toTest = regexp.MustCompile(`\]\(([^)\s]+_test\.go)(?:\s+"([^"]*)")?\)`)

func checkShown(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	const name = "docs/guarantees.md"
	if !exists(tree, name) {
		return []string{"there is no " + name + ": nobody can know what a lock promises"}
	}
	for _, m := range toTest.FindAllStringSubmatch(read(t, tree, name), -1) {
		file, test := path.Join("docs", m[1]), m[2]
		switch {
		case test == "":
			problems = append(problems, fmt.Sprintf("%s links to %s without a title: say which test shows it", name, file))
		case exists(tree, file) && !strings.Contains(read(t, tree, file), "\nfunc "+test+"("):
			problems = append(problems, fmt.Sprintf("%s says that %s shows something, which is no test of %s: correct the name, or take the claim back", name, test, file))
		}
	}
	return problems
}

func TestShownRefused(t *testing.T) {
	t.Parallel()
	expect(t, checkShown(t, fstest.MapFS{}), "there is no docs/guarantees.md")
	expect(t, checkShown(t, fstest.MapFS{
		"docs/guarantees.md": {Data: []byte("| [●](../a/a_test.go \"TestA\") | [●](../a/a_test.go \"TestB\") | [●](../a/a_test.go) | [●](../none_test.go \"TestC\") |\n")},
		"a/a_test.go":        {Data: []byte("package a\n\nfunc TestA(t *testing.T) {}\n")},
	}), "TestB shows something", "without a title")
}
