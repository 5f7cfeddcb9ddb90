package archtest

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestReadme holds the code of the documents to what is compiled: each block of
// Go in README.md and docs/*.md stands, but for its indentation, in an Example
// function or below examples. A comment before the block may name the file:
//
//	<!-- example: locker/example_test.go -->
func TestReadme(t *testing.T) {
	t.Parallel()
	report(t, checkReadme(t, repo(t)))
}

func checkReadme(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	if !exists(tree, "README.md") {
		problems = append(problems, "there is no README.md: nobody learns what this is, how to install it and what it does not promise")
	}
	documents, err := fs.Glob(tree, "docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if exists(tree, "README.md") {
		documents = append([]string{"README.md"}, documents...)
	}
	compiled := examples(t, tree)
	for _, name := range documents {
		for _, b := range blocksOf(read(t, tree, name)) {
			if why := b.missing(compiled); why != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: the block that begins with\n\t%s\n%s", name, b.line, b.first(), why))
			}
		}
	}
	return problems
}

// example is code that is compiled with the tests or the examples.
type example struct {
	file  string
	lines []string
}

// examples finds the bodies of all Example functions (whole files, where godoc shows the whole file) and the programs
// below examples, in all modules.
func examples(t testing.TB, tree fs.FS) (all []example) {
	t.Helper()
	for _, name := range find(t, tree, "*.go") {
		text := read(t, tree, name)
		switch {
		case strings.HasSuffix(name, "_test.go"):
			all = append(all, exampleFunctions(t, name, text)...)
		case strings.HasPrefix(name, "examples/"):
			all = append(all, example{name, trimmed(text)})
		}
	}
	return all
}

func exampleFunctions(t testing.TB, name, text string) (all []example) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range doc.Examples(file) {
		from, to := e.Code.Pos(), e.Code.End()
		if body, ok := e.Code.(*ast.BlockStmt); ok {
			from, to = body.Lbrace+1, body.Rbrace
		}
		all = append(all, example{name, trimmed(text[set.Position(from).Offset:set.Position(to).Offset])})
	}
	return all
}

// block is fenced Go code in a document.
type block struct {
	line  int    // where it begins
	file  string // where it should stand, "" for anywhere
	lines []string
}

func (b block) first() string {
	if len(b.lines) == 0 {
		return "(nothing)"
	}
	return b.lines[0]
}

var (
	fence = regexp.MustCompile("^\\s*(```+|~~~+)\\s*(\\w*)")
	named = regexp.MustCompile(`^\s*<!--\s*example:\s*(\S+)\s*-->\s*$`)
)

// blocksOf finds the blocks of Go in a document.
func blocksOf(text string) (all []block) {
	var open *block
	closing, file := "", ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case closing == "" && m != nil:
			closing = m[1]
			if m[2] == "go" || m[2] == "golang" {
				open = &block{line: i + 1, file: file}
			}
			file = ""
		case closing != "" && m != nil && strings.HasPrefix(m[1], closing) && m[2] == "":
			if open != nil {
				open.lines = trimmed(strings.Join(open.lines, "\n"))
				all = append(all, *open)
			}
			open, closing = nil, ""
		case open != nil:
			open.lines = append(open.lines, line)
		case closing == "" && strings.TrimSpace(line) != "":
			file = ""
			if m := named.FindStringSubmatch(line); m != nil {
				file = m[1]
			}
		}
	}
	if open != nil {
		all = append(all, *open)
	}
	return all
}

// missing says what to do about a block that is not compiled; "" when it is.
func (b block) missing(compiled []example) string {
	if len(b.lines) == 0 {
		return "is empty: remove it"
	}
	if b.file != "" {
		compiled = slices.DeleteFunc(slices.Clone(compiled), func(e example) bool { return e.file != b.file })
		if len(compiled) == 0 {
			return "should stand in " + b.file + ", which is neither a test with Example functions nor a program below examples: name the right file"
		}
	}
	for _, e := range compiled {
		if stands(b.lines, e.lines) {
			return ""
		}
	}
	where := "any Example function or program below examples"
	if b.file != "" {
		where = b.file
	}
	return "does not stand in " + where + " as it is, so nobody knows whether it compiles: " +
		"write it there and copy it, line by line (only the indentation may differ)"
}

