package otellock_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// linked returns the links of a span as text, such as "holder=a". ids has the names of the linked
// spans.
func linked(s sdktrace.ReadOnlySpan, ids map[trace.SpanID]string) string {
	var links []string
	for _, l := range s.Links() {
		role := ""
		for _, a := range l.Attributes {
			if a.Key == "latchkit.link.role" {
				role = a.Value.AsString()
			}
		}
		name, known := ids[l.SpanContext.SpanID()]
		if !known {
			name = "a span that nobody knows"
		}
		links = append(links, role+"="+name)
	}
	slices.Sort(links)
	return strings.Join(links, " ")
}

// service is one process that has its own tracer.
type service struct {
	*telemetry
	lock *locker.Engine
}

// asks starts a span with this name, and acquires order:42 in it, on a separate goroutine. The
// lease arrives on the returned channel.
func (s *service) asks(t *testing.T, name string) chan *locker.Lease {
	got := make(chan *locker.Lease, 1)
	ctx, span := s.tracer.Start(t.Context(), name)
	go func() {
		defer span.End()
		lease, err := s.lock.Acquire(ctx, locker.Rule{Key: "order:42"})
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	return got
}

// acquires returns the spans "acquire order" of some services, by the names of their parent
// spans.
func acquires(services ...*service) (byName map[string]sdktrace.ReadOnlySpan, ids map[trace.SpanID]string) {
	around, byName, ids := make(map[trace.SpanID]string), make(map[string]sdktrace.ReadOnlySpan), make(map[trace.SpanID]string)
	for _, s := range services {
		for _, span := range s.spans.Ended() {
			around[span.SpanContext().SpanID()] = span.Name()
		}
	}
	for _, s := range services {
		for _, span := range s.spans.Ended() {
			if span.Name() == "acquire order" {
				name := around[span.Parent().SpanID()]
				byName[name], ids[span.SpanContext().SpanID()] = span, name
			}
		}
	}
	return byName, ids
}

// inQueue waits until want processes wait for the key.
func (s *service) inQueue(t *testing.T, want int) {
	t.Helper()
	await(t, "the waiter stands in the queue", func() bool {
		info, err := s.lock.Inspect(t.Context(), "order:42")
		return err == nil && info.Waiters == want
	})
}

// chain makes four callers, named a, b, c and d, acquire the same key, each in a span with its
// name. a and d use the service one, and b and c use the service two. While a holds the key, b
// and c begin to wait. While b holds the key, d begins to wait. Then each holder releases the
// key.
func chain(t *testing.T, await func(), one, two *service) {
	first := <-one.asks(t, "a")
	b := two.asks(t, "b")
	await()
	c := two.asks(t, "c")
	await()
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	second := <-b
	d := one.asks(t, "d")
	await()
	for _, next := range []chan *locker.Lease{c, d} {
		if err := second.Release(t.Context()); err != nil {
			t.Error(err)
		}
		second = <-next
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantChain has the links that the spans of chain must have.
var wantChain = map[string]string{
	"a": "",
	"b": "holder=a released_by=a",
	"c": "released_by=b",          // checkChain leaves out the link to the holder, because b was asking the server when c came
	"d": "holder=b released_by=b", // at the server, a streak has the name of its first holder
}

func checkChain(t *testing.T, one, two *service) {
	t.Helper()
	spans, ids := acquires(one, two)
	for name, want := range wantChain {
		s := spans[name]
		if s == nil {
			t.Fatalf("there is no acquire of %s", name)
		}
		got := linked(s, ids)
		if name == "c" {
			_, got, _ = strings.Cut(got, " ")
		}
		if got != want {
			t.Errorf("%s links to %q, want %q", name, got, want)
		}
		attrs := textWithout(nil, s.Attributes())
		if streak := strings.Contains(attrs, "handoff.streak=1"); streak != (name == "c") {
			t.Errorf("%s: %s", name, attrs)
		}
		if fenced := strings.Contains(attrs, "holder.fence=N"); fenced != (name != "a") {
			t.Errorf("%s does not show the holder's fence: %s", name, attrs)
		}
		if strings.Contains(attrs, "same_trace") {
			t.Errorf("%s: %s", name, attrs)
		}
	}
}

func TestAWaiterLinksToItsHolderAndToWhoeverReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := lockertest.NewMemory()
		one := &service{telemetry: newTelemetry(t, sdktrace.AlwaysSample())}
		two := &service{telemetry: newTelemetry(t, sdktrace.AlwaysSample())}
		one.lock = lockertest.NewLocker(t, backend, locker.WithObserver(one.observer))
		two.lock = lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(two.observer))
		chain(t, synctest.Wait, one, two)
		synctest.Wait()
		checkChain(t, one, two)
	})
}

