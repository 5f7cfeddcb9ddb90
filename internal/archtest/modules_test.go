package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// mayRequire are the modules that the root's go.mod may require directly, each with its reason.
// These modules get into the go.sum of every user of latchkit, whichever package the user imports.
var mayRequire = map[string]string{
	"github.com/redis/go-redis/v9":    "the client that users have already",
	"github.com/bsm/redislock":        "locker/polling, and otel/redislock for services that use redislock directly",
	"github.com/gin-gonic/gin":        "ginlock's framework",
	"github.com/hibiken/asynq":        "asynqlock's framework",
	"github.com/robfig/cron/v3":       "the schedules of asynq, which brings it",
	"golang.org/x/text":               "internal/template's filter |nfc; gin and grpc require it anyway",
	"go.opentelemetry.io/otel":        "otel's API: attributes, codes, the global providers",
	"go.opentelemetry.io/otel/metric": "otel's API: the histogram",
	"go.opentelemetry.io/otel/trace":  "otel's API: spans",

	"google.golang.org/grpc":                    "grpclock's framework",
	"google.golang.org/protobuf":                "grpclock: rules stand in descriptors, keys in messages",
	"google.golang.org/genproto/googleapis/rpc": "grpclock: ErrorInfo, RetryInfo and BadRequest, which clients of all languages know",
}

// oldestGo is the oldest version of Go that users of the root module may have. The nested modules
// require a newer version, because they have the newest dependencies.
const oldestGo = "1.26.0"

// notInWorkspace are the nested modules that go.work leaves out, each with the reason.
var notInWorkspace = map[string]string{
	"tools": "a workspace has one build list, and the linter's modules would raise the versions with which all modules are tested",
}

func TestModules(t *testing.T) {
	t.Parallel()
	report(t, checkModules(t, root(t)))
}

// modFile is a go.mod in the form that go mod edit prints.
type modFile struct {
	Module           struct{ Path string }
	Go               string
	Require, Exclude []struct {
		Path     string
		Indirect bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

func checkModules(t testing.TB, dir string) (problems []string) {
	t.Helper()
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	tree := os.DirFS(dir)
	var work struct { // in the form that go work edit prints
		Go  string
		Use []struct{ DiskPath string }
	}
	parse(t, dir, "work", "go.work", &work)
	used := make(map[string]bool)
	for _, use := range work.Use {
		used[path.Clean(use.DiskPath)] = true
	}
	for _, name := range find(t, tree, "go.mod") {
		var m modFile
		parse(t, dir, "mod", name, &m)
		module := path.Dir(name)
		why, leftOut := notInWorkspace[module]
		switch {
		case leftOut && used[module]:
			bad("go.work uses ./%s, which notInWorkspace leaves out (%s): decide", module, why)
		case !leftOut && !used[module]:
			bad("go.work does not use ./%s, so `go test work` does not test it: run `go work use ./%s`, "+
				"or list it in notInWorkspace (internal/archtest/modules_test.go) with the reason", module, module)
		}
		want, reason := work.Go, "go.work says it"
		// internal/sqltest is needed too, because the tests of contrib need it.
		if module == "." || strings.HasPrefix(module, "contrib/") || module == "internal/sqltest" {
			want, reason = oldestGo, "users may have it (oldestGo, internal/archtest/modules_test.go)"
		}
		if m.Go != want {
			bad("%s says go %s; say go %s, because %s", name, m.Go, want, reason)
		}
		if module == "." {
			problems = append(problems, checkRequires(m)...)
		} else {
			problems = append(problems, checkNested(module, m)...)
		}
	}
	return problems
}

// checkRequires checks which modules users of the root module get.
func checkRequires(top modFile) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, "go.mod "+fmt.Sprintf(format, args...)) }
	for _, r := range top.Replace {
		bad("replaces %s: no user gets that. Require a version that works as it is", r.Old.Path)
	}
	for _, e := range top.Exclude {
		bad("excludes %s: no user gets that. Require a version that works as it is", e.Path)
	}
	for _, r := range top.Require {
		if _, ok := mayRequire[r.Path]; !ok && !r.Indirect { // a wrong "indirect" is found by `go mod tidy -diff` in .ci/run
			bad("requires %s, which is in no row of mayRequire (internal/archtest/modules_test.go): all users get what it requires. "+
				"A test that needs it belongs into the module internal/tests; if the library needs it, add a row with the reason", r.Path)
		}
	}
	return problems
}

