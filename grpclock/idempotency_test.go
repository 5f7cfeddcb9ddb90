package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// payments is a server whose method Place is idempotent, with the idempotency key in the metadata.
type payments struct {
	runs   atomic.Int32
	client shop.ShopClient
	store  *lockertest.Memory
}

func newPayments(t *testing.T, i grpclock.Idempotency, handler func(ctx context.Context, o *shop.Order) (*shop.Receipt, error), opts ...grpclock.Option) *payments {
	t.Helper()
	p := &payments{store: lockertest.NewMemory()}
	if i.Store == nil {
		i.Store = idempotency.NewMemory()
	}
	p.client = serve(t, setup{
		locker: lockertest.NewLocker(t, p.store),
		rules: grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {
			Key: "order:{req.order_id}", Idempotency: "pay:{meta.x-tenant}:{meta.idempotency-key}", Wait: time.Minute,
		}}),
		opts: append(opts, grpclock.WithIdempotency(i)),
		service: &service{unary: func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
			p.runs.Add(1)
			if handler != nil {
				return handler(ctx, o)
			}
			return receipt(ctx), nil
		}},
	})
	return p
}

func keyed(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-tenant", "acme", "idempotency-key", name)
}

func TestARepeatedCallGetsTheFirstAnswer(t *testing.T) {
	p := newPayments(t, grpclock.Idempotency{}, func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-charge", "ch_1"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "3"))
		return receipt(ctx), nil
	})
	order := &shop.Order{OrderId: "42"}
	var first *shop.Receipt
	for i := range 3 {
		var header, trailer metadata.MD
		r, err := p.client.Place(keyed(t.Context(), "k1"), order, grpc.Header(&header), grpc.Trailer(&trailer))
		want(t, err, codes.OK, "")
		if i == 0 {
			first = r
			if r.GetKey() != "order:42" {
				t.Errorf("the handler runs under %q, want the lock of its own key", r.GetKey())
			}
		}
		if r.GetFence() != first.GetFence() || strings.Join(header.Get("x-charge"), ",") != "ch_1" || strings.Join(trailer.Get("x-cost"), ",") != "3" {
			t.Errorf("answer %d is %v with %v and %v, want that of the first: %v", i, r, header, trailer, first)
		}
		if replayed := len(header.Get(grpclock.ReplayedKey)) == 1; replayed != (i > 0) {
			t.Errorf("answer %d is marked as repeated: %v", i, replayed)
		}
	}
	if n := p.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
	if _, err := p.client.Place(keyed(t.Context(), "k2"), order); err != nil || p.runs.Load() != 2 {
		t.Errorf("another request: %v, %d runs", err, p.runs.Load())
	}
	_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "43"})
	want(t, err, codes.InvalidArgument, grpclock.ReasonKeyReused)
	_, err = p.client.Place(t.Context(), order)
	want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey)
}

func TestARepeatedAnswerNeedsNoLock(t *testing.T) {
	p := newPayments(t, grpclock.Idempotency{}, nil)
	if _, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"}); err != nil {
		t.Fatal(err)
	}
	p.store.Occupy("order:42", 0)
	p.store.Occupy("idempotency:pay:acme:k1", 0)
	_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
	want(t, err, codes.OK, "")
}

func TestWhichAnswersAreRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(ctx context.Context) (*shop.Receipt, error)
		i      grpclock.Idempotency
		runs   int32
		second codes.Code
		reason string
	}{
		"a failure that would repeat itself": {answer: failing(codes.FailedPrecondition), runs: 1, second: codes.FailedPrecondition},
		"a failure that may pass":            {answer: failing(codes.Unavailable), runs: 2, second: codes.Unavailable},
		"as Storable says": {answer: failing(codes.Unavailable), runs: 1, second: codes.Unavailable,
			i: grpclock.Idempotency{Storable: func(code codes.Code) bool { return code == codes.Unavailable }}},
		"one that is too large": {answer: func(context.Context) (*shop.Receipt, error) {
			return &shop.Receipt{Key: strings.Repeat("x", 65<<10)}, nil
		}, runs: 1, second: codes.AlreadyExists, reason: grpclock.ReasonDone},
		"one that is just small enough": {answer: func(context.Context) (*shop.Receipt, error) {
			return &shop.Receipt{Key: strings.Repeat("x", 65<<10)}, nil
		}, runs: 1, i: grpclock.Idempotency{MaxResponse: 66 << 10}},
		"none that the handler discards": {answer: func(ctx context.Context) (*shop.Receipt, error) {
			a, ok := idempotency.FromContext(ctx)
			if !ok {
				return nil, errors.New("there is no Attempt in the context")
			}
			a.Discard()
			return receipt(ctx), nil
		}, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPayments(t, tc.i, func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) { return tc.answer(ctx) })
			_, first := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
			_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
			want(t, err, tc.second, tc.reason)
			if first != nil && status.Convert(first).Message() != status.Convert(err).Message() {
				t.Errorf("the answers are %v and %v", first, err)
			}
			if n := p.runs.Load(); n != tc.runs {
				t.Errorf("the handler ran %d times, want %d", n, tc.runs)
			}
		})
	}
}

