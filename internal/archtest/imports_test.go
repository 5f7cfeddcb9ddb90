package archtest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport lists which packages or files of the root module may import which packages. Each row
// has a reason. A package of the standard library needs a row only if the table forbiddenImports
// lists the package. "./x" is a package of this module, "x/..." is x and all packages below x, and
// "*" is every package. Tests may import everything.
var mayImport = []struct{ importer, what, why string }{
	{"internal/fenced internal/outermost internal/self internal/proc internal/proc/faketest", "", "they need only the standard library"},
	{"internal/archtest", "", "it needs only the standard library"},

	{"internal/store", "", "the contract between the engine and its Stores depends on neither of them"},
	{"locker", "./internal/store", "the contract of the engine with its Stores"},
	{"locker", "./internal/calls", "the engine begins steps that it can abandon"},
	{"locker locker/lead", "./internal/self", "a lease names the process of its holder"},
	{"locker/open.go", "./internal/redisstore ./internal/quorum ./internal/scriptless", "constructors make Stores"},
	{"locker/open.go", "github.com/redis/go-redis/v9", "constructors examine the clients that users pass"},
	{"locker/open.go", "github.com/redis/go-redis/v9/maintnotifications", "the client of Open asks for no maintenance notifications"},
	{"internal/calls", "./internal/store", "the steps are steps of a Store"},
	{"internal/link", "./internal/calls", "a batch runs on a goroutine of a Pool, and each node has Chores"},
	{"internal/link", "github.com/redis/go-redis/v9", "a link sends calls to a node through the user's client"},

	{"internal/redisstore internal/quorum internal/scriptless locker/polling", "./internal/store", "they contain Stores"},
	{"internal/redisstore internal/quorum internal/scriptless", "github.com/redis/go-redis/v9", "Stores send their steps through the user's client"},
	{"internal/redisstore internal/quorum", "./internal/link", "each step is a call to a node"},
	{"internal/redisstore", "./internal/calls", "the Engine begins steps, and can abandon them"},
	{"internal/quorum", "./internal/calls", "the Engine begins its steps, and they have goroutines of their own"},
	{"internal/quorum", "./internal/redisstore", "a node of a quorum is one Redis server, or one Cluster"},
	{"locker/polling internal/scriptless", "./internal/redisstore", "names of keys, and what errors of Redis mean"},
	{"locker/polling", "github.com/bsm/redislock ./locker", "it makes a Locker that locks through redislock"},

	{"internal/template", "golang.org/x/text/unicode/norm", "the filter |nfc needs Unicode's tables, which are not in the standard library"},
	{"locker/optimistic", "./locker", "pauses are a Backoff, and an Observer sees updates"},
	{"locker/optimistic", "github.com/redis/go-redis/v9", "it changes values in Redis"},
	{"internal/store/storetest", "github.com/redis/go-redis/v9", "Losses is a hook that loses a Store's calls"},
	{"locker/lead", "./locker", "a term is a lease"},
	{"locker/idempotency", "./locker", "a response is stored under a lease"},
	{"locker/idempotency asynqlock", "./internal/exclusive", "a request and a task have one holder on every Locker"},
	{"locker/lead", "./internal/exclusive", "a look at the context of work looks at the lease"},
	{"internal/exclusive", "./locker", "it makes a Rule for a Locker"},
	{"internal/breaker", "./internal/exclusive", "a call whose record cannot be read does not fail open"},
	{"locker locker/idempotency", "./internal/outermost", "the lease of a request closes no circle of waits"},
	{"locker/idempotency", "github.com/redis/go-redis/v9", "one of its Stores keeps responses in Redis"},

	{"locker/idempotency/storetest locker/lockertest internal/store/storetest", "testing/...", "only tests import them"},
	{"locker/idempotency/storetest", "./locker ./locker/idempotency", "the laws are for Stores of idempotency; an overtaken holder gets a kind of ErrLost"},
	{"locker/lockertest", "./locker ./internal/store", "the recorder observes a Locker, and the Store in memory implements store.Store"},
	{"internal/store/storetest", "./locker ./locker/lockertest ./internal/store", "the laws test Stores, and Lockers on top of Stores"},

	{"httplock ginlock grpclock asynqlock sqllock", "./locker", "an adapter turns a request, a task or a transaction into a Rule and runs it"},
	{"httplock grpclock asynqlock", "./locker/key", "a key is a text, and programs make keys of their own"},
	{"httplock grpclock asynqlock locker/key", "./internal/template", "all adapters share the grammar of keys, and keys of programs have its encoding"},
	{"httplock ginlock sqllock", "./locker/idempotency", "a repeated call gets the stored response; Answers is a Store of responses"},
	{"httplock grpclock", "./internal/breaker", "a call that fails open costs no time in an outage"},
	{"httplock ginlock", "./internal/framework", "a key must contain what the framework's handler reads; a request carries the framework's context"},
	{"internal/framework", "net/http", "a framework reads requests"},
	{"httplock ginlock", "net/http", "the framework"},
	{"ginlock", "./httplock", "gin uses net/http, so all code that is not special to gin is in httplock"},
	{"ginlock", "github.com/gin-gonic/gin/...", "the framework"},
	{"grpclock internal/shop", "google.golang.org/grpc/... google.golang.org/protobuf/...", "the framework; rules stand in descriptors, keys in messages"},
	{"grpclock", "google.golang.org/genproto/...", "a refusal carries RetryInfo and ErrorInfo"},
	{"grpclock/lockpb", "google.golang.org/protobuf/... unsafe", "generated code: protoc-gen-go puts the descriptor into a string"},
	{"internal/shop", "./grpclock/lockpb", "generated code, for tests, of an annotated service"},
	{"asynqlock", "github.com/hibiken/asynq/...", "the framework"},
	{"asynqlock", "github.com/redis/go-redis/v9", "the lines of tasks that are put off are kept in asynq's Redis"},
	{"sqllock httplock grpclock locker/lockertest", "./internal/fenced", "sqllock exports its errors, adapters answer them, and a test gets them"},
	{"sqllock", "database/sql/...", "the framework; the driver is the user's choice"},

	{"otel", "./locker", "it is an Observer of Lockers"},
	{"otel", "go.opentelemetry.io/otel go.opentelemetry.io/otel/attribute go.opentelemetry.io/otel/codes", "the API; the global providers are its defaults"},
	{"otel", "go.opentelemetry.io/otel/metric/... go.opentelemetry.io/otel/trace/...", "the API, with its no-op providers"},
	{"otel", "go.opentelemetry.io/otel/propagation", "the API: a trace goes on in the process that takes a message out of a queue"},
	{"otel", "go.opentelemetry.io/otel/semconv/...", "names that others agreed on"},
	{"otel/redislock", "./locker ./otel github.com/bsm/redislock", "it traces services that use redislock by themselves, as otel traces Lockers"},

	{"internal/breaker", "./locker", "it asks a Locker whether its server is back"},
	{"internal/page", "net/http", "it is a page for a browser, of programs below the root"},
	{"internal/redistest", "./internal/proc", "a server is a child process"},
	{"internal/redistest internal/locktest", "github.com/redis/go-redis/v9", "clients of servers, for tests"},
	{"internal/locktest", "./internal/chaos ./internal/redistest", "clients of its servers, whose connections break"},
	{"internal/locktest", "./internal/redisstore ./internal/store ./locker", "it makes Stores and Lockers for tests, and looks at their keys"},
	{"internal/locktest", "./locker/lockertest", "the adapters' shutdowns need no server of locks"},
	{"internal/chaos", "./internal/proc ./internal/redistest", "a fault may be a signal, or may hit a server"},
}

