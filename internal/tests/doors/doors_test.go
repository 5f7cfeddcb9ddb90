package doors_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/optimistic"
	"github.com/latchkit/latchkit/locker/polling"
	otellock "github.com/latchkit/latchkit/otel"
	otelredislock "github.com/latchkit/latchkit/otel/redislock"
	"github.com/latchkit/latchkit/sqllock"
)

// A nil context, function, Locker or client is refused with one clear error where it is given, or
// by a panic that says the same if the function has no error. No nil pointer is followed deep
// inside.
func TestNilIsRefusedAtTheDoor(t *testing.T) {
	gin.SetMode(gin.TestMode)
	w := newWorld(t)
	doors := w.doors()
	for name, fn := range doors {
		t.Run(name, func(t *testing.T) { w.knock(t, reflect.ValueOf(fn)) })
	}
	checkComplete(t, doors)
}

// knock calls fn once for each argument that can be nil, with nil for this argument.
func (w *world) knock(t *testing.T, fn reflect.Value) {
	typ, knocks := fn.Type(), 0
	for i := range typ.NumIn() {
		in := typ.In(i)
		last := typ.IsVariadic() && i == typ.NumIn()-1
		if last {
			in = in.Elem()
		}
		if !nilable(in) {
			continue
		}
		var args []reflect.Value
		for j := range typ.NumIn() {
			switch {
			case j == i:
				args = append(args, reflect.Zero(in))
			case typ.IsVariadic() && j == typ.NumIn()-1:
			default:
				args = append(args, w.value(t, typ.In(j)))
			}
		}
		knocks++
		answer, err := call(fn, args)
		var crash runtime.Error
		switch {
		case errors.As(err, &crash):
			t.Errorf("argument %d, a %v: nil is followed: %v", i, in, err)
		case err == nil:
			t.Errorf("argument %d, a %v: nil is accepted, with %v", i, in, answer)
		case !strings.Contains(err.Error(), "nil"):
			t.Errorf("argument %d, a %v: the error does not say that it is nil: %v", i, in, err)
		}
	}
	if knocks == 0 {
		t.Error("no argument can be nil, so remove the function from the table")
	}
}

// call calls fn, and returns its error or its panic.
func call(fn reflect.Value, args []reflect.Value) (answer []reflect.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if err, ok = r.(error); !ok {
				err = fmt.Errorf("panic: %v", r)
			}
		}
	}()
	answer = fn.Call(args)
	for _, a := range answer {
		if e, ok := reflect.TypeAssert[error](a); ok {
			err = e
		}
	}
	return answer, err
}

func nilable(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer || t.Kind() == reflect.Func || t.Kind() == reflect.Interface && t.NumMethod() > 0
}

// world has a valid value for each type of an argument.
type world struct {
	ctx    context.Context
	values map[reflect.Type]reflect.Value
}

func give[T any](w *world, v T) { w.values[reflect.TypeFor[T]()] = reflect.ValueOf(&v).Elem() }

func (w *world) value(t *testing.T, typ reflect.Type) reflect.Value {
	if v, ok := w.values[typ]; ok {
		return v
	}
	switch typ.Kind() {
	case reflect.Func:
		return reflect.MakeFunc(typ, func([]reflect.Value) (out []reflect.Value) {
			for o := range typ.Outs() {
				out = append(out, reflect.Zero(o))
			}
			return out
		})
	case reflect.Interface, reflect.Pointer:
		t.Fatalf("give a valid %v", typ)
	default:
	}
	return reflect.Zero(typ)
}