// replicated starts a server with a replica.
func replicated(t *testing.T) *redistest.Server {
	t.Helper()
	server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	redistest.Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(server.Port()))
	client := server.Client(t)
	await(t, "the replica follows", func() bool { return client.Wait(t.Context(), 1, time.Second).Val() == 1 })
	return server
}

// The span of a waiter links to its holder's span. This test uses real servers, and each kind of
// lock.
func TestAWaiterLinksToItsHolderOnRedis(t *testing.T) {
	server := redistest.Start(t)
	followed := sync.OnceValue(func() *redistest.Server { return replicated(t) })
	nodes := sync.OnceValue(func() (all []locker.Client) {
		for range 3 {
			all = append(all, redistest.Start(t).Client(t))
		}
		if err := locker.EnrollRedlock(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		return all
	})
	for name, tc := range map[string]struct {
		open func(o locker.Observer) (*locker.Engine, error)
		want string // the links of the waiter's span; default: holder=a released_by=a
	}{
		"single": {open: func(o locker.Observer) (*locker.Engine, error) {
			return locker.New(server.Client(t), locker.WithObserver(o))
		}},
		"acknowledged by a replica": {open: func(o locker.Observer) (*locker.Engine, error) {
			patient := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }
			return locker.New(followed().Client(t, patient), locker.WithReplicaAck(1, 5*time.Second), locker.WithObserver(o))
		}},
		"read-write": {open: func(o locker.Observer) (*locker.Engine, error) {
			return locker.NewReadWrite(server.Client(t), locker.WithObserver(o), locker.WithPrefix("rw:"))
		}},
		// On a quorum, a waiter polls, so it does not learn who has released the key.
		"quorum": {want: "holder=a", open: func(o locker.Observer) (*locker.Engine, error) {
			return locker.NewRedlock(nodes(), locker.WithObserver(o))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			services := [2]*service{}
			for i := range services {
				services[i] = &service{telemetry: newTelemetry(t, sdktrace.AlwaysSample())}
				var err error
				if services[i].lock, err = tc.open(services[i].observer); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = services[i].lock.Close(context.Background()) })
			}
			one, two := services[0], services[1]
			first := <-one.asks(t, "a")
			b := two.asks(t, "b")
			if name == "quorum" { // there is no queue
				await(t, "the waiter waits", func() bool {
					return slices.ContainsFunc(two.measured(t), func(line string) bool {
						return strings.HasPrefix(line, "waiter.active") && strings.HasSuffix(line, ": 1")
					})
				})
			} else {
				one.inQueue(t, 1)
			}
			if err := first.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := (<-b).Release(t.Context()); err != nil {
				t.Error(err)
			}
			await(t, "all spans have ended", func() bool {
				spans, _ := acquires(one, two)
				return spans["a"] != nil && spans["b"] != nil
			})
			spans, ids := acquires(one, two)
			for name, want := range map[string]string{"a": "", "b": cmp.Or(tc.want, wantChain["b"])} {
				if got := linked(spans[name], ids); got != want {
					t.Errorf("%s links to %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestAHolderThatIsNotSampledAndOneWithoutLinksAreNotLinkedTo(t *testing.T) {
	for name, tc := range map[string]struct {
		sampler sdktrace.Sampler
		options []otellock.Option
	}{
		"not sampled":   {sampler: sdktrace.NeverSample()},
		"without links": {sampler: sdktrace.AlwaysSample(), options: []otellock.Option{otellock.WithoutLinks()}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := lockertest.NewMemory()
				holder := newTelemetry(t, tc.sampler, tc.options...)
				waiter := newTelemetry(t, sdktrace.AlwaysSample())
				first := lockertest.NewLocker(t, backend, locker.WithObserver(holder.observer))
				second := lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(waiter.observer))
				lease, err := first.Acquire(t.Context(), locker.Rule{Key: "order:42"})
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Second, func() { _ = lease.Release(context.Background()) })
				if err := locker.Run(t.Context(), second, locker.Rule{Key: "order:42"}, nothing); err != nil {
					t.Fatal(err)
				}
				s := waiter.span(t, "acquire order")
				if len(s.Links()) > 0 || !strings.Contains(textWithout(nil, s.Attributes()), "holder.fence=N") {
					t.Errorf("links %v, attributes %s", s.Links(), textWithout(nil, s.Attributes()))
				}
			})
		})
	}
}

