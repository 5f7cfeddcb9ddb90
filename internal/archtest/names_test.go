package archtest

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	// namesPage and namesSection name the table of old names.
	namesPage, namesSection = "docs/migrating.md", "\n## Names of earlier previews\n"
	// pending marks a row whose old names still exist. Remove the mark in the commit that removes
	// the names: from then on, the names are refused.
	pending = "<!-- pending -->"
)

var (
	// shown lists the files and folders that show users how to use latchkit.
	shown = []string{"README.md", "docs", "examples", "contrib", "bench", "dashboards"}
	// oldName finds the names in the left column. Code with a parenthesis, and text, are for
	// readers only.
	oldName = regexp.MustCompile("`([\\w./]+)`")
)

// checkNames refuses the old names of the table of [namesPage] wherever latchkit is shown to users.
// Decisions may name what was rejected.
func checkNames(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	before, section, found := strings.Cut(read(t, tree, namesPage), namesSection)
	if !found {
		return []string{namesPage + " has no table of old names: write the heading " + strings.TrimSpace(namesSection)}
	}
	section, after, _ := strings.Cut(section, "\n## ")
	var old []string
	for row := range strings.Lines(section) {
		if left, _, ok := strings.Cut(strings.TrimPrefix(row, "|"), "|"); ok && !strings.Contains(row, pending) {
			for _, m := range oldName.FindAllStringSubmatch(left, -1) {
				old = append(old, regexp.QuoteMeta(m[1]))
			}
		}
	}
	refused := regexp.MustCompile(`\b(` + strings.Join(old, "|") + `)\b`)
	for _, name := range find(t, tree, "*.md", "*.go", "*.yml", "*.yaml", "*.json", "*.txt") {
		folder, _, _ := strings.Cut(name, "/")
		if !slices.Contains(shown, folder) || strings.HasPrefix(name, "docs/adr/") {
			continue
		}
		text := read(t, tree, name)
		if name == namesPage {
			text = before + strings.Repeat("\n", strings.Count(namesSection+section, "\n")+1) + after
		}
		for _, at := range refused.FindAllStringIndex(text, -1) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s is an old name: %s says what to write instead",
				name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], namesPage))
		}
	}
	return problems
}

func TestNamesRefused(t *testing.T) {
	t.Parallel()
	expect(t, checkNames(t, treeOf(map[string]string{
		namesPage: "Give `WithOld`.\n" + namesSection + "\n| old | new |\n|---|---|\n| `WithOld`, `p.Gone` | `WithNew` |\n" +
			"| `New(store)` | `FromStore` |\n| `WithLater` | `WithNew` " + pending + " |\n\n## Next\n\n`q.p.Gone`\n",
		"README.md":                "one\n`WithOlder`, `WithLater`, New(store), pGone and p.Gone\n",
		"examples/a/main.go":       "package main\n\nvar _ = x.WithOld()\n",
		"dashboards/a.json":        "{\"a\": \"WithOld\"}",
		"docs/adr/0001-a.md":       "WithOld",
		"locker/a.go":              "package locker // WithOld",
		"CHANGELOG.md":             "WithOld",
		"examples/testdata/old.md": "WithOld",
	})),
		"docs/migrating.md:1: WithOld", "docs/migrating.md:13: p.Gone", "README.md:2: p.Gone", "examples/a/main.go:3: WithOld", "dashboards/a.json:1: WithOld")
	expect(t, checkNames(t, treeOf(map[string]string{namesPage: "# Moving\n"})), "has no table of old names")
}
