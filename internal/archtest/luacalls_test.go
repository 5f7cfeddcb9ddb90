package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
)

// scripts is what the Go files of a package say of its Lua files:
//
//	//go:embed lua/acquire.lua
//	acquireLua string
//	acquireScript = newScript(acquireLua)
//	… acquireScript.run(ctx, client, []string{key}, arg) …
type scripts struct {
	set      *token.FileSet
	files    []*ast.File
	embedded map[string][]string // Lua file, as in go:embed, to the variables with its text
	made     map[string]string   // variable with a text to the variable with the script
	problems []string
}

func parseScripts(t testing.TB, tree fs.FS, dir string) *scripts {
	t.Helper()
	s := &scripts{set: token.NewFileSet(), embedded: make(map[string][]string), made: make(map[string]string)}
	names, err := fs.Glob(tree, path.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(s.set, name, read(t, tree, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, file)
	}
	s.each(func(n ast.Node, _ *ast.FuncDecl) {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.VAR {
			for _, spec := range d.Specs {
				s.variable(d, spec.(*ast.ValueSpec)) //nolint:forcetypeassert // a var holds nothing else
			}
		}
	})
	return s
}

// each visits all nodes, with the function that they stand in.
func (s *scripts) each(visit func(n ast.Node, in *ast.FuncDecl)) {
	for _, file := range s.files {
		for _, d := range file.Decls {
			in, _ := d.(*ast.FuncDecl)
			ast.Inspect(d, func(n ast.Node) bool {
				visit(n, in)
				return true
			})
		}
	}
}

func (s *scripts) bad(n ast.Node, format string, args ...any) {
	at := s.set.Position(n.Pos())
	s.problems = append(s.problems, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, fmt.Sprintf(format, args...)))
}

// variable learns what a variable has to do with Lua.
func (s *scripts) variable(d *ast.GenDecl, spec *ast.ValueSpec) {
	for _, group := range []*ast.CommentGroup{d.Doc, spec.Doc} {
		if group == nil {
			continue
		}
		for _, c := range group.List {
			patterns, ok := strings.CutPrefix(c.Text, "//go:embed ")
			if !ok || !strings.Contains(patterns, "lua") {
				continue
			}
			if strings.ContainsAny(patterns, "*?[ ") || !strings.HasSuffix(patterns, ".lua") {
				s.bad(c, "embed one Lua file by its name, not %s, so that each script can be followed to its calls", patterns)
				continue
			}
			s.embedded[patterns] = append(s.embedded[patterns], spec.Names[0].Name)
		}
	}
	for i, value := range spec.Values {
		call, ok := value.(*ast.CallExpr)
		if ok && types.ExprString(call.Fun) == "newScript" && len(call.Args) == 1 {
			s.made[types.ExprString(call.Args[0])] = spec.Names[i].Name
		}
	}
}

// check follows one Lua file to its calls, which must pass what its header promises.
func (s *scripts) check(file string, keys, argv arity) []string {
	s.problems = nil
	short := path.Join(path.Base(path.Dir(file)), path.Base(file))
	texts := s.embedded[short]
	if len(texts) != 1 {
		return []string{fmt.Sprintf("%s is embedded by %d go:embed: one must, in the package above it", file, len(texts))}
	}
	script, ok := s.made[texts[0]]
	if !ok {
		return []string{fmt.Sprintf("%s: no script variable is made by newScript(%s)", file, texts[0])}
	}
	runs := 0
	called := make(map[ast.Node]bool)
	s.each(func(n ast.Node, in *ast.FuncDecl) {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for _, name := range n.Names {
				called[name] = called[name] || name.Name == script
			}
		case *ast.CallExpr:
			if types.ExprString(n.Fun) == script+".run" && len(n.Args) >= 3 {
				called[n.Fun.(*ast.SelectorExpr).X] = true //nolint:forcetypeassert // it has a dot
				runs++
				s.call(n, in, file, keys, argv)
			}
		case *ast.Ident:
			if n.Name == script && !called[n] {
				s.bad(n, "%s is used other than by %s.run(ctx, client, keys, args…), where nobody can count what %s is given", script, script, file)
			}
		}
	})
	if runs == 0 {
		s.problems = append(s.problems, fmt.Sprintf("%s is run by nobody: no call of %s.run", file, script))
	}
	return s.problems
}

// call counts the keys and arguments of one call.
func (s *scripts) call(call *ast.CallExpr, in *ast.FuncDecl, file string, keys, argv arity) {
	list, args := call.Args[2], call.Args[3:]
	literal, isLiteral := list.(*ast.CompositeLit)
	switch {
	case keys.each || argv.each:
		if isLiteral || !call.Ellipsis.IsValid() || len(args) != 1 {
			s.bad(call, "%s takes KEYS %s and ARGV %s: give it slices, run(ctx, client, keys, args...)", file, keys, argv)
			return
		}
		s.loop(call, in, file, argv.n)
	case !isLiteral || call.Ellipsis.IsValid():
		s.bad(call, "%s takes KEYS %s and ARGV %s: write them into the call, so that they can be counted", file, keys, argv)
	default:
		if n := len(literal.Elts); n != keys.n {
			s.bad(call, "%s takes KEYS %s, and is given %d", file, keys, n)
		}
		if n := len(args); n != argv.n {
			s.bad(call, "%s takes ARGV %s, and is given %d", file, argv, n)
		}
	}
}

// loop looks for the one loop that sets a key and appends n arguments in each turn.
func (s *scripts) loop(call *ast.CallExpr, in *ast.FuncDecl, file string, n int) {
	keys, args := types.ExprString(call.Args[2]), types.ExprString(call.Args[3])
	var appends, sets []int
	ast.Inspect(in, func(node ast.Node) bool {
		loop, ok := node.(*ast.RangeStmt)
		if !ok {
			return true
		}
		for _, statement := range loop.Body.List {
			assign, ok := statement.(*ast.AssignStmt)
			if !ok || len(assign.Lhs) != 1 {
				continue
			}
			to := types.ExprString(assign.Lhs[0])
			added := appended(assign.Rhs[0])
			switch {
			case to == args && added > 0:
				appends = append(appends, added)
			case to == keys && added > 0:
				sets = append(sets, added)
			case strings.HasPrefix(to, keys+"["):
				sets = append(sets, 1)
			}
		}
		return true
	})
	if !slices.Equal(sets, []int{1}) {
		s.bad(call, "%s: fill %s in one loop, one key in each turn: it has %v", file, keys, sets)
	}
	if !slices.Equal(appends, []int{n}) {
		s.bad(call, "%s takes ARGV %d for each lease: append so many to %s in each turn of one loop: it has %v", file, n, args, appends)
	}
}

// appended counts what append adds to a slice.
func appended(e ast.Expr) int {
	call, ok := e.(*ast.CallExpr)
	if !ok || types.ExprString(call.Fun) != "append" || call.Ellipsis.IsValid() {
		return 0
	}
	return len(call.Args) - 1
}
