package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

// mayImport says for each package of the root module what it may import besides
// the standard library, and why. "./x" is a package of this module, "x/..." is x
// and all below it. Tests are free. A package whose place in the design is known
// has its row before it exists.
var mayImport = map[string]map[string]string{
	"locker": {
		"github.com/redis/go-redis/v9": "the client that users have already: Stores send their steps through it",
		"github.com/bsm/redislock":     "NewPolling locks through it, for services that use it already",
	},
	"locker/key": {},
	"locker/delegate": {
		"./locker": "it hands a lease of it to a call in another process",
		"net/http": "it is a RoundTripper for clients, and reads the header that it has sent",
	},
	"locker/idempotency": {
		"./locker":                     "a response is stored under a lease",
		"github.com/redis/go-redis/v9": "one of its Stores keeps responses in Redis",
	},
	"locker/lockertest": {
		"./locker":    "its laws, its Store in memory and its recorder are for it",
		"testing/...": "laws are subtests, in a bubble where the Store allows it; only tests import this package",
	},

	"ginlock": {
		"./locker":                     "an adapter turns a request into a Rule and runs it",
		"./locker/key":                 "all adapters share the grammar of keys",
		"./locker/delegate":            "a lease may travel with a request",
		"./locker/idempotency":         "a repeated request gets the stored response",
		"./ginlock/httplock":           "gin speaks net/http: what is not gin's own is written there, once",
		"github.com/gin-gonic/gin/...": "the framework",
		"github.com/goccy/go-yaml":     "rules may stand in YAML; gin reads its YAML with it, so it is there already",
		"net/http":                     "the framework's requests and replies are net/http's",
	},
	"ginlock/httplock": {
		"./locker":             "an adapter turns a request into a Rule and runs it",
		"./locker/key":         "all adapters share the grammar of keys",
		"./locker/delegate":    "a lease may travel with a request",
		"./locker/idempotency": "a repeated request gets the stored response",
		"net/http":             "the framework",
	},
	"grpclock": {
		"./locker":                       "an adapter turns a call into a Rule and runs it",
		"./locker/key":                   "all adapters share the grammar of keys",
		"./locker/delegate":              "a lease may travel with a call",
		"./grpclock/lockpb":              "the annotation, as protoc made it",
		"google.golang.org/grpc/...":     "the framework",
		"google.golang.org/genproto/...": "a refusal carries RetryInfo and ErrorInfo",
		"google.golang.org/protobuf/...": "rules stand in descriptors, and keys in messages",
	},
	"grpclock/lockpb": {
		"unsafe":                         "protoc-gen-go puts the descriptor into a string with it",
		"google.golang.org/protobuf/...": "it is generated code",
	},
	"internal/shop": {
		"./grpclock/lockpb":              "it is generated code, for tests, of an annotated service",
		"google.golang.org/grpc/...":     "the same",
		"google.golang.org/protobuf/...": "the same",
	},
	"asynqlock": {
		"./locker":                     "an adapter turns a task into a Rule and runs it",
		"./locker/key":                 "all adapters share the grammar of keys",
		"github.com/hibiken/asynq/...": "the framework",
	},
	"sqllock": {
		"./locker":         "an adapter turns a transaction into a Rule and runs it",
		"./locker/key":     "all adapters share the grammar of keys",
		"database/sql/...": "the framework; the driver is the user's choice",
	},

	"otel": {
		"./locker":                             "it is an Observer of Lockers",
		"go.opentelemetry.io/otel":             "the global providers are its defaults",
		"go.opentelemetry.io/otel/attribute":   "the API",
		"go.opentelemetry.io/otel/codes":       "the API",
		"go.opentelemetry.io/otel/metric/...":  "the API, with its no-op providers",
		"go.opentelemetry.io/otel/propagation": "the API: a trace goes on in the process that takes a message out of a queue",
		"go.opentelemetry.io/otel/trace/...":   "the API, with its no-op providers",
		"go.opentelemetry.io/otel/semconv/...": "names that others agreed on",
		"github.com/bsm/redislock":             "it names redislock's errors, and traces services that use it by itself",
	},

	"internal/archtest":      {},
	"internal/proc":          {},
	"internal/proc/faketest": {},
	"internal/redistest": {
		"./internal/proc":              "a server is a child process",
		"github.com/redis/go-redis/v9": "it hands out clients of its servers",
	},
	"internal/sqltest": {
		"./internal/proc": "a server is a child process",
	},
	"internal/chaos": {
		"./internal/proc":      "a fault may be a signal",
		"./internal/redistest": "a fault may hit a server",
	},
}

