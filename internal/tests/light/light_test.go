// Package light shows how an import of latchkit changes the dependencies of a program.
package light

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/moves.txt")

const (
	goMod = `module example.com/service

go 1.26.0

require (
	github.com/gin-gonic/gin v1.10.0
	github.com/redis/go-redis/v9 v9.12.0
	go.opentelemetry.io/otel v1.37.0
	google.golang.org/grpc v1.75.0
)
`
	imports = `package main

import (
	_ "github.com/gin-gonic/gin"
	_ "github.com/redis/go-redis/v9"
	_ "go.opentelemetry.io/otel"
	_ "google.golang.org/grpc"
`
	latchkit = "github.com/latchkit/latchkit"
)

// TestAnImportMovesNoVersionThatItDoesNotNeed has a service with older dependencies. It adds an
// import of locker, and compares the versions of the dependencies before and after. Each line
// of testdata/moves.txt is a dependency whose version the import may change. CHANGELOG.md gives
// the reasons.
func TestAnImportMovesNoVersionThatItDoesNotNeed(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	// Because the test reads go.mod here, a result in the test cache is not used after go.mod
	// has changed.
	if _, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "go.mod", goMod)
	write(t, dir, "main.go", imports+")\n\nfunc main() {}\n")
	before := versions(t, dir)

	run(t, dir, "go", "mod", "edit", "-require="+latchkit+"@v0.0.0", "-replace="+latchkit+"="+root)
	write(t, dir, "main.go", imports+"\t_ \""+latchkit+"/locker\"\n)\n\nfunc main() {}\n")
	after := versions(t, dir)

	var moves strings.Builder
	for _, module := range slices.Sorted(maps.Keys(before)) {
		if was, is := before[module], after[module]; was != is {
			fmt.Fprintf(&moves, "%s %s => %s\n", module, was, is)
		}
	}
	golden := filepath.Join("testdata", "moves.txt")
	if *update {
		write(t, ".", golden, moves.String())
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if moves.String() != string(want) {
		t.Errorf("an import of locker moves these versions:\n%s\nand %s expects:\n%s\n"+
			"Lower the requirement in the root's go.mod; or run this test with -update, and say in CHANGELOG.md why it moves.",
			moves.String(), golden, want)
	}
}

// versions returns the version of each module that is linked into the service. The modules are those of
// its packages, so nothing is compiled.
func versions(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	out := run(t, dir, "go", "list", "-mod=mod", "-deps", "-f", "{{with .Module}}module {{.Path}} {{.Version}}{{end}}", ".")
	for line := range strings.Lines(out) { // other lines tell of downloads
		if f := strings.Fields(line); len(f) == 3 && f[0] == "module" && f[1] != latchkit {
			all[f[1]] = f[2]
		}
	}
	if all["google.golang.org/grpc"] == "" {
		t.Fatalf("the service has no versions: %v", all)
	}
	return all
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAProgramThatImportsLockerLinksGoRedisAlone lists the modules that a program links when it
// imports locker. The positive control is locker/polling, which links redislock too.
func TestAProgramThatImportsLockerLinksGoRedisAlone(t *testing.T) {
	t.Parallel()
	goRedis := []string{"github.com/cespare/xxhash/v2", latchkit, "github.com/redis/go-redis/v9", "go.uber.org/atomic", "golang.org/x/sys"}
	for pkg, want := range map[string][]string{
		"/locker":         goRedis,
		"/locker/polling": append([]string{"github.com/bsm/redislock"}, goRedis...),
	} {
		out := run(t, filepath.Join("..", "..", ".."), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", latchkit+pkg)
		linked := slices.DeleteFunc(strings.Split(strings.TrimSpace(out), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "go: ") // a download, on a new machine
		})
		slices.Sort(linked)
		if linked = slices.Compact(linked); !slices.Equal(linked, want) {
			t.Errorf("a program that imports %s links %q; want %q", pkg, linked, want)
		}
	}
}
