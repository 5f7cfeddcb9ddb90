package archtest

import (
	"fmt"
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
		"./internal/typednil":          "New refuses a nil Store",
		"./internal/calls":             "the engine makes calls that it can abandon",
		"./internal/redisstore":        "NewSingle and NewReadWrite make Lockers on its Stores",
		"./internal/quorum":            "NewRedlock and NewReadWrite make Lockers on its Stores",
		"./internal/polling":           "NewPolling makes Lockers on its Store",
		"./internal/scriptless":        "NewScriptless makes Lockers on its Store",
		"./locker/store":               "the contract of the engine with its Stores",
		"github.com/redis/go-redis/v9": "a Client is one of go-redis",
		"github.com/bsm/redislock":     "NewPolling is given a client of it, for services that use it already",
	},
	"locker/store":      {},
	"internal/typednil": {},
	"internal/calls": {
		"./internal/link": "releases are repeated as the chores of a node",
		"./locker/store":  "calls are those of a Store",
	},
	"internal/redisstore": {
		"./internal/calls":             "the Engine begins steps, and leaves them",
		"./internal/link":              "each step is a call to a node",
		"./locker/store":               "it holds Stores",
		"github.com/redis/go-redis/v9": "the client that users have already: Stores send their steps through it",
	},
	"internal/quorum": {
		"./internal/calls":             "a step makes one call to each node",
		"./internal/link":              "the calls of a step travel by the links of the nodes",
		"./internal/redisstore":        "a node of a quorum is one Redis server, or one Cluster",
		"./internal/typednil":          "it refuses a nil client",
		"./locker/store":               "it is a Store",
		"github.com/redis/go-redis/v9": "it looks at its clients' options",
	},
	"internal/polling": {
		"./internal/redisstore":    "errors of Redis mean the same here",
		"./locker/store":           "it is a Store",
		"github.com/bsm/redislock": "it locks through it",
	},
	"internal/scriptless": {
		"./internal/redisstore":        "names of keys, and what errors of Redis mean",
		"./locker/store":               "it holds a Store",
		"github.com/redis/go-redis/v9": "it sends transactions through the client that users have",
	},
	"locker/key": {
		"golang.org/x/text/unicode/norm": "the filter |nfc: Unicode's tables are not in the standard library",
	},
	"locker/delegate": {
		"./locker": "it hands a lease of it to a call in another process",
		"net/http": "it is a RoundTripper for clients, and reads the header that it has sent",
	},
	"locker/optimistic": {
		"./internal/typednil":          "Update refuses a nil client",
		"./locker":                     "pauses are a Backoff, and an Observer sees updates",
		"github.com/redis/go-redis/v9": "it changes values in Redis",
	},
	"locker/lead": {
		"./internal/typednil": "New refuses a nil Locker",
		"./locker":            "a term is a lease",
	},
	"locker/idempotency": {
		"./locker":                     "a response is stored under a lease",
		"github.com/redis/go-redis/v9": "one of its Stores keeps responses in Redis",
	},
	"locker/idempotency/storetest": {
		"./locker":             "an overtaken holder is a kind of ErrLost",
		"./locker/idempotency": "the laws are those of its Stores",
		"testing/...":          "laws are subtests; only tests import this package",
	},
	"locker/lockertest": {
		"./locker":       "its Store in memory and its recorder are for it",
		"./locker/store": "its Store in memory is one",
		"testing/...":    "NewLocker closes with the test; only tests import this package",
	},
	"locker/store/storetest": {
		"./locker":            "some laws are those of a Locker over the Store",
		"./locker/lockertest": "a Locker that ends with the law",
		"./locker/store":      "the laws are those of Stores",
		"testing/...":         "laws are subtests, in a bubble where the Store allows it; only tests import this package",
	},

	"ginlock": {
		"./locker":                     "an adapter turns a request into a Rule and runs it",
		"./locker/key":                 "all adapters share the grammar of keys",
		"./locker/delegate":            "a lease may travel with a request",
		"./locker/idempotency":         "a repeated request gets the stored response",
		"./httplock":                   "gin speaks net/http: what is not gin's own is written there, once",
		"github.com/gin-gonic/gin/...": "the framework",
		"github.com/goccy/go-yaml":     "rules may stand in YAML; gin reads its YAML with it, so it is there already",
		"net/http":                     "the framework's requests and replies are net/http's",
	},
	"httplock": {
		"./internal/breaker":   "a request that fails open costs no time in an outage",
		"./locker":             "an adapter turns a request into a Rule and runs it",
		"./locker/key":         "all adapters share the grammar of keys",
		"./locker/delegate":    "a lease may travel with a request",
		"./locker/idempotency": "a repeated request gets the stored response",
		"net/http":             "the framework",
	},
	"grpclock": {
		"./internal/breaker":             "a request that fails open costs no time in an outage",
		"./locker":                       "an adapter turns a call into a Rule and runs it",
		"./locker/key":                   "all adapters share the grammar of keys",
		"./locker/delegate":              "a lease may travel with a call",
		"./locker/idempotency":           "a repeated call gets the stored answer",
		"google.golang.org/grpc/...":     "the framework",
		"google.golang.org/genproto/...": "a refusal carries RetryInfo and ErrorInfo",
		"google.golang.org/protobuf/...": "rules stand in descriptors, and keys in messages",
	},
	"grpclock/lockpb": {
		"unsafe":                         "protoc-gen-go puts the descriptor into a string with it",
		"google.golang.org/protobuf/...": "it is generated code",
	},
	"internal/link": {
		"github.com/redis/go-redis/v9": "it brings calls to nodes through the client that users have",
	},
	"internal/shop": {
		"./grpclock/lockpb":              "it is generated code, for tests, of an annotated service",
		"google.golang.org/grpc/...":     "the same",
		"google.golang.org/protobuf/...": "the same",
	},
	"asynqlock": {
		"./locker":                     "an adapter turns a task into a Rule and runs it",
		"./locker/lead":                "one process runs the schedule",
		"./locker/key":                 "all adapters share the grammar of keys",
		"github.com/hibiken/asynq/...": "the framework",
		"github.com/redis/go-redis/v9": "the lines of tasks that are put off are kept in asynq's Redis",
		"github.com/robfig/cron/v3":    "asynq's schedules are its schedules: CatchUp asks them for their slots",
	},
	"sqllock": {
		"./locker":             "an adapter turns a transaction into a Rule and runs it",
		"./locker/idempotency": "Answers is a Store of it",
		"./locker/key":         "all adapters share the grammar of keys",
		"database/sql/...":     "the framework; the driver is the user's choice",
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

	"internal/archtest":         {},
	"internal/archtest/circles": {},
	"internal/breaker":          {"./locker": "it asks a Locker whether its server is back"},
	"internal/errtype":          {},
	"internal/proc":             {},
	"internal/proc/faketest":    {},
	"internal/redistest": {
		"./internal/proc":              "a server is a child process",
		"github.com/redis/go-redis/v9": "it hands out clients of its servers",
	},
	"internal/locktest": {
		"./internal/chaos":             "clients whose connections break",
		"./internal/redisstore":        "Stores, and the names of their keys",
		"./internal/redistest":         "clients of its servers",
		"./locker":                     "it makes Lockers for tests",
		"github.com/redis/go-redis/v9": "tests look at servers with it",
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
	"./locker":                               "users and adapters are above the engine, Stores are below it: a Store knows package store",
	"./internal/redisstore":                  "Redis is a Store's business",
	"./internal/quorum":                      "a quorum is made of Stores on Redis, and none of them knows of it",
	"./internal/calls":                       "calls are the business of the engine and of Stores",
	"./internal/...":                         "what is internal is for tests so far",
}

// everywhere are packages that every package may import.
var everywhere = map[string]string{
	"./internal/errtype": "errors.AsType, which Go 1.25 lacks",
}

// onlyOpen are imports of package locker that its file open.go alone may have: constructors make
// Stores, and the engine knows Stores but no Redis.
var onlyOpen = map[string]string{
	"github.com/redis/go-redis/...": "constructors look at the clients that they are given",
	"github.com/bsm/redislock/...":  "NewPolling is given a client of redislock",
	"./internal/redisstore":         "constructors make Stores",
	"./internal/quorum":             "constructors make Stores",
	"./internal/polling":            "constructors make Stores",
	"./internal/scriptless":         "constructors make Stores",
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
	if _, ok := lookup(everywhere, imported); ok {
		return ""
	}
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
	if _, ok := lookup(onlyOpen, imported); ok && p.Dir == "locker" && file != "open.go" {
		return "the engine knows Stores, and no Redis. Put it into a Store's package, or the constructor into open.go."
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

// importsOf lists the imports of a file; this module's packages as "./x".
func importsOf(t testing.TB, tree fs.FS, name string) (imported []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, read(t, tree, name), parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		text := strings.Trim(spec.Path.Value, "`\"")
		if below, ok := strings.CutPrefix(text, modulePath+"/"); ok {
			text = "./" + below
		}
		imported = append(imported, text)
	}
	return imported
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
		"go.mod":                         "module " + modulePath + "\n\ngo 1.25.0\n",
		"locker/open.go":                 source("context", "github.com/redis/go-redis/v9", modulePath+"/internal/redisstore"),
		"locker/engine.go":               source("log/slog", "github.com/redis/go-redis/v9"),
		"locker/acquire.go":              source(modulePath+"/internal/redisstore", modulePath+"/internal/calls"),
		"locker/keeper.go":               source("log", "testing"),
		"locker/keeper_windows.go":       source("golang.org/x/sys/windows"),
		"locker/lease.go":                source(modulePath + "/locker/lockertest"),
		"locker/lease_test.go":           source(modulePath+"/locker/lockertest", "testing"),
		"locker/store/store.go":          source(modulePath+"/locker", "github.com/redis/go-redis/v9"),
		"locker/store/storetest/laws.go": source("testing", "testing/synctest", modulePath+"/locker"),
		"internal/redisstore/a.go":       source(modulePath+"/internal/errtype", modulePath+"/internal/quorum"),
		"ginlock/ginlock.go":             source("net/http", "github.com/gin-gonic/gin", modulePath+"/locker"),
		"ginlock/guard.go":               source("github.com/redis/go-redis/v9", modulePath+"/sqllock"),
		"otel/trace.go":                  source("go.opentelemetry.io/otel/sdk/trace"),
		"kafkalock/kafkalock.go":         source("context"),
		"nested/go.mod":                  "module " + modulePath + "/nested\n\ngo 1.25.0\n",
		"nested/free.go":                 source("github.com/jackc/pgx/v5"),
		"internal/proc/proc.go":          source("os/exec", "testing"),
		"locker/testdata/nobody.go":      source("github.com/jackc/pgx/v5"),
	})
	expect(t, checkImports(t, dir),
		"locker/engine.go imports github.com/redis/go-redis/v9: the engine knows Stores, and no Redis",
		"locker/acquire.go imports ./internal/redisstore: the engine knows Stores, and no Redis",
		"locker/keeper.go imports log: what must be said",
		"locker/keeper.go imports testing: tests",
		"locker/keeper_windows.go imports golang.org/x/sys/windows: a dependency is a decision",
		"locker/lease.go imports ./locker/lockertest: it is for tests",
		"locker/store/store.go imports ./locker: users and adapters are above the engine",
		"locker/store/store.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"internal/redisstore/a.go imports ./internal/quorum: a quorum is made of Stores on Redis",
		"ginlock/guard.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"ginlock/guard.go imports ./sqllock: no adapter knows another one",
		"otel/trace.go imports go.opentelemetry.io/otel/sdk/trace: instrumentation uses the API",
		"package kafkalock has no row in mayImport",
	)
}
