package archtest

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"
)

// saysNothing are names of directories and Go files that do not tell a reader what is inside.
var saysNothing = map[string]string{
	"common":  "common to whom? Name it after what is in it",
	"helper":  "what does it help with? Name it after that",
	"helpers": "what do they help with? Name it after that",
	"misc":    "each of its parts has a better place",
	"pkg":     "everything here is a package: leave the level out",
	"util":    "name it after what it does",
	"utils":   "name it after what they do",
}

func TestNames(t *testing.T) {
	t.Parallel()
	report(t, checkNames(t, repo(t)))
}

func checkNames(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, name := range find(t, tree, "*") {
		for dir := path.Dir(name); dir != "." && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			if why, bad := saysNothing[path.Base(dir)]; bad {
				problems = append(problems, fmt.Sprintf("directory %s: %s", dir, why))
			}
		}
		stem, isGo := strings.CutSuffix(path.Base(name), ".go")
		if why, bad := saysNothing[strings.TrimSuffix(stem, "_test")]; bad && isGo {
			problems = append(problems, fmt.Sprintf("file %s: %s", name, why))
		}
	}
	return problems
}

func TestNamesRefused(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{
		"pkg/lock/lock.go":              {},
		"pkg/lock/lease.go":             {},
		"examples/utils/README.md":      {},
		"internal/common/x/y.go":        {},
		"locker/helpers_test.go":        {},
		"locker/utility.go":             {},
		"locker/testdata/util/fine.txt": {},
	}
	expect(t, checkNames(t, tree), "directory pkg:", "directory examples/utils:", "directory internal/common:", "file locker/helpers_test.go:")
}
