package archtest

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fenced     = regexp.MustCompile("(?ms)^\\s*(```|~~~).*?^\\s*(```|~~~)\\s*$")
	inlineCode = regexp.MustCompile("`[^`\n]+`")
	// link finds [text](target "title") and images. The text counts only if it is the name of a test.
	link = regexp.MustCompile(`(?:\[(Test[A-Z]\w*))?\]\(\s*<?([^)<>\s]+)>?(?:\s+["']([^)]*)["'])?\s*\)`)
	// linkTarget finds the target of a link, which readers do not see.
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	// section finds a heading. If a heading contains a link, only the text of the link counts.
	section = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	// place finds what a row of a table, which has no heading, is named by for links.
	place = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	// fileName finds the names of this repository's files that a document mentions without a link.
	fileName = regexp.MustCompile("`(?:[\\w.]+/)*([\\w]+\\.(?:go|lua))`")
)

// checkLinks checks the relative links of the documents, including links to headings. Each
// guarantee must link to its test, with the name of the test as the link's text or title. Each page
// below docs must be in an index.
func checkLinks(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	linked := make(map[string]bool)
	var files []string
	for _, name := range find(t, tree, "*.go", "*.lua") {
		files = append(files, path.Base(name))
	}
	documents := find(t, tree, "*.md")
	for _, name := range documents {
		text := fenced.ReplaceAllString(read(t, tree, name), "")
		for _, m := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(text, ""), -1) {
			if why := linkFault(t, tree, name, m[2], cmp.Or(m[1], m[3])); why != "" {
				problems = append(problems, fmt.Sprintf("%s links to %s, %s", name, m[2], why))
			}
			if path.Base(name) == "README.md" {
				linked[name+" "+path.Join(path.Dir(name), m[2])] = true
			}
		}
		for _, m := range fileName.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(files, m[1]) && name != "CHANGELOG.md" {
				problems = append(problems, fmt.Sprintf("%s names the file %s, which does not exist: correct the name", name, m[1]))
			}
		}
	}
	for _, name := range documents {
		index := path.Join(path.Dir(name), "README.md")
		if strings.HasPrefix(name, "docs/") && name != index && !linked[index+" "+name] {
			problems = append(problems, fmt.Sprintf("%s is not in the index: link to it in %s", name, index))
		}
	}
	return problems
}

// linkFault returns what is wrong with a link of a document to target, or "" if the link is right.
// Links to web pages are not checked.
func linkFault(t testing.TB, tree fs.FS, document, target, test string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		return "which is no link: " + err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	file := document
	if u.Path != "" {
		file = path.Join(path.Dir(document), u.Path)
	}
	switch {
	case strings.HasPrefix(u.Path, "/"):
		return "which begins with a slash: link relative to the document, so that it works on disk too"
	case !fs.ValidPath(file):
		return "which lies outside of the repository: give a whole URL"
	case !exists(tree, file):
		return "which does not exist: correct the link, or remove it"
	case u.Fragment != "" && strings.HasSuffix(file, ".md") && !slices.Contains(sections(read(t, tree, file)), u.Fragment):
		return "and that page has no such heading: correct the link"
	case strings.HasPrefix(test, "Test") && !strings.Contains(read(t, tree, file), "\nfunc "+test+"("):
		return "which has no " + test + ": correct the name, or take the claim back"
	case document == "docs/guarantees.md" && strings.HasSuffix(file, "_test.go") && test == "":
		return "without the name of a test: say which test shows it"
	}
	return ""
}

// sections returns the names under which the headings and places of a document can be linked to.
func sections(text string) (names []string) {
	text = fenced.ReplaceAllString(text, "")
	for _, m := range place.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	for _, m := range section.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkTarget.ReplaceAllString(strings.TrimSpace(m[1]), "]")))
	}
	return names
}

func TestLinksRefused(t *testing.T) {
	t.Parallel()
	expect(t, checkLinks(t, treeOf(map[string]string{
		"README.md": "# A `part`, of [it](docs/a.md)\n[a](docs/a.md) [a](docs/a.md#no-part \"title\") [row](docs/a.md#a-row) [dir](docs) [web](https://example.com/x)\n" +
			"[here](#a-part-of-it) ![picture](docs/none.png) [mail](mailto:a@example.com) `[code](none)` `lua/a.lua` `gone.go`\n" +
			"\n```md\n# no part\n[block](none.md)\n```\n[back](../outside.md) [slash](/docs/a.md)\n",
		"CHANGELOG.md":       "`gone.go` is gone\n",
		"docs/README.md":     "[a](a.md)\n",
		"docs/a.md":          "[up](../README.md) [deep](adr/b.md)\n| <a id=\"a-row\"></a>a |\n",
		"docs/adr/b.md":      "[up](../a.md) [wrong](a.md)\n",
		"docs/adr/c.md":      "",
		"docs/adr/README.md": "[c](c.md)\n",
		"docs/guarantees.md": "[●](../a/a_test.go \"TestA\") [●](../a/a_test.go \"TestB\") [●](../a/a_test.go) [TestC](../a/a_test.go)\n",
		"a/a.lua":            "",
		"a/a_test.go":        "package a\n\nfunc TestA(t *testing.T) {}\n",
	})),
		"README.md links to docs/a.md#no-part, and that page has no such heading",
		"README.md links to docs/none.png, which does not exist",
		"README.md links to ../outside.md, which lies outside",
		"README.md links to /docs/a.md, which begins with a slash",
		"README.md names the file gone.go, which does not exist",
		"docs/adr/b.md links to a.md, which does not exist",
		"docs/adr/b.md is not in the index",
		"docs/guarantees.md links to ../a/a_test.go, which has no TestB",
		"docs/guarantees.md links to ../a/a_test.go, without the name of a test",
		"docs/guarantees.md links to ../a/a_test.go, which has no TestC",
		"docs/guarantees.md is not in the index",
	)
}