func newWorld(t *testing.T) *world {
	w := &world{t.Context(), make(map[reflect.Type]reflect.Value)}
	store := lockertest.NewMemory()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no call may be sent
	t.Cleanup(func() { _ = client.Close() })
	give[context.Context](w, t.Context())
	give[locker.Locker](w, lockertest.NewLocker(t, store))
	give[locker.Store](w, store)
	give[locker.Client](w, client)
	give[redis.UniversalClient](w, client)
	give[redis.Cmdable](w, client)
	give(w, client.Options())
	give(w, new(sql.Tx))
	give[sqllock.Transaction](w, struct{ sqllock.Transaction }{})
	give(w, []locker.Client{client, redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"}), redis.NewClient(&redis.Options{Addr: "127.0.0.1:3"})})
	give(w, idempotency.Request{Rule: locker.Rule{Key: "a"}})
	give(w, redislock.New(client))
	give[idempotency.Store](w, idempotency.NewMemory())
	give(w, locker.Rule{Key: "a"})
	give(w, "a")
	give(w, []string{"a"})
	give(w, []locker.Rule{{Key: "a"}})
	give(w, httplock.Key("k:{query.id}"))
	give(w, httplock.Rules{"GET /": {Key: "k"}})
	give(w, time.Minute)
	give(w, 3)
	give[http.Handler](w, http.NotFoundHandler())
	give[httplock.Mux](w, http.NewServeMux())
	give(w, grpclock.FromMap(grpclock.RuleMap{}))
	give(w, new(sql.DB))
	give[sqllock.Beginner](w, new(sql.DB))
	give[asynq.Handler](w, asynq.NewServeMux())
	give(w, asynq.NewTask("t", nil))
	give(w, asynq.NewClient(asynq.RedisClientOpt{Addr: "127.0.0.1:1"}))
	give(w, asynq.NewInspector(asynq.RedisClientOpt{Addr: "127.0.0.1:1"}))
	give(w, asynq.NewServer(asynq.RedisClientOpt{Addr: "127.0.0.1:1"}, asynq.Config{}))
	give(w, gin.New())
	give[lead.Inspector](w, lockertest.NewLocker(t, store))
	return w
}

// doors are the exported functions with an argument that can be nil. An option is given to its
// constructor.
func (w *world) doors() map[string]any {
	l := w.values[reflect.TypeFor[locker.Locker]()].Interface().(locker.Locker)
	engine := l.(*locker.Engine)
	everything := asynqlock.On("*", asynqlock.Template("k"))
	lease := must(l.Acquire(w.ctx, locker.Rule{Key: "lease"}))
	guard := must(asynqlock.New(l, everything))
	leader := must(lead.New(l, locker.Rule{Key: "leader"}))
	reentrant, striped := must(locker.NewReentrant(l)), must(locker.NewStriped(l, 3))
	db := must(sqllock.New(l, new(sql.DB), sqllock.WithDialect(sqllock.Postgres)))
	wrapped := must(otelredislock.New(redislock.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}))))
	routes := httplock.Rules{"GET /": {Key: "k"}}
	httpRules := must(httplock.FromRules(l, routes))
	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewMemory(), Lifetime: time.Minute}
	web := func(o httplock.Option) error { _, err := httplock.New(l, "k:{query.id}", o); return err }
	ginWeb := func(o httplock.Option) error { _, err := ginlock.New(l, "k:{query.id}", o); return err }
	rpc := func(o grpclock.Option) error {
		_, err := grpclock.UnaryServerInterceptor(l, grpclock.FromMap(nil), o)
		return err
	}
	tasks := func(o asynqlock.Option) error { _, err := asynqlock.New(l, everything, o); return err }
	schedule := func(o asynqlock.SchedulerOption) error {
		build := func(*asynq.SchedulerOpts) (*asynq.Scheduler, error) { return nil, nil }
		return asynqlock.RunScheduler(w.ctx, l, locker.Rule{Key: "a"}, build, o)
	}
	telemetry := func(o otellock.Option) error { _, err := otellock.New(o); return err }
	single := func(o locker.SingleOption) error {
		_, err := locker.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), o)
		return err
	}
	return map[string]any{
		"locker.Check": locker.Check, "locker.Drain": locker.Drain, "locker.Run": locker.Run, "locker.RunAll": locker.RunAll, "locker.New": locker.New,
		"locker.EnrollRedlock": locker.EnrollRedlock, "locker.ReplaceNode": locker.ReplaceNode, "locker.NewRedlock": locker.NewRedlock,
		"locker.NewFromStore": locker.NewFromStore, "locker.NewReadWrite": locker.NewReadWrite, "locker.NewScriptless": locker.NewScriptless,
		"locker.NewSemaphore": locker.NewSemaphore, "locker.Open": locker.Open[*redis.Options], "locker.NewReentrant": locker.NewReentrant, "locker.NewStriped": locker.NewStriped,
		"locker.Engine.Acquire": func(ctx context.Context) error { _, err := engine.Acquire(ctx, locker.Rule{Key: "a"}); return err },
		"locker.Locker.Acquire": func(ctx context.Context) error {
			_, err := reentrant.Acquire(ctx, locker.Rule{Key: "a"})
			_, other := striped.Acquire(ctx, locker.Rule{Key: "a"})
			return errors.Join(err, other)
		},
		"locker.Engine.Drain": engine.Drain, "locker.Engine.Inspect": engine.Inspect,
		"locker.Engine.Keys": engine.Keys, "locker.Engine.Nodes": engine.Nodes, "locker.Engine.Queue": engine.Queue, "locker.Engine.RaiseFence": engine.RaiseFence, "locker.Engine.Revoke": engine.Revoke,
		"locker.Lease.Downgrade": lease.Downgrade, "locker.Lease.Extend": lease.Extend, "locker.Lease.Inspect": lease.Inspect,
		"locker.WithBackoff": func(b locker.Backoff) error { return single(locker.WithBackoff(b)) },

		"idempotency.Keeper.Do": keeper.Do, "idempotency.Remove": idempotency.Remove, "idempotency.NewRedis": idempotency.NewRedis,
		"lead.Run": lead.Run, "lead.New": lead.New, "lead.Leader.Run": leader.Run,
		"lead.Watch": func(ctx context.Context, i lead.Inspector) (err error) {
			for _, err = range lead.Watch(ctx, i, "a") {
				break
			}
			return err
		},
		"lead.Leader.Watch": func(ctx context.Context) (err error) {
			for _, err = range leader.Watch(ctx) {
				break
			}
			return err
		},
		"optimistic.Update": optimistic.Update, "optimistic.UpdateAll": optimistic.UpdateAll,
		"polling.New":       polling.New,
		"polling.Retries":   func(f func() redislock.RetryStrategy) error { return single(locker.WithBackoff(polling.Retries(f))) },
		"otelredislock.New": otelredislock.New, "otelredislock.Client.Obtain": func(ctx context.Context) error {
			_, err := wrapped.Obtain(ctx, "a", time.Minute, nil)
			return err
		},
		"otellock.New": otellock.New,
		"otellock.WithMetricAttributesFn": func(f func(context.Context) []attribute.KeyValue) error {
			return telemetry(otellock.WithMetricAttributesFn(f))
		},
		"otellock.WithSpanAttributesFn": func(f func(context.Context) []attribute.KeyValue) error {
			return telemetry(otellock.WithSpanAttributesFn(f))
		},

		"httplock.New": httplock.New, "httplock.NewIdempotency": httplock.NewIdempotency, "httplock.MustNew": httplock.MustNew, "httplock.MustIdempotency": httplock.MustIdempotency,
		"httplock.FromRules":    httplock.FromRules,
		"httplock.Guard.Handle": func(m httplock.Mux, h http.Handler) { httpRules.Handle(m, "GET /", h) },
		"httplock.Guard.Wrap":   func(h http.Handler) http.Handler { return httpRules.Wrap("GET /", h) },
		"httplock.WithClaims":   func(f func(*http.Request) map[string]any) error { return web(httplock.WithClaims(f)) },
		"httplock.WithClientIP": func(f func(*http.Request) string) error { return web(httplock.WithClientIP(f)) },
		"httplock.WithErrorHandler": func(f func(http.ResponseWriter, *http.Request, *httplock.Problem)) error {
			return web(httplock.WithErrorHandler(f))
		},
		"httplock.WithFilter":      func(f func(*http.Request) bool) error { return web(httplock.WithFilter(f)) },
		"httplock.WithFingerprint": func(f func(*http.Request, []byte) ([]byte, error)) error { return web(httplock.WithFingerprint(f)) },
		"httplock.WithObserve":     func(f func(*http.Request, *httplock.Problem)) error { return web(httplock.WithObserve(f)) },
		"httplock.WithPart":        func(f func(*http.Request) (string, error)) error { return web(httplock.WithPart("p", f)) },
		"httplock.WithRule":        func(f func(*http.Request, *locker.Rule)) error { return web(httplock.WithRule(f)) },
		"httplock.WithStorable":    func(f func(int, http.Header) bool) error { return web(httplock.WithStorable(f)) },
		"httplock.WithStore":       func(s idempotency.Store) error { return web(httplock.WithStore(s)) },
		"httplock.WithSuccess":     func(f func(*http.Request, int) bool) error { return web(httplock.WithSuccess(f)) },

		"ginlock.New": ginlock.New, "ginlock.NewIdempotency": ginlock.NewIdempotency, "ginlock.MustNew": ginlock.MustNew, "ginlock.MustIdempotency": ginlock.MustIdempotency,
		"ginlock.FromRules":        ginlock.FromRules,
		"ginlock.Guard.Mount":      must(ginlock.FromRules(l, routes)).Mount,
		"ginlock.WithClaims":       func(f func(*gin.Context) map[string]any) error { return ginWeb(ginlock.WithClaims(f)) },
		"ginlock.WithErrorHandler": func(f func(*gin.Context, *httplock.Problem)) error { return ginWeb(ginlock.WithErrorHandler(f)) },
		"ginlock.WithFilter":       func(f func(*gin.Context) bool) error { return ginWeb(ginlock.WithFilter(f)) },
		"ginlock.WithFingerprint":  func(f func(*gin.Context, []byte) ([]byte, error)) error { return ginWeb(ginlock.WithFingerprint(f)) },
		"ginlock.WithPart":         func(f func(*gin.Context) (string, error)) error { return ginWeb(ginlock.WithPart("p", f)) },
		"ginlock.WithRule":         func(f func(*gin.Context, *locker.Rule)) error { return ginWeb(ginlock.WithRule(f)) },
		"ginlock.WithSuccess":      func(f func(*gin.Context) bool) error { return ginWeb(ginlock.WithSuccess(f)) },

		"grpclock.ServerOptions": grpclock.ServerOptions, "grpclock.StreamServerInterceptor": grpclock.StreamServerInterceptor, "grpclock.UnaryServerInterceptor": grpclock.UnaryServerInterceptor,
		"grpclock.KeyOf": func(f func(*http.Request) string) { grpclock.KeyOf(f) }, "grpclock.KeysOf": func(f func(*http.Request) []string) { grpclock.KeysOf(f) },
		"grpclock.WithFilter":  func(f func(context.Context, string) bool) error { return rpc(grpclock.WithFilter(f)) },
		"grpclock.WithObserve": func(f func(context.Context, *grpclock.Problem)) error { return rpc(grpclock.WithObserve(f)) },
		"grpclock.WithRule":    func(f func(context.Context, string, any, *locker.Rule)) error { return rpc(grpclock.WithRule(f)) },
		"grpclock.Rules.WithPart": func(f func(context.Context, string) (string, error)) error {
			rules := grpclock.FromMap(grpclock.RuleMap{"/s/m": {Key: "k:{p}"}}).WithPart("p", f)
			_, err := grpclock.UnaryServerInterceptor(l, rules)
			return errors.Join(err, rules.Bind(service{}))
		},

		"asynqlock.New": asynqlock.New, "asynqlock.Guard.Client": func(c *asynq.Client) *asynqlock.Client { return guard.Client(c, nil) }, "asynqlock.Guard.Middleware": guard.Middleware, "asynqlock.Guard.Run": guard.Run,
		"asynqlock.Guard.Line": guard.Line, "asynqlock.Guard.RepairLine": guard.RepairLine, "asynqlock.Guard.Stop": guard.Stop,
		"asynqlock.Key": func(f func(string) string) error { return tasks(asynqlock.On("a", asynqlock.Key(f))) },
		"asynqlock.KeyFunc": func(f func(context.Context, *asynq.Task) (string, error)) error {
			return tasks(asynqlock.On("a", asynqlock.KeyFunc(f)))
		},
		"asynqlock.Adjust": func(f func(context.Context, *asynq.Task, *locker.Rule)) error {
			return tasks(asynqlock.On("a", asynqlock.Template("k"), asynqlock.Adjust(f)))
		},
		"asynqlock.On": func(p asynqlock.Policy) error { return tasks(asynqlock.On("a", asynqlock.Template("k"), p)) },
		"asynqlock.RunScheduler": func(ctx context.Context, l locker.Locker, build func(*asynq.SchedulerOpts) (*asynq.Scheduler, error)) error {
			return asynqlock.RunScheduler(ctx, l, locker.Rule{Key: "a"}, build)
		},
		"asynqlock.WithOnLeading":       func(f func(bool)) error { return schedule(asynqlock.WithOnLeading(f)) },
		"asynqlock.WithSchedulerClient": func(c *asynqlock.Client) error { return schedule(asynqlock.WithSchedulerClient(c)) },
		"asynqlock.WithDecoder":         func(f func(*asynq.Task, any) error) error { return tasks(asynqlock.WithDecoder(f)) },
		"asynqlock.WithWaking":          func(c redis.UniversalClient) error { return tasks(asynqlock.WithWaking(c)) },

		"sqllock.New": func(db sqllock.Beginner) error {
			_, err := sqllock.New(l, db, sqllock.WithDialect(sqllock.Postgres))
			return err
		},
		"sqllock.NewWith": func(begin func(context.Context, *sql.TxOptions) (int, sqllock.Transaction, error)) error {
			_, err := sqllock.NewWith(l, sqllock.Database[int]{Dialect: sqllock.Postgres, Begin: begin})
			return err
		},
		"sqllock.NewAnswers": sqllock.NewAnswers,
		"sqllock.Handle.Do":  db.Do, "sqllock.Handle.DoAll": db.DoAll, "sqllock.Handle.InTx": db.InTx, "sqllock.Handle.InTxWith": db.InTxWith,
		"sqllock.Handle.Migrate": db.Migrate, "sqllock.Handle.Purge": db.Purge, "sqllock.Handle.Repair": db.Repair, "sqllock.Handle.Resolve": db.Resolve,
		"sqllock.Handle.Within":    db.Within,
		"sqllock.Handle.WithinAll": db.WithinAll,
	}
}