// forbiddenImports lists imports that are forbidden unless a row of mayImport allows them, each
// with the reason. The first row whose pattern matches the import counts. A package that users
// import needs a row in mayImport for each package of the standard library that this table lists.
var forbiddenImports = []struct{ what, why string }{
	{"C", "latchkit is built without cgo, so it is built everywhere"},
	{"database/sql/...", "databases are sqllock's business"},
	{"expvar", "it registers handlers in the user's program"},
	{"flag", "it puts flags into the user's program"},
	{"log", "what must be said goes to the Observer or to log/slog"},
	{"net/http/...", "HTTP is ginlock's and httplock's business"},
	{"os/exec", "a lock starts no programs"},
	{"os/signal", "signals belong to the user's program"},
	{"testing/...", "tests and what they need stay out of the user's program"},
	{"unsafe", "nothing here needs it"},

	{"github.com/redis/go-redis/... github.com/bsm/redislock/...", "Redis is a Store's business: the engine takes any Store, in " +
		"open.go alone it makes one; adapters and observers take any locker.Locker"},
	{"./internal/redisstore ./internal/quorum ./internal/scriptless", "a Store is known to the constructors in locker/open.go, and to no other Store below it"},
	{"go.opentelemetry.io/otel/sdk/... go.opentelemetry.io/otel/exporters/...", "instrumentation uses the API, the rest is the program's choice; " +
		"a test that needs it belongs into internal/tests"},
	{"go.opentelemetry.io/...", "what is observed goes through locker.Observer, which otel implements"},
	{"./ginlock/... ./grpclock/... ./asynqlock/... ./sqllock/...", "no adapter knows another one: what two of them need belongs below locker"},
	{"./otel/...", "observing is optional: it is handed in as a locker.Observer"},
	{"./locker/lockertest ./internal/store/storetest", "it is for tests, and imports testing"},
	{"./locker", "users and adapters are above the engine, Stores are below it: a Store knows package store"},
	{"./internal/calls", "calls are the business of the engine and of Stores"},
	{"./internal/...", "what is internal has few users, and each of them has a reason"},
}