// checkNested checks a module below the root module.
func checkNested(dir string, m modFile) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, dir+"/go.mod "+fmt.Sprintf(format, args...))
	}
	if want := modulePath + "/" + dir; m.Module.Path != want {
		bad("says module %s: it must be %s, where it lies", m.Module.Path, want)
	}
	top := strings.TrimSuffix(strings.Repeat("../", strings.Count(dir, "/")+1), "/")
	replaced := false
	for _, r := range m.Replace {
		if r.Old.Path == modulePath {
			replaced = true
			if r.Old.Version != "" || path.Clean(r.New.Path) != top {
				bad("replaces %s by %s: it must be the root's directory, by a relative path", modulePath, r.New.Path)
			}
		}
	}
	for _, r := range m.Require {
		if r.Path == modulePath && !replaced {
			bad("requires %s without `replace %s => %s`, so with GOWORK=off it would be built with a release of it", modulePath, modulePath, top)
		}
	}
	return problems
}

// parse reads a go.mod or a go.work by the go command, and stores its contents in into.
func parse(t testing.TB, dir, kind, name string, into any) {
	t.Helper()
	// read opens the file, so that the test's cached result depends on the file. The go command
	// also reads the file, but in another process, which the cache does not notice.
	read(t, os.DirFS(dir), name)
	text := goCommand(t, dir, kind, "edit", "-json", filepath.Join(dir, filepath.FromSlash(name)))
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func TestModulesRefused(t *testing.T) {
	t.Parallel()
	const head = "module " + modulePath
	dir := t.TempDir()
	if err := os.CopyFS(dir, treeOf(map[string]string{
		"go.mod": head + "\n\ngo 1.24.0\n" + `
			require github.com/jackc/pgx/v5 v5.12.0
			require go.opentelemetry.io/otel/trace v1.47.0
			require golang.org/x/sys v0.48.0 // indirect
			replace golang.org/x/sys => golang.org/x/sys v0.47.0
			exclude golang.org/x/sys v0.46.0
		`,
		"go.work":                 "go 1.26.0\nuse .\nuse ./bench\nuse ./examples\nuse ./far/away\nuse ./tools\n",
		"bench/go.mod":            head + "/bench\n\ngo 1.26.0\nreplace " + modulePath + " => ../\n",
		"examples/go.mod":         head + "/examples\n\ngo 1.25.0\nrequire " + modulePath + " v0.0.0\n",
		"far/away/go.mod":         head + "/away\n\ngo 1.26.0\nreplace " + modulePath + " => ../\nrequire " + modulePath + " v0.0.0\n",
		"internal/tests/go.mod":   head + "/internal/tests\n\ngo 1.26.0\n",
		"tools/go.mod":            head + "/tools\n\ngo 1.26.0\n",
		"bench/testdata/x/go.mod": "module x\n",
	})); err != nil {
		t.Fatal(err)
	}
	expect(t, checkModules(t, dir),
		"go.mod replaces golang.org/x/sys",
		"go.mod excludes golang.org/x/sys",
		"go.mod requires github.com/jackc/pgx/v5, which is in no row",
		"go.mod says go 1.24.0; say go 1.26.0",
		"go.work uses ./tools, which notInWorkspace leaves out",
		"go.work does not use ./internal/tests",
		"examples/go.mod says go 1.25.0; say go 1.26.0",
		"examples/go.mod requires "+modulePath+" without `replace "+modulePath+" => ..`",
		"far/away/go.mod says module "+modulePath+"/away: it must be "+modulePath+"/far/away",
		"far/away/go.mod replaces "+modulePath+" by ../",
	)
}
