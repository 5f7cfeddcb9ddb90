package archtest

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
)

// The lengths of documents are limited, because a reader at night reads no long page. A page that
// grows beyond its bound says something twice, or is two pages.
const (
	mostLinesOfReadme = 199 // all of them
	mostLinesOfRecipe = 80  // all of them, with the code
	mostLinesOfProse  = 200 // of every other page for users: without tables, code and empty lines
)

// checkLength checks the READMEs of the root, the recipes, and the pages in docs and docs/zh. The
// page architecture.md is for maintainers, and may be longer.
func checkLength(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*.md") {
		text := read(t, tree, name)
		lines, most, what := strings.Count(text, "\n"), 0, "lines"
		switch dir := path.Dir(name); {
		case strings.HasPrefix(name, "README."):
			most = mostLinesOfReadme
		case path.Base(dir) == "recipes":
			most = mostLinesOfRecipe
		case (dir == "docs" || dir == "docs/zh") && name != "docs/architecture.md":
			lines, most, what = linesOfProse(text), mostLinesOfProse, "lines of prose"
		default:
			continue
		}
		if lines > most {
			problems = append(problems, fmt.Sprintf("%s has %d %s, at most %d: cut what another page says, or split it", name, lines, what, most))
		}
	}
	return problems
}

func linesOfProse(text string) (n int) {
	for line := range strings.Lines(fencedBlock.ReplaceAllString(text, "")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '|' {
			n++
		}
	}
	return n
}

func TestLengthRefused(t *testing.T) {
	t.Parallel()
	page := func(lines int) string { return strings.Repeat("text\n", lines) }
	expect(t, checkLength(t, treeOf(map[string]string{
		"README.md":            page(200),
		"README.zh-CN.md":      page(199),
		"docs/recipes/a.md":    page(81),
		"docs/zh/recipes/a.md": page(80),
		"docs/b.md":            page(201),
		"docs/c.md":            page(200) + "\n| a |\n```\ncode\n```\n",
		"docs/architecture.md": page(300),
		"bench/RESULTS.md":     page(300),
	})), "README.md has 200 lines", "docs/b.md has 201 lines of prose", "docs/recipes/a.md has 81 lines")
}
