package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fronts lists, for each package that users begin with, the name that they read first.
var fronts = map[string]string{
	"ginlock": "New", "httplock": "New", "grpclock": "ServerOptions", "asynqlock": "New", "sqllock": "New",
	"contrib/echolock": "New", "contrib/fiberlock": "New",
	"contrib/gormlock": "New", "contrib/sqlxlock": "New", "contrib/pgxlock": "New",
	"contrib/cronlock": "Once", "contrib/gocronlock": "PerTick",
	"locker/lead": "Run", "locker/optimistic": "Update", "locker/idempotency": "Keeper", "otel": "New",
}

// answers are what the comment of a front says.
var answers = map[string]*regexp.Regexp{
	"how to wire it, in a line of code":         regexp.MustCompile(`\n\t\S`),
	"what a caller gets that is refused":        regexp.MustCompile(`refused`),
	"how long a caller waits if nobody says so": regexp.MustCompile(`wait`),
}

var exampleFunction = regexp.MustCompile(`(?m)^func Example(\w*)\(\)`)

// checkFronts checks the comments of the fronts. It also checks that each public package with
// examples has one with the name Example, which godoc shows first: the one that most people need.
func checkFronts(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, dir := range slices.Sorted(maps.Keys(fronts)) {
		text := frontComment(t, tree, dir, fronts[dir])
		for _, what := range slices.Sorted(maps.Keys(answers)) {
			if !answers[what].MatchString(text) {
				problems = append(problems, fmt.Sprintf("%s: the comment of %s does not say %s", dir, fronts[dir], what))
			}
		}
	}
	first := make(map[string]bool)
	for _, name := range find(t, tree, "*_test.go") {
		dir := path.Dir(name)
		if !public(dir) || strings.HasPrefix(dir, "examples/") || dir == "locker/store" { // for authors of Stores
			continue
		}
		for _, m := range exampleFunction.FindAllStringSubmatch(read(t, tree, name), -1) {
			first[dir] = first[dir] || m[1] == ""
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(first)) {
		if !first[dir] {
			problems = append(problems, dir+": no example is named Example: give this name to the one that most people need")
		}
	}
	for dir := range fronts {
		if _, ok := first[dir]; !ok {
			problems = append(problems, dir+": there is no example")
		}
	}
	return problems
}

// frontComment returns the comment of a function or type of the package in dir.
func frontComment(t testing.TB, tree fs.FS, dir, front string) string {
	t.Helper()
	names, err := fs.Glob(tree, dir+"/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, read(t, tree, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == front {
					return d.Doc.Text()
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.Name == front {
						return d.Doc.Text()
					}
				}
			}
		}
	}
	return ""
}

func TestFrontsRefused(t *testing.T) {
	t.Parallel()
	files := make(map[string]string)
	for dir, front := range fronts {
		files[dir+"/a.go"] = "package a\n\n// " + front + " waits, or is refused:\n//\n//\t" + front + "()\nfunc " + front + "() {}\n"
		files[dir+"/a_test.go"] = "package a\n\nfunc Example() {}\n\nfunc Example_other() {}\n"
	}
	expect(t, checkFronts(t, treeOf(files)))
	files["locker/idempotency/a.go"] = "package a\n\n// A Keeper waits, or is refused:\n//\n//\tKeeper{}\ntype Keeper struct{}\n"
	files["ginlock/a.go"] = "package a\n\n// New is quick.\nfunc New() {}\n"
	files["httplock/a_test.go"] = "package a\n\nfunc ExampleNew() {}\n"
	delete(files, "otel/a_test.go")
	expect(t, checkFronts(t, treeOf(files)),
		"ginlock: the comment of New does not say how long", "ginlock: the comment of New does not say how to wire", "ginlock: the comment of New does not say what a caller gets",
		"httplock: no example is named Example", "otel: there is no example")
}
