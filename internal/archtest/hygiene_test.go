package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// leftBehind finds notes to oneself. It is put together, so that it does not find itself.
var leftBehind = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}, "|") + `)\b`)

// TestNothingLeftBehind wants intentions in issues, where they are seen.
func TestNothingLeftBehind(t *testing.T) {
	t.Parallel()
	report(t, checkLeftBehind(t, repo(t)))
}

func checkLeftBehind(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*.go", "*.lua", "*.sql", "*.md", "*.proto") {
		n := 0
		for line := range strings.Lines(read(t, tree, name)) {
			n++
			if word := leftBehind.FindString(line); word != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: do it now, or open an issue", name, n, word))
			}
		}
	}
	return problems
}

// maySkip are the files whose tests may be skipped. None is: a suite that is
// green because it ran nothing is worse than a red one.
var maySkip = map[string]string{}

// TestNothingSkipped wants a test whose server, program or permission is missing
// to fail, and to say what to install.
func TestNothingSkipped(t *testing.T) {
	t.Parallel()
	report(t, checkSkips(t, repo(t)))
}

func checkSkips(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	skips := []string{"Skip", "Skipf", "SkipNow"}
	for _, name := range find(t, tree, "*.go") {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, read(t, tree, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := maySkip[name]; ok || !strings.HasSuffix(name, "_test.go") && !importsTesting(file) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(skips, f.Sel.Name) {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: what is missing must fail the test and say what to install; what cannot run "+
					"on some system is left out by a build constraint (or list the file in maySkip, internal/archtest/hygiene_test.go, with the reason)",
					name, set.Position(n.Pos()).Line, f.Sel.Name))
			}
			return true
		})
	}
	return problems
}

func importsTesting(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing"` })
}

func TestHygieneRefused(t *testing.T) {
	t.Parallel()
	note := "TO" + "DO"
	tree := fstest.MapFS{
		"a/a.go":           {Data: []byte("package a\n\n// " + note + ": later\nvar method = \"" + note + "S\"\n\nfunc f(s scanner) { s.Skip(1) }\n")},
		"a/lua/a.lua":      {Data: []byte("-- a.lua: FIX" + "ME\n")},
		"a/sql/a.sql":      {Data: []byte("SELECT 1 -- XX" + "X\n")},
		"README.md":        {Data: []byte("a context." + note + "() and mktemp XXXX" + "XX\n")},
		"LICENSE":          {Data: []byte(note)},
		"a/a_test.go":      {Data: []byte("package a\n\nfunc TestA(t *testing.T) {\n\tt.Skip(\"no server\")\n\tb.Skipf(\"%d\", 1)\n\th.t.SkipNow()\n\tSkip()\n}\n")},
		"a/atest/atest.go": {Data: []byte("package atest\n\nimport \"testing\"\n\nfunc Start(t testing.TB) { t.Skip() }\n")},
	}
	expect(t, checkLeftBehind(t, tree), "a/a.go:3: "+note, "a/lua/a.lua:1:", "a/sql/a.sql:1:", "README.md:1: "+note)
	expect(t, checkSkips(t, tree), "a/a_test.go:4: Skip:", "a/a_test.go:5: Skipf:", "a/a_test.go:6: SkipNow:", "a/atest/atest.go:5: Skip:")
}
