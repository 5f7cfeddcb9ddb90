package archtest

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestLinks follows the relative links of the documents.
func TestLinks(t *testing.T) {
	t.Parallel()
	report(t, checkLinks(t, repo(t)))
}

// documented are the documents at the root that are looked at, besides all below docs.
var documented = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}

func checkLinks(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*.md") {
		if !slices.Contains(documented, name) && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, target := range linksOf(read(t, tree, name)) {
			if why := broken(tree, path.Dir(name), target); why != "" {
				problems = append(problems, fmt.Sprintf("%s links to %s, %s", name, target, why))
			}
		}
	}
	return problems
}

var (
	fenced     = regexp.MustCompile("(?ms)^\\s*(```|~~~).*?^\\s*(```|~~~)\\s*$")
	inlineCode = regexp.MustCompile("`[^`\n]+`")
	// [text](target "title"), images too
	link = regexp.MustCompile(`\]\(\s*<?([^)<>\s]+)>?(?:\s+["'(][^)]*)?\s*\)`)
)

// linksOf finds the targets of a document's links, outside of code.
func linksOf(text string) (targets []string) {
	text = inlineCode.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// broken returns what is wrong with a link of a document in dir, or "". Links to the web are not
// followed.
func broken(tree fs.FS, dir, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return "which is no link: " + err.Error()
	}
	if u.Scheme != "" || u.Host != "" || u.Path == "" {
		return ""
	}
	if strings.HasPrefix(u.Path, "/") {
		return "which begins with a slash: link relative to the document, so that it works on disk too"
	}
	file := path.Join(dir, u.Path)
	if !fs.ValidPath(file) {
		return "which lies outside of the repository: give a whole URL"
	}
	if !exists(tree, file) {
		return "which does not exist: correct the link, or remove it"
	}
	return ""
}

func TestLinksRefused(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{
		"README.md": {Data: []byte("[a](docs/a.md) [a](docs/a.md#part \"title\") [dir](docs) [web](https://example.com/x) [here](#part)\n" +
			"![picture](docs/none.png) [mail](mailto:a@example.com) `[code](none)`\n" +
			"\n```md\n[block](none.md)\n```\n[back](../outside.md) [slash](/docs/a.md)\n")},
		"docs/a.md":        {Data: []byte("[up](../README.md) [deep](adr/b.md)\n")},
		"docs/adr/b.md":    {Data: []byte("[up](../a.md) [wrong](a.md)\n")},
		"examples/note.md": {Data: []byte("[not looked at](none.md)\n")},
	}
	expect(t, checkLinks(t, tree),
		"README.md links to docs/none.png, which does not exist",
		"README.md links to ../outside.md, which lies outside",
		"README.md links to /docs/a.md, which begins with a slash",
		"docs/adr/b.md links to a.md, which does not exist",
	)
}