// stands finds the lines in a row among others, but for a common indentation.
func stands(lines, among []string) bool {
	for i := range max(len(among)-len(lines)+1, 0) {
		if strings.TrimSpace(among[i]) == strings.TrimSpace(lines[0]) && slices.Equal(trimmed(strings.Join(among[i:i+len(lines)], "\n")), lines) {
			return true
		}
	}
	return false
}

// trimmed splits a text into lines without trailing space, common indentation, and blank lines around them.
func trimmed(text string) []string {
	lines := strings.Split(text, "\n")
	indent, found := "", false
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\r")
		if lines[i] == "" {
			continue
		}
		own := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " \t"))]
		if !found {
			indent, found = own, true
		}
		for !strings.HasPrefix(own, indent) {
			indent = indent[:len(indent)-1]
		}
	}
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], indent)
	}
	blank := func(s string) bool { return s == "" }
	for len(lines) > 0 && blank(lines[0]) {
		lines = lines[1:]
	}
	for len(lines) > 0 && blank(lines[len(lines)-1]) {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func TestReadmeRefused(t *testing.T) {
	t.Parallel()
	const exampleTest = `package p_test

import "fmt"

func ExampleRun() {
	err := run(func() {
		fmt.Println("mine")

		fmt.Println("still")
	})
	if err != nil {
		return
	}
	// Output: mine
}

func TestRun(t *testing.T) {
	tested := 1
}
`
	const whole = `package p_test

type Order struct{ ID int }

func ExampleOrder() { _ = Order{} }
`
	const readme = "# p\n\n" +
		"```go\nerr := run(func() {\n\tfmt.Println(\"mine\")\n\n\tfmt.Println(\"still\")  \n})\n```\n" +
		"* in a list:\n\n  ```go\n  fmt.Println(\"mine\")\n\n  fmt.Println(\"still\")\n  ```\n" +
		"```sh\ngo get p\n```\n" +
		"<!-- example: examples/a/main.go -->\n\n```go\npackage main\n\nfunc main() { b() }\n```\n" +
		"```go\ntype Order struct{ ID int }\n```\n"
	tree := func(text string) fstest.MapFS {
		return fstest.MapFS{
			"README.md":            {Data: []byte(readme + text)},
			"p/example_test.go":    {Data: []byte(exampleTest)},
			"p/whole_test.go":      {Data: []byte(whole)},
			"p/p.go":               {Data: []byte("package p\n\nfunc inTheLibrary() {}\n")},
			"examples/a/main.go":   {Data: []byte("// Command a does.\npackage main\n\nfunc main() { b() }\n")},
			"docs/guarantees.md":   {Data: []byte("none\n")},
			"docs/adr/0001-old.md": {Data: []byte("```go\nwhat was thought of\n```\n")},
		}
	}
	expect(t, checkReadme(t, tree("")))

	for bad, want := range map[string]string{
		"```go\nerr := run(func() {\n\tfmt.Println(\"yours\")\n```":            "README.md:30: the block that begins with\n\terr := run(func() {\ndoes not stand in any Example",
		"```go\nif err != nil {\n  return\n}\n```":                             "\tif err != nil {\ndoes not stand",
		"```go\ntested := 1\n```":                                              "\ttested := 1\ndoes not stand",
		"```go\nfunc inTheLibrary() {}\n```":                                   "inTheLibrary() {}\ndoes not stand",
		"```go\n\n```":                                                         "(nothing)\nis empty",
		"<!-- example: p/example_test.go -->\n```go\nfunc main() { b() }\n```": "main() { b() }\ndoes not stand in p/example_test.go",
		"<!-- example: p/p.go -->\n```go\nfunc inTheLibrary() {}\n```":         "should stand in p/p.go, which is neither",
		"```go\nnever := \"closed\"":                                           "never := \"closed\"\ndoes not stand",
	} {
		expect(t, checkReadme(t, tree(bad)), want)
	}

	without := tree("")
	delete(without, "README.md")
	without["docs/guarantees.md"].Data = []byte("```go\nlost()\n```\n")
	expect(t, checkReadme(t, without), "there is no README.md", "docs/guarantees.md:1:")
}