func failing(code codes.Code) func(context.Context) (*shop.Receipt, error) {
	return func(context.Context) (*shop.Receipt, error) { return nil, status.Error(code, "no") }
}

// When a client has disconnected, its handler finishes nevertheless. So the client's retry finds
// the answer.
func TestAHandlerFinishesWhenItsClientHasLeft(t *testing.T) {
	entered, gone := make(chan struct{}), make(chan struct{})
	p := newPayments(t, grpclock.Idempotency{}, func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
		close(entered)
		<-gone
		return receipt(ctx), ctx.Err()
	})
	ctx, cancel := context.WithCancel(keyed(t.Context(), "k1"))
	first := make(chan error, 1)
	go func() {
		_, err := p.client.Place(ctx, &shop.Order{OrderId: "42"})
		first <- err
	}()
	<-entered
	cancel()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	close(gone)
	r, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
	want(t, err, codes.OK, "")
	if r.GetFence() == 0 || p.runs.Load() != 1 {
		t.Errorf("%v after %d runs", r, p.runs.Load())
	}
}

// A handler may set metadata after its client has disconnected. This is no error, so the handler
// finishes, and the client's retry finds the answer and the metadata.
func TestAHandlerSetsMetadataWhenItsClientHasLeft(t *testing.T) {
	for name, set := range map[string]func(context.Context, metadata.MD) error{
		"SetHeader": grpc.SetHeader, "SendHeader": grpc.SendHeader, "SetTrailer": grpc.SetTrailer,
	} {
		t.Run(name, func(t *testing.T) {
			entered, left := make(chan struct{}, 2), make(chan struct{})
			leave := sync.OnceFunc(func() { close(left) })
			p := newPayments(t, grpclock.Idempotency{}, func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
				entered <- struct{}{}
				<-left
				return receipt(ctx), set(ctx, metadata.Pairs("x-paid", "yes"))
			}, grpclock.WithFilter(func(ctx context.Context, _ string) bool {
				context.AfterFunc(ctx, leave) // the server knows that the client has left
				return true
			}))
			ctx, cancel := context.WithCancel(keyed(t.Context(), "k1"))
			go func() { <-entered; cancel() }()
			_, err := p.client.Place(ctx, &shop.Order{OrderId: "42"})
			want(t, err, codes.Canceled, "")
			var header, trailer metadata.MD
			_, err = p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"}, grpc.Header(&header), grpc.Trailer(&trailer))
			want(t, err, codes.OK, "")
			if got := metadata.Join(header, trailer).Get("x-paid"); len(got) != 1 || p.runs.Load() != 1 {
				t.Errorf("%q after %d runs", got, p.runs.Load())
			}
		})
	}
}

// When the inner lock refuses a call, the refusal is not stored.
func TestARefusalIsNotRemembered(t *testing.T) {
	p := newPayments(t, grpclock.Idempotency{}, nil, grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.Wait = locker.NoWait }))
	p.store.Occupy("order:42", 0)
	_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
	p.store.Free("order:42")
	_, err = p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
	want(t, err, codes.OK, "")
	if n := p.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

func TestManyCallsWithOneKeyRunTheHandlerOnceOnRedis(t *testing.T) {
	p := newPayments(t, grpclock.Idempotency{Store: idempotency.NewRedis(redistest.Shared(t).Client(t), idempotency.WithPrefix(t.Name()+":"))}, nil)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
			want(t, err, codes.OK, "")
		})
	}
	all.Wait()
	if n := p.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// brokenStore is a Store that fails at one of its steps.
type brokenStore struct {
	idempotency.Store
	begin, save error
}

func (s brokenStore) Swap(ctx context.Context, key string, old, next idempotency.Record, lifetime time.Duration) (idempotency.Record, error) {
	switch {
	case s.begin != nil && next.Open:
		return idempotency.Record{}, s.begin
	case s.save != nil && !next.Open:
		return idempotency.Record{}, s.save
	}
	return s.Store.Swap(ctx, key, old, next, lifetime)
}