// service is a server with one method.
type service struct{}

func (service) GetServiceInfo() map[string]grpc.ServiceInfo {
	return map[string]grpc.ServiceInfo{"s": {Methods: []grpc.MethodInfo{{Name: "m"}}}}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// open are the functions that accept nil, or for which Go's own panic is the clear one.
var open = map[string]string{
	"locker.WithObserver":           "nil is no Observer",
	"locker.WithMetadata":           "nil is no metadata",
	"optimistic.WithObserver":       "nil is no Observer",
	"lead.WithLogger":               "nil is no log",
	"lead.WithOnOverrun":            "nil is no function",
	"store.CapabilitiesOf":          "a nil Store has none",
	"key.Template.Key":              passed,
	"key.Template.Keys":             passed,
	"otellock.WithLogger":           "nil is no log",
	"asynqlock.WithLogger":          "nil is the Logger of slog",
	"asynqlock.WithSchedulerLogger": "nil is the Logger of slog",
	"grpclock.Rules.WithClaims":     "nil means that keys have no claims",
	"sqllock.WithTxOptions":         "nil is the default of database/sql",

	"locker.Lease.Release":  "an error would leave the lock held",
	"locker.Lease.Complete": "an error would leave the lock held",
	"locker.Engine.Close":   "Go's panic comes at once",

	"locker.FromContext": lookup, "locker.LeasesFromContext": lookup, "locker.Detach": lookup, "idempotency.FromContext": lookup,
	"httplock.FromContext": lookup, "httplock.Waited": lookup, "ginlock.FromContext": lookup, "ginlock.Outcome": lookup,
	"sqllock.ClaimFromContext": lookup, "sqllock.TxFromContext": lookup, "asynqlock.Fences": lookup,
	"otellock.Headers.Extract": lookup, "otellock.Headers.Inject": lookup,

	"sqllock.Tx.ExecContext": passed, "sqllock.Tx.PrepareContext": passed, "sqllock.Tx.QueryContext": passed, "sqllock.Tx.QueryRowContext": passed,
	"sqllock.Tx.StmtContext": passed, "sqllock.Tx.Nested": passed, "sqllock.FencedUpdate": passed, "sqllock.Claim.Verify": passed, "sqllock.OnConn": passed,
	"otelredislock.Lock.Obtain": passed, "otelredislock.Lock.Refresh": passed, "otelredislock.Lock.Release": passed,
	"idempotency.Memory.Load": passed, "idempotency.Memory.Swap": passed, "idempotency.Redis.Load": passed, "idempotency.Redis.Swap": passed,
	"locker.Engine.ObserveRequest": passed, "locker.Lease.Observe": passed, "asynqlock.Client.EnqueueContext": passed,
}

// Reasons why a function is in open.
const (
	lookup = "the function reads a value of its argument at once, as ctx.Value does, so Go's panic is at the door"
	passed = "the function passes its argument on at once, unchanged, and the function that gets it decides"
)

var (
	declaration = regexp.MustCompile(`(?m)^func (?:\((?:\w+ )?\*?(\w+)(?:\[\w+\])?\) )?([A-Z]\w*)(?:\[[^\]]*\])?\((.*)$`)
	canBeNil    = regexp.MustCompile(`context\.Context|func\(|\*|Locker|Client|Store\b|Handler|Inspector|Beginner|Mux|Observer|Transaction`)
)

// argumentsOf returns the text before the parenthesis that ends the arguments.
func argumentsOf(text string) string {
	depth := 1
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[:i]
			}
		}
	}
	return text // the arguments end in another line
}

// checkComplete checks that each exported function with an argument that can be nil is in doors or
// in open. It reads the golden files of the exported API.
func checkComplete(t *testing.T, doors map[string]any) {
	files, err := filepath.Glob("../../archtest/api/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	known := make(map[string]bool)
	for _, file := range files {
		if strings.Contains(file, "storetest") || strings.Contains(file, "lockertest") || strings.Contains(file, "lockpb") {
			continue // for tests, or generated
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pkg, _, _ := strings.Cut(strings.TrimPrefix(string(text), "package "), "\n")
		for _, m := range declaration.FindAllStringSubmatch(string(text), -1) {
			name := strings.Join(strings.FieldsFunc(pkg+"."+m[1]+"."+m[2], func(r rune) bool { return r == '.' }), ".")
			known[name] = true
			if canBeNil.MatchString(argumentsOf(m[3])) && doors[name] == nil && open[name] == "" {
				t.Errorf("%s: an argument can be nil, so add the function to the table", name)
			}
		}
	}
	checkOpen(t, open, known)
}

// checkOpen checks that each function in open is known.
func checkOpen(t *testing.T, open map[string]string, known map[string]bool) {
	t.Helper()
	for name := range open {
		if !known[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