func checkImports(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	all := packages(t, tree)
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		known := false
		for _, row := range mayImport {
			known = known || slices.Contains(strings.Fields(row.importer), dir)
		}
		if !known {
			problems = append(problems, fmt.Sprintf("package %s has no row in mayImport (internal/archtest/imports_test.go): "+
				"add one with what it imports besides the standard library, each with its reason", dir))
			continue
		}
		for _, file := range all[dir] {
			for _, imported := range importsOf(t, tree, file) {
				if why := reasonAgainst(dir, file, imported); why != "" {
					problems = append(problems, fmt.Sprintf("%s imports %s: %s. If it must be, add it to the rows of mayImport with the reason.", file, imported, why))
				}
			}
		}
	}
	return problems
}

// reasonAgainst returns the reason why a file of one package must not import another package, or ""
// if the import is allowed.
func reasonAgainst(dir, file, imported string) string {
	for _, row := range mayImport {
		who := strings.Fields(row.importer)
		if (row.importer == "*" || slices.Contains(who, dir) || slices.Contains(who, file)) && matches(row.what, imported) {
			return ""
		}
	}
	std := !strings.Contains(strings.Split(imported, "/")[0], ".")
	if std && !public(dir) {
		return ""
	}
	for _, b := range forbiddenImports {
		if matches(b.what, imported) {
			return b.why
		}
	}
	if std {
		return ""
	}
	return "a dependency is a decision, and the default answer is no"
}

// matches reports whether a list of patterns contains an import path. A pattern is "x", or "x/..."
// for x and all packages below x.
func matches(patterns, imported string) bool {
	return slices.ContainsFunc(strings.Fields(patterns), func(pattern string) bool {
		base, below := strings.CutSuffix(pattern, "/...")
		return imported == base || below && strings.HasPrefix(imported, base+"/")
	})
}

// importsOf returns the imports of a file. A package of this module has the form "./x".
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
		text := "package p\n"
		for _, i := range imported {
			text += "import _ " + strconv.Quote(i) + "\n"
		}
		return text
	}
	expect(t, checkImports(t, treeOf(map[string]string{
		"go.mod":                           "module " + modulePath + "\n",
		"locker/open.go":                   source("context", "github.com/redis/go-redis/v9", modulePath+"/internal/redisstore"),
		"locker/engine.go":                 source("log/slog", "github.com/redis/go-redis/v9"),
		"locker/acquire.go":                source(modulePath+"/internal/redisstore", modulePath+"/internal/calls"),
		"locker/keeper.go":                 source("log", "testing"),
		"locker/keeper_windows.go":         source("golang.org/x/sys/windows"),
		"locker/lease.go":                  source(modulePath + "/locker/lockertest"),
		"locker/lease_test.go":             source(modulePath+"/locker/lockertest", "testing"),
		"internal/store/store.go":          source(modulePath+"/locker", "github.com/redis/go-redis/v9"),
		"internal/store/storetest/laws.go": source("testing", "testing/synctest", modulePath+"/locker"),
		"internal/redisstore/a.go":         source(modulePath+"/internal/calls", modulePath+"/internal/quorum"),
		"ginlock/ginlock.go":               source("net/http", "github.com/gin-gonic/gin", modulePath+"/locker"),
		"ginlock/guard.go":                 source("github.com/redis/go-redis/v9", modulePath+"/sqllock"),
		"otel/trace.go":                    source("go.opentelemetry.io/otel/sdk/trace"),
		"kafkalock/kafkalock.go":           source("context"),
		"nested/go.mod":                    "module " + modulePath + "/nested\n",
		"nested/free.go":                   source("github.com/jackc/pgx/v5"),
		"internal/proc/proc.go":            source("os/exec", "testing"),
		"locker/testdata/nobody.go":        source("github.com/jackc/pgx/v5"),
	})),
		"locker/engine.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"locker/acquire.go imports ./internal/redisstore: a Store is known to the constructors",
		"locker/keeper.go imports log: what must be said",
		"locker/keeper.go imports testing: tests",
		"locker/keeper_windows.go imports golang.org/x/sys/windows: a dependency is a decision",
		"locker/lease.go imports ./locker/lockertest: it is for tests",
		"internal/store/store.go imports ./locker: users and adapters are above the engine",
		"internal/store/store.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"internal/redisstore/a.go imports ./internal/quorum: a Store is known to the constructors",
		"ginlock/guard.go imports github.com/redis/go-redis/v9: Redis is a Store's business",
		"ginlock/guard.go imports ./sqllock: no adapter knows another one",
		"otel/trace.go imports go.opentelemetry.io/otel/sdk/trace: instrumentation uses the API",
		"package kafkalock has no row in mayImport",
	)
}