// A semaphore has no single holder. So the span of a waiter links to the holder whose release freed
// the units for the waiter.
func TestAWaiterOfASemaphoreLinksToWhoeverReleased(t *testing.T) {
	server := redistest.Start(t)
	services := [2]*service{}
	for i := range services {
		services[i] = &service{telemetry: newTelemetry(t, sdktrace.AlwaysSample())}
		var err error
		if services[i].lock, err = locker.NewSemaphore(server.Client(t), 2, locker.WithObserver(services[i].observer)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = services[i].lock.Close(context.Background()) })
	}
	one, two := services[0], services[1]
	stays, goes := <-one.asks(t, "stays"), <-one.asks(t, "goes")
	waiter := two.asks(t, "waiter")
	two.inQueue(t, 1)
	if err := goes.Release(t.Context()); err != nil {
		t.Error(err)
	}
	for _, lease := range []*locker.Lease{<-waiter, stays} {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	await(t, "all spans have ended", func() bool { spans, _ := acquires(one, two); return len(spans) == 3 })
	spans, ids := acquires(one, two)
	if got := linked(spans["waiter"], ids); got != "released_by=goes" {
		t.Errorf("the waiter links to %q", got)
	}
}

// The metadata of a holder shows only what its program has set, even if the lease also has a
// traceparent.
func TestTheTraceparentIsNoPartOfTheMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		backend := lockertest.NewMemory()
		l := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer), locker.WithMetadata(nil))
		var recorder lockertest.Recorder
		other := lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(&recorder))
		for _, metadata := range []string{"", "host-7", strings.Repeat("ü", 128)} {
			rule := locker.Rule{Key: "order:42", Metadata: metadata, Wait: locker.NoWait}
			lease, err := l.Acquire(t.Context(), rule)
			if err != nil {
				t.Fatal(err)
			}
			info, err := other.Inspect(t.Context(), rule.Key)
			if err != nil || info.Metadata != metadata {
				t.Errorf("Inspect shows %q, %v; want %q", info.Metadata, err, metadata)
			}
			_, err = other.Acquire(t.Context(), rule)
			records := recorder.Records(locker.OpAcquire)
			out := records[len(records)-1].Outcome
			if busy, ok := errors.AsType[*locker.Error](err); !ok || busy.HolderMetadata != metadata || out.HolderMetadata != metadata || out.Met.Traceparent == "" {
				t.Errorf("the one who was refused has %v and %+v", err, out)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A request holds the key, and calls a service that wants the same key. Because the spans of
// the request and of the service belong to one trace, the telemetry can hint at this mistake.
func TestAWaitForTheOwnTraceIsHinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		backend := lockertest.NewMemory()
		caller := lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer), locker.WithMetadata(func(context.Context) string { return holderName }))
		callee := lockertest.NewLocker(t, backend.NewProcess(), locker.WithObserver(tel.observer))
		ctx, span := tel.tracer.Start(t.Context(), "request")
		defer span.End()
		err := locker.Run(ctx, caller, locker.Rule{Key: "order:42", Name: "outer"}, func(ctx context.Context) error {
			return locker.Run(locker.Detach(ctx), callee, locker.Rule{Key: "order:42", Name: "inner", Wait: time.Second}, nothing)
		})
		if err == nil {
			t.Fatal("the inner call got the lock")
		}
		if s := textWithout(nil, tel.span(t, "acquire inner").Attributes()); !strings.Contains(s, "holder.same_trace=true") {
			t.Error(s)
		}
		if found := tel.logs.linesWith("under the same trace", `"latchkit.lock.holder.metadata":"`+holderName, `"trace_id":"`+span.SpanContext().TraceID().String()); len(found) != 1 {
			t.Errorf("logged is %q", tel.logs.lines)
		}
	})
}

// Services that have the same salt export the same hash for a key.
func TestAKeyIsToldFromOthersByItsHash(t *testing.T) {
	salt := []byte("a secret of all services of ours")
	hash := func(key string, opts ...otellock.Option) string {
		tel := newTelemetry(t, sdktrace.AlwaysSample(), opts...)
		_, end := tel.observer.Begin(t.Context(), locker.OpAcquire, locker.Rule{Key: key, Name: "order"})
		end(locker.Outcome{Result: locker.ResultAcquired})
		for _, a := range tel.span(t, "acquire order").Attributes() {
			if a.Key == "latchkit.lock.key.hash" {
				return a.Value.AsString()
			}
		}
		t.Fatal("there is no hash")
		return ""
	}
	one := hash("order:1", otellock.WithKeySalt(salt))
	if len(one) != 16 || one != hash("order:1", otellock.WithKeySalt(salt)) {
		t.Errorf("hash %q and %q", one, hash("order:1", otellock.WithKeySalt(salt)))
	}
	random, other := hash("order:1"), hash("order:1")
	if one == hash("order:2", otellock.WithKeySalt(salt)) || one == random || random == other {
		t.Error("another key, or another salt, has the same hash")
	}
}

func TestOptionsRefuseWhatCannotBeMeant(t *testing.T) {
	for name, o := range map[string]otellock.Option{
		"WithKeySalt": otellock.WithKeySalt([]byte("short")), `WithServer("", 6379)`: otellock.WithServer("", 6379),
		`WithServer("a", 65536)`: otellock.WithServer("a", 65536),
	} {
		if _, err := otellock.New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
