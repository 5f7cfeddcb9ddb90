package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"testing"
)

// selfEvident are methods that need no comment: an interface of the standard library says what they do.
var selfEvident = map[string]string{
	"Error":  "error",
	"Is":     "errors.Is",
	"String": "fmt.Stringer",
	"Unwrap": "errors.Unwrap",
}

// TestComments wants a comment on everything that a public package exports.
func TestComments(t *testing.T) {
	t.Parallel()
	dir := root(t)
	for _, p := range packages(t, dir) {
		if p.public() {
			report(t, checkComments(t, os.DirFS(dir), p))
		}
	}
}

func checkComments(t testing.TB, tree fs.FS, p listed) (problems []string) {
	t.Helper()
	set := token.NewFileSet()
	bad := func(name *ast.Ident, kind string) {
		at := set.Position(name.Pos())
		problems = append(problems, fmt.Sprintf("%s:%d: %s %s is exported and has no comment: say what a caller must know "+
			"(outcomes, errors, units, what ctx affects)", at.Filename, at.Line, kind, name.Name))
	}
	packageDoc := false
	for _, file := range p.files() {
		file = path.Join(p.Dir, file)
		f, err := parser.ParseFile(set, file, read(t, tree, file), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		packageDoc = packageDoc || f.Doc != nil
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				_, evident := selfEvident[d.Name.Name]
				isMethod := d.Recv != nil
				if d.Doc == nil && d.Name.IsExported() && (!isMethod || !evident && ast.IsExported(baseName(d.Recv.List[0].Type))) {
					bad(d.Name, "function")
				}
			case *ast.GenDecl:
				for _, name := range uncommented(d) {
					bad(name, d.Tok.String())
				}
			}
		}
	}
	if !packageDoc {
		problems = append(problems, fmt.Sprintf("package %s has no comment: say in %s/doc.go what it is and when one would use it", p.Dir, p.Dir))
	}
	return problems
}

// uncommented finds exported names with no comment above, beside, or over their group.
func uncommented(d *ast.GenDecl) (names []*ast.Ident) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func TestCommentsRefused(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"go.mod": "module " + modulePath + "\n\ngo 1.26.0\n",
		"p/p.go": `package p

const A = 1
const B = 2 // beside
// C is above.
const C = 3

// A group.
var (
	D = 1
)

type E struct{}
type f struct{}

func (E) Error() string { return "" }
func (E) Do()           {}
func (f) Do()           {}
func G()                {}

// H is above.
func H() {}
func i() {}
`,
	})
	all := packages(t, dir)
	if len(all) != 1 {
		t.Fatal(all)
	}
	expect(t, checkComments(t, os.DirFS(dir), all[0]),
		"p/p.go:3: const A", "p/p.go:13: type E", "p/p.go:17: function Do", "p/p.go:19: function G", "package p has no comment")
}
