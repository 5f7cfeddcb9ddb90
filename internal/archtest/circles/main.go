// Circles measures how hard it is to find one's way in a package:
//
//	go run ./internal/archtest/circles locker internal/redisstore
//
// For each folder it prints the files that use each other in a circle, and the unexported names
// that three or more types share. A plain function with the same name counts as one more type.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	for _, dir := range os.Args[1:] {
		p, err := read(dir)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %d files, %d lines\n", dir, len(p.lines), total(p.lines, slices.Collect(maps.Keys(p.lines))))
		for _, c := range p.circles() {
			fmt.Printf("  a circle of %d files, %d lines: %s\n", len(c), total(p.lines, c), strings.Join(c, " "))
		}
		shared := p.sharedNames(3)
		fmt.Printf("  %d unexported names have three or more receivers\n", len(shared))
		for _, s := range shared {
			fmt.Println("    " + s)
		}
	}
}

// pkg has the names that the files of a folder declare, and the names that they use.
type pkg struct {
	lines    map[string]int
	declares map[string]map[string]bool // by name: the files that declare the name
	uses     map[string]map[string]bool // by file: the names in the file
	// receivers has the receiver types by the unexported name of a function or method. The type
	// "func" stands for a function without a receiver.
	receivers map[string]map[string]bool
}

func read(dir string) (*pkg, error) {
	p := &pkg{
		lines: map[string]int{}, declares: map[string]map[string]bool{},
		uses: map[string]map[string]bool{}, receivers: map[string]map[string]bool{},
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		base := filepath.Base(name)
		p.lines[base] = fset.File(file.Pos()).LineCount()
		p.add(base, file)
	}
	return p, nil
}

func add(m map[string]map[string]bool, key, value string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][value] = true
}

// add records the top-level declarations of a file, and every identifier in the file. Methods are
// identified by name only, because add does not resolve types. If several types have a method with
// this name, all their files count.
func (p *pkg) add(base string, file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(p.declares, d.Name.Name, base)
			if !d.Name.IsExported() {
				add(p.receivers, d.Name.Name, receiver(d))
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add(p.declares, s.Name.Name, base)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						add(p.declares, n.Name, base)
					}
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			add(p.uses, base, id.Name)
		}
		return true
	})
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return "func"
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}

// declaringFile returns the only file that declares name, or "" if several files declare it.
func (p *pkg) declaringFile(name string) string {
	if len(p.declares[name]) != 1 {
		return ""
	}
	for f := range p.declares[name] {
		return f
	}
	return ""
}

// circles returns the sets of files that use each other, the largest first. Names that several
// files declare are ignored, so no reported circle is larger than the real circle.
func (p *pkg) circles() [][]string {
	next := make(map[string][]string)
	for file, names := range p.uses {
		for name := range names {
			if to := p.declaringFile(name); to != "" && to != file {
				next[file] = append(next[file], to)
			}
		}
	}
	reach := func(from string) map[string]bool {
		seen := map[string]bool{}
		for todo := []string{from}; len(todo) > 0; {
			f := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, to := range next[f] {
				if !seen[to] {
					seen[to] = true
					todo = append(todo, to)
				}
			}
		}
		return seen
	}
	from := make(map[string]map[string]bool)
	for f := range p.lines {
		from[f] = reach(f)
	}
	var all [][]string
	done := map[string]bool{}
	for _, f := range slices.Sorted(maps.Keys(p.lines)) {
		if done[f] || !from[f][f] {
			continue
		}
		var circle []string
		for _, g := range slices.Sorted(maps.Keys(p.lines)) {
			if from[f][g] && from[g][f] {
				circle = append(circle, g)
				done[g] = true
			}
		}
		all = append(all, circle)
	}
	slices.SortFunc(all, func(a, b []string) int { return len(b) - len(a) })
	return all
}

// sharedNames returns the unexported names that at least n types have, the most shared name first.
func (p *pkg) sharedNames(n int) []string {
	var all []string
	for _, name := range slices.SortedFunc(maps.Keys(p.receivers), func(a, b string) int {
		return len(p.receivers[b]) - len(p.receivers[a])
	}) {
		if of := p.receivers[name]; len(of) >= n {
			all = append(all, fmt.Sprintf("%s (%d): %s", name, len(of), strings.Join(slices.Sorted(maps.Keys(of)), " ")))
		}
	}
	return all
}

func total(lines map[string]int, files []string) (n int) {
	for _, f := range files {
		n += lines[f]
	}
	return n
}
