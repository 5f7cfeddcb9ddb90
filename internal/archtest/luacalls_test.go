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
//	acquireScript = newScript(acquireLua, handLua)
//	… acquireScript.run(ctx, client, []string{key}, arg) …
//	… acquireScript.short(ctx, client, []string{key}, arg) …   the same, when the header has [what may be missing at the end]
//	… acquireScript.call([]string{key}, arg) …            the same, to be sent later
type scripts struct {
	set      *token.FileSet
	files    []*ast.File
	embedded map[string][]string // Lua file, as in go:embed, to the variables with its text
	made     map[string]string   // variable with a text to the variable with the script
	parts    map[string][]string // variable with a text to those of its fragments, in newScript
	problems []string
}

func parseScripts(t testing.TB, tree fs.FS, dir string) *scripts {
	t.Helper()
	s := &scripts{set: token.NewFileSet(), embedded: make(map[string][]string), made: make(map[string]string), parts: make(map[string][]string)}
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
		if !ok || types.ExprString(call.Fun) != "newScript" {
			continue
		}
		texts, ok := names(call.Args)
		if !ok {
			s.bad(call, "make a script of the texts of Lua files, as in newScript(releaseLua, handLua), so that its parts can be followed")
			continue
		}
		s.made[texts[0]], s.parts[texts[0]] = spec.Names[i].Name, texts[1:]
	}
}

// names are those of variables.
func names(list []ast.Expr) (names []string, ok bool) {
	for _, e := range list {
		name, ok := e.(*ast.Ident)
		if !ok {
			return nil, false
		}
		names = append(names, name.Name)
	}
	return names, len(names) > 0
}

// partsOf are the fragments of a script.
func (s *scripts) partsOf(script luaScript, files []luaScript) (parts []luaScript, problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, script.file+fmt.Sprintf(format, args...))
	}
	text := s.textOf(script)
	if script.isFragment() {
		uses := 0
		for _, parts := range s.parts {
			if slices.Contains(parts, text) {
				uses++
			}
		}
		switch {
		case s.made[text] != "":
			bad(" is a fragment: put it behind a script in newScript")
		case uses == 0:
			bad(" is a fragment of no script: put it behind one in newScript, or strike it")
		}
		return nil, problems
	}
	for whole, parts := range s.parts {
		if slices.Contains(parts, text) {
			bad(": it is a part of %s, so its header needs `-- fragment: ` with its functions", s.fileOf(whole, files).name())
		}
	}
	for _, part := range s.parts[text] {
		if f := s.fileOf(part, files); f.isFragment() {
			parts = append(parts, f)
		}
	}
	return parts, problems
}

// textOf is the variable with a file's text.
func (s *scripts) textOf(file luaScript) string {
	texts := s.embedded[path.Join(path.Base(path.Dir(file.file)), file.name())]
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// fileOf is the file whose text a variable has.
func (s *scripts) fileOf(text string, files []luaScript) luaScript {
	for _, f := range files {
		if s.textOf(f) == text {
			return f
		}
	}
	return luaScript{}
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
			given := n.Args
			switch fun := types.ExprString(n.Fun); {
			case (fun == script+".run" || fun == script+".short") && len(given) >= 3:
				given = given[2:]
				if (fun == script+".short") != (keys.short || argv.short) {
					s.bad(n, "%s: run it by short if its header has [what may be missing at the end], otherwise by run", file)
				}
			case fun == script+".call" && len(given) >= 1:
			default:
				return
			}
			called[n.Fun.(*ast.SelectorExpr).X] = true //nolint:forcetypeassert // it has a dot
			runs++
			s.call(n, given, in, file, keys, argv)
		case *ast.Ident:
			if n.Name == script && !called[n] {
				s.bad(n, "%s is used other than by %s.run(ctx, client, keys, args…) or call(keys, args…), where nobody can count what %s is given", script, script, file)
			}
		}
	})
	if runs == 0 {
		s.problems = append(s.problems, fmt.Sprintf("%s is run by nobody: no call of %s.run", file, script))
	}
	return s.problems
}

// call counts the keys and arguments that one call is given.
func (s *scripts) call(call *ast.CallExpr, given []ast.Expr, in *ast.FuncDecl, file string, keys, argv arity) {
	list, args := given[0], given[1:]
	literal, isLiteral := list.(*ast.CompositeLit)
	switch {
	case keys.each || argv.each:
		if isLiteral || !call.Ellipsis.IsValid() || len(args) != 1 {
			s.bad(call, "%s takes KEYS %s and ARGV %s: give it slices, run(ctx, client, keys, args...)", file, keys, argv)
			return
		}
		s.loop(call, types.ExprString(list), types.ExprString(args[0]), in, file, max(keys.n, 1), argv.n)
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

// loop looks for the one loop that fills in k keys and appends n arguments in each turn.
func (s *scripts) loop(call *ast.CallExpr, keys, args string, in *ast.FuncDecl, file string, k, n int) {
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
	if !slices.Equal(sets, []int{k}) {
		s.bad(call, "%s takes KEYS %d for each lease: fill %s with so many in each turn of one loop: it has %v", file, k, keys, sets)
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
