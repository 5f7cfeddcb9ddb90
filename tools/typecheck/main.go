// Command typecheck checks the types of packages for another system, and of all packages that they
// import. It reads sources and compiles nothing: go vet for a system whose packages are not in the
// compiler's cache takes some minutes, and typecheck some seconds.
//
//	typecheck [-tests] GOOS/GOARCH FOLDER PATTERN...
//
// FOLDER is the root of a module or of a workspace. With -tests, tests are checked too.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	tests := flag.Bool("tests", false, "check the tests too")
	flag.Parse()
	args := flag.Args()
	if len(args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: typecheck [-tests] GOOS/GOARCH FOLDER PATTERN...")
		os.Exit(64)
	}
	system, arch, _ := strings.Cut(args[0], "/")
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes,
		Dir:   args[1],
		Env:   append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0"),
		Tests: *tests,
	}, args[2:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(all) == 0 || packages.PrintErrors(all) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%s: the types of %d packages are right\n", args[0], len(all))
}