// reserved are packages of the standard library that a package which users
// import needs a row for, too.
var reserved = map[string]string{
	"C":                "latchkit is built without cgo, so it is built everywhere",
	"database/sql/...": "databases are sqllock's business",
	"expvar":           "it registers handlers in the user's program",
	"flag":             "it puts flags into the user's program",
	"log":              "what must be said goes to the Observer or to log/slog",
	"net/http/...":     "HTTP is ginlock's and httplock's business",
	"os/exec":          "a lock starts no programs",
	"os/signal":        "signals belong to the user's program",
	"testing/...":      "tests and what they need stay out of the user's program",
	"unsafe":           "nothing here needs it",
}

// because explains what no row allows.
var because = map[string]string{
	"github.com/redis/go-redis/...":          "Redis is a Store's business: adapters and observers take any locker.Locker",
	"github.com/bsm/redislock/...":           "redislock is a Store's business: adapters take any locker.Locker",
	"go.opentelemetry.io/otel/sdk/...":       "instrumentation uses the API, the SDK is the program's choice; a test that needs it belongs into internal/tests",
	"go.opentelemetry.io/otel/exporters/...": "exporters are the program's choice; a test that needs one belongs into internal/tests",
	"go.opentelemetry.io/...":                "what is observed goes through locker.Observer, which otel implements",
	"./ginlock/...":                          "no adapter knows another one: what two of them need belongs below locker",
	"./grpclock/...":                         "no adapter knows another one: what two of them need belongs below locker",
	"./asynqlock/...":                        "no adapter knows another one: what two of them need belongs below locker",
	"./sqllock/...":                          "no adapter knows another one: what two of them need belongs below locker",
	"./otel/...":                             "observing is optional: it is handed in as a locker.Observer",
	"./locker/lockertest":                    "it is for tests, and imports testing",
	"./internal/...":                         "what is internal is for tests so far",
}

// onlyIn names the only files of a package that may import something that its row allows.
var onlyIn = []struct {
	dir, imports string
	why          string
	files        map[string]string
}{
	{
		"locker", "github.com/redis/go-redis/...", "the engine knows Stores, and no Redis", map[string]string{
			"script.go":        "it sends scripts and commands, each once",
			"refusal.go":       "it knows what an error of Redis or of go-redis proves",
			"single.go":        "the Store of one server",
			"inbox.go":         "it subscribes to one server",
			"cluster.go":       "the Store of a cluster",
			"cluster_route.go": "it finds a node of a cluster",
			"shards_line.go":   "it subscribes to a node of a cluster",
			"together.go":      "it sends scripts in a pipeline",
			"acks.go":          "it sends a script and a WAIT in one",
			"examine.go":       "it asks all masters of a cluster",
			"skew.go":          "it looks whether a client follows a failover",
			"autopipeline.go":  "it lets the calls of a Store travel together",
			"redlock.go":       "it looks at the clients of the Store of several servers",
			"readwrite.go":     "the Store with readers",
			"polling.go":       "the Store on bsm/redislock",
			"scriptless.go":    "the Store without scripts",
			"update.go":        "Update takes a client, as it needs WATCH",
		},
	},
	{
		"locker", "github.com/bsm/redislock/...", "the engine knows Stores, and no Redis", map[string]string{
			"polling.go": "the Store on bsm/redislock",
		},
	},
}

func TestImports(t *testing.T) {
	t.Parallel()
	report(t, checkImports(t, root(t)))
}

func checkImports(t testing.TB, dir string) (problems []string) {
	t.Helper()
	tree := os.DirFS(dir)
	for _, p := range packages(t, dir) {
		row, ok := mayImport[p.Dir]
		if !ok {
			problems = append(problems, fmt.Sprintf("package %s has no row in mayImport (internal/archtest/imports_test.go): "+
				"add one with what it imports besides the standard library, each with its reason", p.Dir))
			continue
		}
		for _, file := range p.files() {
			for _, imported := range importsOf(t, tree, path.Join(p.Dir, file)) {
				if why := refuse(p, row, file, imported); why != "" {
					problems = append(problems, fmt.Sprintf("%s/%s imports %s: %s", p.Dir, file, imported, why))
				}
			}
		}
	}
	return problems
}

