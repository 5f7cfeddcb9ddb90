package archtest

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

var (
	// vagueName finds names of folders and Go files that do not describe the contents of the
	// folder or file.
	vagueName = regexp.MustCompile(`(^|/)(common|helpers?|misc|pkg|utils?)(/|(_test)?\.go$)`)
	// unfinishedMark finds marks of unfinished work. The pattern consists of parts, so that it does
	// not find itself.
	unfinishedMark = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
)

// checkHygiene finds marks of unfinished work, and names that fit any folder or file.
func checkHygiene(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*") {
		if vagueName.MatchString(name) {
			problems = append(problems, name+": the name fits everything: say what the folder or file holds or does")
		}
	}
	for _, name := range find(t, tree, "*.go", "*.lua", "*.sql", "*.md", "*.proto") {
		text := read(t, tree, name)
		for _, at := range unfinishedMark.FindAllStringIndex(text, -1) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s: do it now, or open an issue",
				name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]]))
		}
	}
	return problems
}

func TestHygieneRefused(t *testing.T) {
	t.Parallel()
	note := "TO" + "DO"
	expect(t, checkHygiene(t, treeOf(map[string]string{
		"a/a.go":                        "package a\n\n// " + note + ": later\nvar method = \"" + note + "S\"\n",
		"a/lua/a.lua":                   "-- a.lua: FIX" + "ME\n",
		"README.md":                     "a context." + note + "() and mktemp XXXX" + "XX\n",
		"LICENSE":                       note,
		"pkg/lock/lease.go":             "",
		"locker/helpers_test.go":        "",
		"locker/utility.go":             "",
		"locker/testdata/util/fine.txt": "",
	})), "a/a.go:3: "+note, "a/lua/a.lua:1:", "README.md:1: "+note, "pkg/lock/lease.go:", "locker/helpers_test.go:")
}