func TestAStoreThatFails(t *testing.T) {
	full := errors.New("OOM command not allowed")
	for name, tc := range map[string]struct {
		store brokenStore
		opts  []grpclock.Option
		code  codes.Code
		why   string
		runs  int32
	}{
		"before the work":               {brokenStore{begin: full}, nil, codes.Unavailable, grpclock.ReasonUnavailable, 0},
		"before the work, failing open": {brokenStore{begin: full}, []grpclock.Option{grpclock.WithFailOpen()}, codes.OK, "", 1},
		"after the work":                {brokenStore{save: full}, nil, codes.OK, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			tc.store.Store = idempotency.NewMemory()
			var seen []string
			p := newPayments(t, grpclock.Idempotency{Store: tc.store}, nil, append(tc.opts, grpclock.WithObserve(func(_ context.Context, p *grpclock.Problem) {
				seen = append(seen, p.Reason)
			}))...)
			_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
			want(t, err, tc.code, tc.why)
			if p.runs.Load() != tc.runs || fmt.Sprint(seen) != "["+grpclock.ReasonUnavailable+"]" {
				t.Errorf("%d runs, observed %q", p.runs.Load(), seen)
			}
		})
	}
}

func TestAPanicLeavesNoAnswer(t *testing.T) {
	var panics atomic.Bool
	panics.Store(true)
	store := lockertest.NewMemory()
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store),
		rules:  grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{meta.idempotency-key}"}}),
		opts:   []grpclock.Option{grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()})},
		outer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			defer func() {
				if recover() != nil {
					err = status.Error(codes.Internal, "recovered")
				}
			}()
			return handler(ctx, req)
		}},
		service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
			if panics.Load() {
				panic("handler")
			}
			return receipt(ctx), nil
		}},
	})
	if _, err := client.Place(keyed(t.Context(), "k1"), &shop.Order{}); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if store.Len() != 0 {
		t.Error("the panic left a lock")
	}
	panics.Store(false)
	if _, err := client.Place(keyed(t.Context(), "k1"), &shop.Order{}); err != nil {
		t.Error(err)
	}
}

// undoing is a Transactor that only counts how often it was told to roll back.
type undoing struct {
	idempotency.Store
	undone *atomic.Int32
}

func (u undoing) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	err := work(ctx)
	if err != nil {
		u.undone.Add(1)
	}
	return err
}

// The lock of the order is lost, but the handler has paid. So the repeated call must not pay again,
// unless a Transactor has undone the payment.
func TestWorkThatIsDoneIsNotRepeatedAlthoughALockWasLost(t *testing.T) {
	var undone atomic.Int32
	for name, tc := range map[string]struct {
		store        idempotency.Store
		answer       error
		runs, undone int32
	}{
		"done":                     {idempotency.NewMemory(), nil, 1, 0},
		"undone":                   {undoing{idempotency.NewMemory(), &undone}, nil, 2, 1},
		"failed, and may not pass": {idempotency.NewMemory(), status.Error(codes.NotFound, "no"), 2, 0},
		"failed, and rolled back":  {undoing{idempotency.NewMemory(), &undone}, status.Error(codes.NotFound, "no"), 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			undone.Store(0)
			var p *payments
			p = newPayments(t, grpclock.Idempotency{Store: tc.store}, func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
				if a, _ := idempotency.FromContext(ctx); a == nil {
					t.Error("there is no Attempt in the context")
				} else if _, interrupted := a.Interrupted(); interrupted {
					t.Error("a run that has ended counts as interrupted")
				}
				if p.runs.Load() > 1 {
					return receipt(ctx), nil
				}
				_ = grpc.SetTrailer(ctx, metadata.Pairs("x-charge", "ch_1"))
				p.store.Steal("order:42")
				return receipt(ctx), tc.answer
			})
			_, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"})
			want(t, err, codes.Aborted, grpclock.ReasonLost)
			p.store.Free("order:42")
			var trailer metadata.MD
			r, err := p.client.Place(keyed(t.Context(), "k1"), &shop.Order{OrderId: "42"}, grpc.Trailer(&trailer))
			want(t, err, codes.OK, "")
			if replayed := len(trailer.Get("x-charge")) == 1; replayed != (tc.runs == 1) || r.GetKey() != "order:42" || len(trailer.Get("grpc-retry-pushback-ms")) > 0 {
				t.Errorf("the repeated call got %v with %v", r, trailer)
			}
			if p.runs.Load() != tc.runs || undone.Load() != tc.undone {
				t.Errorf("%d runs, %d undone; want %d, %d", p.runs.Load(), undone.Load(), tc.runs, tc.undone)
			}
		})
	}
}
