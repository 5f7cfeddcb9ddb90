package archtest

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// unwanted are texts that must not stand in files whose path matches, each with what to do instead.
// The patterns are put together, so that they do not find themselves.
var unwanted = []struct {
	path, text *regexp.Regexp
	why        string
}{
	{
		regexp.MustCompile(`\.(go|lua|sql|md|proto)$`),
		regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"do it now, or open an issue",
	},
	{
		// A suite that is green because it ran nothing is worse than a red one.
		regexp.MustCompile(`(_test\.go|test/[^/]*\.go)$`),
		regexp.MustCompile(`\.Sk(ip|ipf|ipNow)\(`),
		"a test that lacks something must fail and say what to install; what cannot run on some system " +
			"is left out by a build constraint",
	},
}

// saysNothing finds names of folders and Go files that leave a reader without a hint.
var saysNothing = regexp.MustCompile(`(^|/)(common|helpers?|misc|pkg|utils?)(/|(_test)?\.go$)`)

// TestHygiene wants nothing left behind, nothing skipped, and no name that fits everything.
func TestHygiene(t *testing.T) {
	t.Parallel()
	report(t, checkHygiene(t, repo(t)))
}

func checkHygiene(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*") {
		if saysNothing.MatchString(name) {
			problems = append(problems, name+": the name fits everything: say what the folder or file holds or does")
		}
		for _, u := range unwanted {
			if !u.path.MatchString(name) {
				continue
			}
			n := 0
			for line := range strings.Lines(read(t, tree, name)) {
				n++
				if found := u.text.FindString(line); found != "" {
					problems = append(problems, fmt.Sprintf("%s:%d: %s: %s", name, n, found, u.why))
				}
			}
		}
	}
	return problems
}

func TestHygieneRefused(t *testing.T) {
	t.Parallel()
	note := "TO" + "DO"
	tree := fstest.MapFS{
		"a/a.go":                        {Data: []byte("package a\n\n// " + note + ": later\nvar method = \"" + note + "S\"\n\nfunc f(s scanner) { s.Sk" + "ip(1) }\n")},
		"a/lua/a.lua":                   {Data: []byte("-- a.lua: FIX" + "ME\n")},
		"README.md":                     {Data: []byte("a context." + note + "() and mktemp XXXX" + "XX\n")},
		"LICENSE":                       {Data: []byte(note)},
		"a/a_test.go":                   {Data: []byte("package a\n\nfunc TestA(t *testing.T) {\n\tt.Sk" + "ip(\"no server\")\n\th.t.Sk" + "ipNow()\n}\n")},
		"a/atest/atest.go":              {Data: []byte("package atest\n\nfunc Start(t testing.TB) { t.Sk" + "ip() }\n")},
		"pkg/lock/lease.go":             {},
		"locker/helpers_test.go":        {},
		"locker/utility.go":             {},
		"locker/testdata/util/fine.txt": {},
	}
	expect(t, checkHygiene(t, tree), "a/a.go:3: "+note, "a/lua/a.lua:1:", "README.md:1: "+note,
		"a/a_test.go:4: .Sk", "a/a_test.go:5: .Sk", "a/atest/atest.go:3: .Sk", "pkg/lock/lease.go:", "locker/helpers_test.go:")
}
