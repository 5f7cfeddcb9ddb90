package archtest

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	goBlock  = regexp.MustCompile("(?ms)(?:<!-- example: (\\S+) -->\\s*)?^[ \\t]*```go\\n(.*?)^[ \\t]*```[ \\t]*$")
	goOpened = regexp.MustCompile("(?m)^[ \\t]*```go$")
)

// checkReadme compares the Go code in the documents with compiled code. Each block of Go in the
// READMEs of the root and below docs, without the decisions, must be part of an Example function,
// or of a program below examples. Only the block's indentation may differ. A comment before the
// block may name the file:
//
//	<!-- example: locker/example_test.go -->
func checkReadme(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	compiled := examples(t, tree)
	for _, name := range find(t, tree, "*.md") {
		if dir := path.Dir(name); dir != "." && dir != "docs" && !strings.HasPrefix(dir, "docs/") || dir == "docs/adr" {
			continue // not checked, because decisions also show code that was rejected
		}
		text := read(t, tree, name)
		blocks := goBlock.FindAllStringSubmatchIndex(text, -1)
		if n := len(goOpened.FindAllString(text, -1)); n != len(blocks) {
			bad("%s: %d blocks of Go begin and %d end", name, n, len(blocks))
		}
		for _, b := range blocks {
			file := text[max(b[2], 0):max(b[3], 0)]
			code := trimmed(text[b[4]:b[5]])
			if why := blockFault(compiled, file, code); why != "" {
				first, _, _ := strings.Cut(code, "\n")
				line := strings.Count(text[:b[4]], "\n")
				bad("%s:%d: the block that begins with\n\t%s\n%s", name, line, first, why)
			}
		}
	}
	return problems
}

// example is code that is compiled, as a test or as an example.
type example struct{ file, code string }

// examples returns the programs below examples, and the bodies of all Example functions, in all
// modules. If godoc shows the whole file of an Example, the whole file is returned.
func examples(t testing.TB, tree fs.FS) (all []example) {
	t.Helper()
	for _, name := range find(t, tree, "*.go") {
		text := read(t, tree, name)
		if strings.HasPrefix(name, "examples/") && !strings.HasSuffix(name, "_test.go") {
			all = append(all, example{name, trimmed(text)})
		}
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
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
	}
	return all
}

// blockFault returns what to do about the block code if no compiled example contains it, or "". The
// parameter file names the file that must contain the block; "" allows every file.
func blockFault(compiled []example, file, code string) string {
	if code == "" {
		return "is empty: remove it"
	}
	found := false
	for _, e := range compiled {
		if file != "" && e.file != file {
			continue
		}
		found = true
		if strings.Contains("\n"+e.code+"\n", "\n"+code+"\n") {
			return ""
		}
	}
	if !found {
		return "should stand in " + file + ", which is neither a test with Example functions " +
			"nor a program below examples: name the right file"
	}
	where := "any Example function or program below examples"
	if file != "" {
		where = file
	}
	return "does not stand in " + where + " as it is, so it may not compile: " +
		"write it there and copy it, line by line (only the indentation may differ)"
}

// trimmed returns text without the space around each line, and the blank lines at the beginning and
// at the end. The indentation is not compared, because gofmt decides it.
func trimmed(text string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

func TestReadmeRefused(t *testing.T) {
	t.Parallel()
	const whole = "package p_test\n\ntype Order struct{ ID int }\n\nfunc ExampleOrder() { _ = Order{} }\n"
	const examples = "package p_test\n\nfunc ExampleRun() {\n\terr := run(func() {\n\t\tmine()\n\t})\n\t// Output: mine\n}\n" +
		"func TestRun(t *testing.T) {\n\ttested := 1\n}\n"
	tree := func(text string) fs.FS {
		return treeOf(map[string]string{
			"README.md":            "# p\n\n* in a list:\n\n  ```go\n  mine()\n  ```\n```sh\ngo get p\n```\n" + text,
			"p/example_test.go":    examples,
			"p/whole_test.go":      whole,
			"p/p.go":               "package p\n\nfunc inTheLibrary() {}\n",
			"examples/a/main.go":   "// Command a does.\npackage main\n\nfunc main() { b() }\n",
			"docs/adr/0001-old.md": "```go\nwhat was thought of\n```\n",
		})
	}
	for text, want := range map[string]string{
		"": "",
		"```go\nerr := run(func() {\n\tmine()\n})\n```":                           "",
		"```go\ntype Order struct{ ID int }\n```":                                 "",
		"<!-- example: examples/a/main.go -->\n\n```go\nfunc main() { b() }\n```": "",
		"```go\nyours()\n```":                                                     "README.md:11: the block that begins with\n\tyours()\ndoes not stand in any Example",
		"```go\ntested := 1\n```":                                                 "\ttested := 1\ndoes not stand",
		"```go\nfunc inTheLibrary() {}\n```":                                      "inTheLibrary() {}\ndoes not stand",
		"```go\n\n```":                                                            "is empty",
		"<!-- example: p/example_test.go -->\n```go\nfunc main() { b() }\n```":    "main() { b() }\ndoes not stand in p/example_test.go",
		"<!-- example: p/p.go -->\n```go\nfunc inTheLibrary() {}\n```":            "should stand in p/p.go, which is neither",
		"```go\nnever := \"closed\"":                                              "2 blocks of Go begin and 1 end",
	} {
		problems := checkReadme(t, tree(text))
		if want == "" {
			expect(t, problems)
		} else {
			expect(t, problems, want)
		}
	}
	expect(t, checkReadme(t, treeOf(map[string]string{"docs/a.md": "```go\nlost()\n```\n"})), "docs/a.md:1:")
}
