package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestOneCallRunsAndTheOtherIsTurnedAway(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, lockertest.NewMemory()),
		service: &service{unary: func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
			if o.GetExpress() {
				close(entered)
				<-finish
			}
			return receipt(ctx), nil
		}},
	})
	first := make(chan error, 1)
	go func() {
		_, err := client.Place(t.Context(), &shop.Order{OrderId: "42", Express: true})
		first <- err
	}()
	<-entered
	_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
	_, err = client.Place(t.Context(), &shop.Order{OrderId: "43"})
	want(t, err, codes.OK, "")
	if r, err := client.Read(t.Context(), &shop.Order{OrderId: "42"}); err != nil || r.GetKey() != "" {
		t.Errorf("a method without a rule: %v, %v", r, err)
	}
	close(finish)
	want(t, <-first, codes.OK, "")
	if r, err := client.Place(t.Context(), &shop.Order{OrderId: "42"}); err != nil || r.GetKey() != "order:42" || r.GetFence() == 0 {
		t.Errorf("after the first call: %v, %v", r, err)
	}
}

func TestFiftyCallsRunOneAtATime(t *testing.T) {
	const calls = 50
	sold := 0 // only the lock guards this counter, so the race detector reports two holders at once
	client := serve(t, setup{locker: redisLocker(t), service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
		sold++
		return receipt(ctx), nil
	}}})
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := client.Wait(t.Context(), &shop.Order{OrderId: "42"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if sold != calls {
		t.Errorf("sold %d of %d", sold, calls)
	}
}

// The handler's status comes back unchanged. Work that failed is done again, and work that
// succeeded is not.
func TestWorkThatWasDoneIsNotDoneAgain(t *testing.T) {
	result := status.Error(codes.NotFound, "no such order")
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, lockertest.NewMemory()),
		service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
			return receipt(ctx), result
		}},
	})
	_, err := client.Once(t.Context(), &shop.Order{OrderId: "42"})
	if want(t, err, codes.NotFound, ""); status.Convert(err).Message() != "no such order" {
		t.Error(err)
	}
	result = nil
	_, err = client.Once(t.Context(), &shop.Order{OrderId: "42"})
	want(t, err, codes.OK, "")
	_, err = client.Once(t.Context(), &shop.Order{OrderId: "42"})
	want(t, err, codes.AlreadyExists, grpclock.ReasonDone)
}

func TestAPanicReleasesTheLockAndGoesOn(t *testing.T) {
	var recovered atomic.Int32
	store := lockertest.NewMemory()
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store),
		outer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			defer func() {
				if recover() != nil {
					recovered.Add(1)
					if store.Len() != 0 {
						t.Error("the panic came out of the interceptor before the lock was released")
					}
					err = status.Error(codes.Internal, "panic")
				}
			}()
			return handler(ctx, req)
		}},
		service: &service{unary: func(context.Context, *shop.Order) (*shop.Receipt, error) { panic("handler") }},
	})
	for range 2 {
		if _, err := client.Place(t.Context(), &shop.Order{OrderId: "42"}); status.Code(err) != codes.Internal {
			t.Error(err)
		}
	}
	if recovered.Load() != 2 {
		t.Errorf("%d panics", recovered.Load())
	}
}

func TestAClientThatIsGoneWaitsNoMore(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 0)
	ended := make(chan error, 1)
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store), service: &service{},
		outer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			ended <- err
			return resp, err
		}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = client.Wait(ctx, &shop.Order{OrderId: "42"}) }()
	eventually(t, "the call waits", func() bool { return store.Queued() == 1 })
	cancel()
	want(t, <-ended, codes.Canceled, grpclock.ReasonCallerGone)
	eventually(t, "it has left the queue", func() bool { return store.Queued() == 0 })
}

func TestAClientThatIsGoneDoesNotKeepTheLock(t *testing.T) {
	entered := make(chan struct{})
	client := serve(t, setup{
		locker: redisLocker(t),
		service: &service{unary: func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
			if o.GetExpress() {
				close(entered)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return receipt(ctx), nil
		}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = client.Place(ctx, &shop.Order{OrderId: "42", Express: true}) }()
	<-entered
	_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
	cancel()
	_, err = client.Wait(t.Context(), &shop.Order{OrderId: "42"}) // succeeds long before the TTL of the lease ends
	want(t, err, codes.OK, "")
}

func TestALostLockEndsTheHandlersContextAndTheReplySaysSo(t *testing.T) {
	store := lockertest.NewMemory()
	for name, answer := range map[string]func(ctx context.Context) (*shop.Receipt, error){
		"a handler that gives up":            func(ctx context.Context) (*shop.Receipt, error) { return nil, context.Cause(ctx) },
		"a handler that does not care":       func(ctx context.Context) (*shop.Receipt, error) { return receipt(ctx), nil },
		"a handler with a status of its own": func(context.Context) (*shop.Receipt, error) { return nil, status.Error(codes.NotFound, "gone") },
	} {
		t.Run(name, func(t *testing.T) {
			var seen error
			client := serve(t, setup{
				locker: lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)),
				outer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					resp, err := handler(ctx, req)
					seen = err
					return resp, err
				}},
				service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
					store.Steal("order:42")
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), locker.ErrLost) {
						t.Errorf("the context ended because of %v", context.Cause(ctx))
					}
					return answer(ctx)
				}},
			})
			var trailer metadata.MD
			_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"}, grpc.Trailer(&trailer))
			want(t, err, codes.Aborted, grpclock.ReasonLost)
			if got := trailer.Get("grpc-retry-pushback-ms"); len(got) != 1 || got[0] != "-1" {
				t.Errorf("the trailer says %q: the call may have done something, and would be repeated", got)
			}
			if p, ok := errors.AsType[*grpclock.Problem](seen); !ok || !errors.Is(seen, locker.ErrLost) || strings.Contains(p.Error(), "42") {
				t.Errorf("an interceptor outside saw %v", seen)
			}
			store.Free("order:42")
		})
	}
}

func TestAWaitHasAnEndByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		rule grpclock.Rule
		opts []grpclock.Option
		want time.Duration
	}{
		"default":            {want: 5 * time.Second},
		"WithWait":           {opts: []grpclock.Option{grpclock.WithWait(time.Second)}, want: time.Second},
		"NoWait":             {opts: []grpclock.Option{grpclock.WithWait(locker.NoWait)}},
		"the rule's":         {rule: grpclock.Rule{Wait: time.Minute}, opts: []grpclock.Option{grpclock.WithWait(time.Second)}, want: time.Minute},
		"a Rule of none":     {opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.Wait = 0 })}, want: 5 * time.Second},
		"a Rule of a minute": {opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.Wait = time.Minute })}, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				store.Occupy("order:42", 0)
				tc.rule.Key = "order:{req.order_id}"
				call := interceptor(t, lockertest.NewLocker(t, store), grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: tc.rule}), tc.opts...)
				began := time.Now()
				_, err := call(t.Context(), shop.Shop_Place_FullMethodName, &shop.Order{OrderId: "42"})
				if waited := time.Since(began); waited != tc.want {
					t.Errorf("waited %v, want %v", waited, tc.want)
				}
				want(t, err, codes.Aborted, grpclock.ReasonBusy)
			})
		})
	}
}

// interceptor returns a function that makes a call through the unary interceptor, without a
// network. So the function can be used in a bubble of synctest, with virtual time. The handler
// returns a Receipt of its lease.
func interceptor(t testing.TB, l locker.Locker, rules *grpclock.Rules, opts ...grpclock.Option) func(ctx context.Context, method string, req any) (*shop.Receipt, error) {
	t.Helper()
	unary, err := grpclock.UnaryServerInterceptor(l, rules, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, method string, req any) (*shop.Receipt, error) {
		resp, err := unary(ctx, req, &grpc.UnaryServerInfo{FullMethod: method, Server: &service{}}, func(ctx context.Context, _ any) (any, error) {
			return receipt(ctx), nil
		})
		r, _ := resp.(*shop.Receipt)
		return r, err
	}
}

func TestAFilterLeavesCallsWithoutALock(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return locker.ErrBusy })
	call := interceptor(t, l, grpclock.FromDescriptors(), grpclock.WithFilter(func(ctx context.Context, method string) bool {
		return method != shop.Shop_Place_FullMethodName
	}))
	if r, err := call(t.Context(), shop.Shop_Place_FullMethodName, &shop.Order{OrderId: "42"}); err != nil || r.GetKey() != "" {
		t.Errorf("%v, %v", r, err)
	}
	_, err := call(t.Context(), shop.Shop_Wait_FullMethodName, &shop.Order{OrderId: "42"})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
}

func TestArgumentsThatMakeNoSenseAreRefusedAtOnce(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return locker.ErrBusy })
	for name, tc := range map[string]struct {
		locker locker.Locker
		opts   []grpclock.Option
		want   string
	}{
		"no Locker":       {nil, nil, "the Locker is nil"},
		"an endless wait": {l, []grpclock.Option{grpclock.WithWait(0)}, "WithWait(0): a wait must have an end"},
		"a wait of -2":    {l, []grpclock.Option{grpclock.WithWait(-2)}, "WithWait(-2ns)"},
		"a short TTL":     {l, []grpclock.Option{grpclock.WithTTL(1)}, "WithTTL(1ns)"},
	} {
		_, unary := grpclock.UnaryServerInterceptor(tc.locker, grpclock.FromDescriptors(), tc.opts...)
		_, stream := grpclock.StreamServerInterceptor(tc.locker, grpclock.FromDescriptors(), tc.opts...)
		_, both := grpclock.ServerOptions(tc.locker, grpclock.FromDescriptors(), tc.opts...)
		for what, err := range map[string]error{"UnaryServerInterceptor": unary, "StreamServerInterceptor": stream, "ServerOptions": both} {
			if err == nil || !strings.HasPrefix(err.Error(), "grpclock: "+what+": "+tc.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
