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

// apiText writes the exported API of a package, one line for each thing that a
// user can name: sorted, and without comments and bodies. Types are printed by
// go/types, which never breaks a line, so that neither gofmt nor a new Go version
// changes the text.
func apiText(t testing.TB, tree fs.FS, p listed) string {
	t.Helper()
	a := api{types: make(map[string]*ast.TypeSpec), methods: make(map[string][]*ast.FuncDecl)}
	var files []*ast.File
	for _, name := range p.files() {
		name = path.Join(p.Dir, name)
		file, err := parser.ParseFile(token.NewFileSet(), name, read(t, tree, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		a.collect(file)
	}
	for _, file := range files {
		for _, d := range file.Decls {
			a.decl(d)
		}
	}
	slices.Sort(a.lines)
	head := fmt.Sprintf("package %s // import %q\n\n", p.Name, p.ImportPath)
	return head + strings.Join(slices.Compact(a.lines), "\n") + "\n"
}

type api struct {
	lines   []string
	types   map[string]*ast.TypeSpec   // all of the package, as exported ones may embed others
	methods map[string][]*ast.FuncDecl // by receiver, without '*'
}

func (a *api) add(format string, args ...any) {
	a.lines = append(a.lines, fmt.Sprintf(format, args...))
}

// collect finds the types of a file and their methods.
func (a *api) collect(file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				name := baseName(d.Recv.List[0].Type)
				a.methods[name] = append(a.methods[name], d)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					a.types[s.Name.Name] = s
				}
			}
		}
	}
}

func (a *api) decl(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.IsExported() {
			a.add("func %s%s%s", d.Name.Name, typeParams(d.Type.TypeParams), signature(d.Type))
		}
	case *ast.GenDecl:
		switch d.Tok {
		case token.CONST:
			a.constants(d)
		case token.VAR:
			a.variables(d)
		case token.TYPE:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
					a.typ(s)
				}
			}
		}
	}
}

// constants prints values too, as callers compile them in. A spec without one repeats the one above, with its own iota.
func (a *api) constants(d *ast.GenDecl) {
	var typ ast.Expr
	var values []ast.Expr
	for i, s := range d.Specs {
		s, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		if len(s.Values) > 0 {
			typ, values = s.Type, s.Values
		}
		for j, name := range s.Names {
			if !name.IsExported() || j >= len(values) {
				continue
			}
			value := types.ExprString(values[j])
			if usesIota(values[j]) {
				value += fmt.Sprintf(" (iota is %d)", i)
			}
			a.add("const %s%s = %s", name.Name, optional(typ), value)
		}
	}
}

func usesIota(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == "iota"
		return true
	})
	return found
}

// variables prints the type, and where none is written what makes the value: errors.New without its text.
func (a *api) variables(d *ast.GenDecl) {
	for _, s := range d.Specs {
		s, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for j, name := range s.Names {
			if !name.IsExported() {
				continue
			}
			made := ""
			if s.Type == nil && len(s.Values) == len(s.Names) {
				made = " = " + maker(s.Values[j])
			}
			a.add("var %s%s%s", name.Name, optional(s.Type), made)
		}
	}
}

func maker(e ast.Expr) string {
	if call, ok := e.(*ast.CallExpr); ok {
		return types.ExprString(call.Fun) + "(…)"
	}
	return types.ExprString(e)
}

func (a *api) typ(s *ast.TypeSpec) {
	head := "type " + s.Name.Name + typeParams(s.TypeParams)
	switch t := s.Type.(type) {
	case *ast.StructType:
		a.add("%s struct", head)
		a.fields(head+" struct, ", t)
	case *ast.InterfaceType:
		a.add("%s interface", head)
		a.elements(head+" interface, ", t)
	default:
		if s.Assign.IsValid() {
			head += " ="
		}
		a.add("%s %s", head, types.ExprString(s.Type))
	}
	a.methodsOf(s.Name.Name, "")
}

// fields prints the exported fields; what is promoted from a struct of the package that is not exported is the outer's.
func (a *api) fields(head string, t *ast.StructType) {
	for _, f := range t.Fields.List {
		tag := ""
		if f.Tag != nil {
			tag = " " + f.Tag.Value
		}
		for _, name := range f.Names {
			if name.IsExported() {
				a.add("%s%s %s%s", head, name.Name, types.ExprString(f.Type), tag)
			} else {
				a.add("%sand what is not exported", head)
			}
		}
		if len(f.Names) > 0 {
			continue
		}
		base := baseName(f.Type)
		if ast.IsExported(base) {
			a.add("%sembeds %s%s", head, types.ExprString(f.Type), tag)
			continue
		}
		a.add("%sand what is not exported", head)
		if inner, ok := a.types[base]; ok {
			if s, ok := inner.Type.(*ast.StructType); ok {
				a.fields(head, s)
			}
			outer, _, _ := strings.Cut(strings.TrimPrefix(head, "type "), " ")
			a.methodsOf(base, outer)
		}
	}
}

func (a *api) elements(head string, t *ast.InterfaceType) {
	for _, f := range t.Methods.List {
		f0, isFunc := f.Type.(*ast.FuncType)
		switch {
		case len(f.Names) == 0:
			a.add("%sembeds %s", head, types.ExprString(f.Type))
		case !f.Names[0].IsExported():
			a.add("%sand what is not exported", head)
		case isFunc:
			a.add("%s%s%s", head, f.Names[0].Name, signature(f0))
		}
	}
}

// methodsOf prints the exported methods of a type, under the name of the type that promotes them, if any.
func (a *api) methodsOf(name, promotedBy string) {
	for _, m := range a.methods[name] {
		if !m.Name.IsExported() {
			continue
		}
		receiver := types.ExprString(m.Recv.List[0].Type)
		if promotedBy != "" {
			receiver = promotedBy + ", promoted"
		}
		a.add("func (%s) %s%s", receiver, m.Name.Name, signature(m.Type))
	}
}

func signature(f *ast.FuncType) string {
	plain := &ast.FuncType{Params: f.Params, Results: f.Results}
	return strings.TrimPrefix(types.ExprString(plain), "func")
}

func typeParams(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	var all []string
	for _, f := range list.List {
		for _, name := range f.Names {
			all = append(all, name.Name+" "+types.ExprString(f.Type))
		}
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func optional(typ ast.Expr) string {
	if typ == nil {
		return ""
	}
	return " " + types.ExprString(typ)
}

// baseName is T of *T, T[K] and p.T.
func baseName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return baseName(e.X)
	case *ast.IndexExpr:
		return baseName(e.X)
	case *ast.IndexListExpr:
		return baseName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.ParenExpr:
		return baseName(e.X)
	}
	return ""
}