// refuse says why a file of a package may not import something; "" when it may.
func refuse(p listed, row map[string]string, file, imported string) string {
	const ask = " If it must be, add it to the package's row of mayImport with the reason."
	std := !strings.Contains(strings.Split(imported, "/")[0], ".")
	_, allowed := lookup(row, imported)
	reason, reserved := lookup(reserved, imported)
	switch {
	case std && reserved && p.public() && !allowed:
		return reason + "." + ask
	case std:
		return ""
	case !allowed:
		if why := longest(because, imported); why != "" {
			return why + "." + ask
		}
		return "a dependency is a decision, and the default answer is no." + ask
	}
	for _, o := range onlyIn {
		if p.Dir == o.dir && matches(o.imports, imported) && o.files[file] == "" {
			return o.why + ". Put it into a Store's file, or list this file in onlyIn with the reason."
		}
	}
	return ""
}

// longest finds the reason of the longest pattern that matches.
func longest(rules map[string]string, imported string) (why string) {
	best := -1
	for pattern, text := range rules {
		if matches(pattern, imported) && len(pattern) > best {
			best, why = len(pattern), text
		}
	}
	return why
}

// importsOf lists what a file imports; this module's packages as "./x".
func importsOf(t testing.TB, tree fs.FS, name string) (imported []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, read(t, tree, name), parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		imported = append(imported, pathOf(t, spec))
	}
	return imported
}

func pathOf(t testing.TB, spec *ast.ImportSpec) string {
	t.Helper()
	text, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		t.Fatal(err)
	}
	if below, ok := strings.CutPrefix(text, modulePath+"/"); ok {
		return "./" + below
	}
	return text
}

func TestImportsRefused(t *testing.T) {
	t.Parallel()
	source := func(imported ...string) string {
		var text strings.Builder
		text.WriteString("package p\n")
		for _, i := range imported {
			text.WriteString("import _ " + strconv.Quote(i) + "\n")
		}
		return text.String()
	}
	dir := write(t, map[string]string{
		"go.mod":                    "module " + modulePath + "\n\ngo 1.26.0\n",
		"locker/script.go":          source("context", "github.com/redis/go-redis/v9"),
		"locker/engine.go":          source("log/slog", "github.com/redis/go-redis/v9"),
		"locker/keeper.go":          source("log", "testing"),
		"locker/keeper_windows.go":  source("golang.org/x/sys/windows"),
		"locker/polling.go":         source("github.com/bsm/redislock"),
		"locker/lease.go":           source(modulePath + "/locker/lockertest"),
		"locker/lease_test.go":      source(modulePath+"/locker/lockertest", "testing"),
		"locker/lockertest/laws.go": source("testing", "testing/synctest", modulePath+"/locker"),
		"ginlock/ginlock.go":        source("net/http", "github.com/gin-gonic/gin", modulePath+"/locker"),
		"ginlock/guard.go":          source("github.com/redis/go-redis/v9", modulePath+"/sqllock"),
		"sqllock/sqllock.go":        source("database/sql", "github.com/jackc/pgx/v5"),
		"otel/otellock.go":          source("go.opentelemetry.io/otel", "go.opentelemetry.io/otel/semconv/v1.43.0"),
		"otel/trace.go":             source("go.opentelemetry.io/otel/sdk/trace"),
		"kafkalock/kafkalock.go":    source("context"),
		"nested/go.mod":             "module " + modulePath + "/nested\n\ngo 1.26.0\n",
		"nested/free.go":            source("github.com/jackc/pgx/v5"),
		"internal/proc/proc.go":     source("os/exec", "testing"),
		"locker/testdata/nobody.go": source("github.com/jackc/pgx/v5"),
	})
	expect(t, checkImports(t, dir),
		"locker/engine.go imports github.com/redis/go-redis/v9: the engine knows Stores, and no Redis",
		"locker/keeper.go imports log: what must be said",
		"locker/keeper.go imports testing: tests",
		"locker/keeper_windows.go imports golang.org/x/sys/windows: a dependency is a decision",
		"locker/lease.go imports ./locker/lockertest: it is for tests",
		"ginlock/guard.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"ginlock/guard.go imports ./sqllock: no adapter knows another one",
		"sqllock/sqllock.go imports github.com/jackc/pgx/v5: a dependency is a decision",
		"otel/trace.go imports go.opentelemetry.io/otel/sdk/trace: instrumentation uses the API",
		"package kafkalock has no row in mayImport",
	)
}
