package connectlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/latchkit/latchkit/contrib/connectlock"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

const theShop = "latchkit.shop.v1.Shop"

// protocols are the protocols of connect-go's clients.
var protocols = map[string][]connect.ClientOption{
	"connect":  nil,
	"gRPC":     {connect.WithGRPC()},
	"gRPC-Web": {connect.WithGRPCWeb()},
}

// handlers are the handlers that a test runs under locks.
type handlers struct {
	outer  connect.UnaryInterceptorFunc // runs before the locks
	place  func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error)
	simple func(ctx context.Context, order *shop.Order) (*shop.Receipt, error) // instead of place
	wait   func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error)
	watch  func(ctx context.Context, r *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error
	fill   func(ctx context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error)
	talk   func(ctx context.Context, s *connect.BidiStream[shop.Order, shop.Receipt]) error
}

// serve starts a real server, with HTTP/2.
func serve(t *testing.T, l locker.Locker, h handlers, rules *grpclock.Rules, opts ...grpclock.Option) *httptest.Server {
	t.Helper()
	locks, err := connectlock.NewInterceptor(l, rules, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := rules.Bind(connectlock.Services(theShop)); err != nil {
		t.Fatal(err)
	}
	with := connect.WithInterceptors(locks)
	if h.outer != nil {
		with = connect.WithInterceptors(h.outer, locks)
	}
	mux := http.NewServeMux()
	if h.place != nil {
		mux.Handle(shop.Shop_Place_FullMethodName, connect.NewUnaryHandler(shop.Shop_Place_FullMethodName, h.place, with))
	}
	if h.simple != nil {
		mux.Handle(shop.Shop_Place_FullMethodName, connect.NewUnaryHandlerSimple(shop.Shop_Place_FullMethodName, h.simple, with))
	}
	if h.wait != nil {
		mux.Handle(shop.Shop_Wait_FullMethodName, connect.NewUnaryHandler(shop.Shop_Wait_FullMethodName, h.wait, with))
	}
	if h.watch != nil {
		mux.Handle(shop.Shop_Watch_FullMethodName, connect.NewServerStreamHandler(shop.Shop_Watch_FullMethodName, h.watch, with))
	}
	if h.fill != nil {
		mux.Handle(shop.Shop_Fill_FullMethodName, connect.NewClientStreamHandler(shop.Shop_Fill_FullMethodName, h.fill, with))
	}
	if h.talk != nil {
		mux.Handle(shop.Shop_Talk_FullMethodName, connect.NewBidiStreamHandler(shop.Shop_Talk_FullMethodName, h.talk, with))
	}
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1000}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func client(s *httptest.Server, procedure string, opts ...connect.ClientOption) *connect.Client[shop.Order, shop.Receipt] {
	return connect.NewClient[shop.Order, shop.Receipt](s.Client(), s.URL+procedure, opts...)
}

func receipt(ctx context.Context) *shop.Receipt {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return &shop.Receipt{}
	}
	return &shop.Receipt{Fence: lease.Fence(), Key: lease.Key()}
}

func place(ctx context.Context, _ *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
	return connect.NewResponse(receipt(ctx)), nil
}

// want checks how a call has ended. The code 0 stands for success.
func want(t *testing.T, err error, code connect.Code, reason string) {
	t.Helper()
	if code == 0 {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if got, _ := connectlock.Reason(err); connect.CodeOf(err) != code || got != reason {
		t.Errorf("%v with the reason %q, want %v with %q", err, got, code, reason)
	}
}

func TestAUnaryCallRunsUnderItsLock(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			s := serve(t, lockertest.NewLocker(t, store), handlers{place: place}, grpclock.FromDescriptors())
			c := client(s, shop.Shop_Place_FullMethodName, opts...)
			r, err := c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			if err != nil || r.Msg.GetKey() != "order:42" || r.Msg.GetFence() == 0 {
				t.Fatal(r, err)
			}
			if store.Len() != 0 {
				t.Error("the call is over, and the lock is held")
			}
			store.Occupy("order:42", 0)
			_, err = c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			want(t, err, connect.CodeAborted, grpclock.ReasonBusy)
			if d, ok := connectlock.RetryAfter(err); !ok || d <= 0 {
				t.Errorf("the advice is %v, %v", d, ok)
			}
			var failure *connect.Error
			if !errors.As(err, &failure) || failure.Meta().Get("Retry-After") == "" || failure.Meta().Get("Grpc-Retry-Pushback-Ms") == "" {
				t.Errorf("the metadata is %v", failure.Meta())
			}
			if strings.Contains(err.Error(), "42") {
				t.Errorf("the error shows the key: %v", err)
			}
			_, err = c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
			want(t, err, connect.CodeInvalidArgument, grpclock.ReasonInvalidKey)
		})
	}
}

func TestStreamsRunUnderTheirLocks(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			s := serve(t, lockertest.NewLocker(t, store), handlers{
				watch: func(ctx context.Context, _ *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
					return s.Send(receipt(ctx))
				},
				fill: func(ctx context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
					for s.Receive() {
					}
					return connect.NewResponse(receipt(ctx)), s.Err()
				},
				talk: func(ctx context.Context, s *connect.BidiStream[shop.Order, shop.Receipt]) error {
					return s.Send(receipt(ctx))
				},
			}, grpclock.FromDescriptors())
			for range 2 { // the second call must get the lock that the first call has released
				watched, err := client(s, shop.Shop_Watch_FullMethodName, opts...).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
				if err != nil || !watched.Receive() || watched.Msg().GetKey() != "order:42" || watched.Receive() || watched.Err() != nil {
					t.Errorf("watch: %v, %v", err, watched.Err())
				}
				fill := client(s, shop.Shop_Fill_FullMethodName, opts...).CallClientStream(t.Context())
				if err := fill.Send(&shop.Order{OrderId: "42"}); err != nil {
					t.Fatal(err)
				}
				if r, err := fill.CloseAndReceive(); err != nil || r.Msg.GetKey() != "order:42" {
					t.Errorf("fill: %v, %v", r, err)
				}
				talk := client(s, shop.Shop_Talk_FullMethodName, opts...).CallBidiStream(t.Context())
				talk.RequestHeader().Set("X-Tenant", "acme")
				if err := talk.Send(nil); err != nil {
					t.Fatal(err)
				}
				if r, err := talk.Receive(); err != nil || r.GetKey() != "talk:acme" {
					t.Errorf("talk: %v, %v", r, err)
				}
				_ = talk.CloseRequest()
				_ = talk.CloseResponse()
			}
			store.Occupy("order:42", 0)
			busy := client(s, shop.Shop_Fill_FullMethodName, opts...).CallClientStream(t.Context())
			_ = busy.Send(&shop.Order{OrderId: "42"}) // Send fails if the stream was refused already
			_, err := busy.CloseAndReceive()
			want(t, err, connect.CodeAborted, grpclock.ReasonBusy)
		})
	}
}

func TestALostLockEndsTheHandler(t *testing.T) {
	store := lockertest.NewMemory()
	s := serve(t, lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), handlers{
		place: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			store.Steal("order:42")
			<-ctx.Done()
			return place(ctx, r)
		},
		fill: func(ctx context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
			s.Receive()
			store.Steal("order:43")
			<-ctx.Done()
			return connect.NewResponse(receipt(ctx)), nil // this handler ignores the end of its context
		},
	}, grpclock.FromDescriptors())
	_, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	want(t, err, connect.CodeAborted, grpclock.ReasonLost)
	fill := client(s, shop.Shop_Fill_FullMethodName).CallClientStream(t.Context())
	if err := fill.Send(&shop.Order{OrderId: "43"}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := fill.CloseAndReceive(); ended <- err }()
	want(t, <-ended, connect.CodeAborted, grpclock.ReasonLost)
}

func TestARepeatedCallGetsTheFirstAnswer(t *testing.T) {
	runs := 0
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
		place: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			runs++
			if r.Msg.GetExpress() {
				return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("no express"))
			}
			return place(ctx, r)
		},
	}, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{meta.idempotency-key}"}}),
		grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()}))
	for i := range 2 {
		req := connect.NewRequest(&shop.Order{OrderId: "42"})
		req.Header().Set("Idempotency-Key", "k1")
		r, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), req)
		if err != nil || r.Msg.GetFence() == 0 {
			t.Fatal(r, err)
		}
		if replayed := r.Header().Get(grpclock.ReplayedKey) == "true"; replayed != (i > 0) {
			t.Errorf("answer %d is marked as repeated: %v", i, replayed)
		}
	}
	for range 2 {
		req := connect.NewRequest(&shop.Order{OrderId: "42", Express: true})
		req.Header().Set("Idempotency-Key", "k2")
		_, err := client(s, shop.Shop_Place_FullMethodName, connect.WithProtoJSON()).CallUnary(t.Context(), req)
		var failure *connect.Error
		if !errors.As(err, &failure) || failure.Code() != connect.CodeFailedPrecondition || failure.Message() != "no express" {
			t.Errorf("the stored failure is %v", err)
		}
	}
	if runs != 2 {
		t.Errorf("the handler ran %d times", runs)
	}
}

func TestTheHandlersOwnErrorComesBackUnchanged(t *testing.T) {
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
		place: func(context.Context, *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			err := connect.NewError(connect.CodeNotFound, errors.New("no such order"))
			err.Meta().Set("X-Own", "1")
			return nil, err
		},
	}, grpclock.FromDescriptors())
	_, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	var failure *connect.Error
	if !errors.As(err, &failure) || failure.Code() != connect.CodeNotFound || failure.Message() != "no such order" || failure.Meta().Get("X-Own") != "1" {
		t.Errorf("%v", err)
	}
}

func TestMistakesAreFoundAtTheStart(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	if _, err := connectlock.NewInterceptor(nil, grpclock.FromDescriptors()); err == nil {
		t.Error("no Locker is accepted")
	}
	for name, want := range map[string]string{"no.such.Service": "no method of the server has a rule", theShop: ""} {
		rules := grpclock.FromDescriptors()
		if _, err := connectlock.NewInterceptor(l, rules); err != nil {
			t.Fatal(err)
		}
		err := rules.Bind(connectlock.Services(name))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAServerWhoseRulesAreNotBoundRefusesEveryCall(t *testing.T) {
	locks, err := connectlock.NewInterceptor(lockertest.NewLocker(t, lockertest.NewMemory()), grpclock.FromDescriptors())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(shop.Shop_Place_FullMethodName, connect.NewUnaryHandler(shop.Shop_Place_FullMethodName, place, connect.WithInterceptors(locks)))
	server := httptest.NewServer(mux)
	defer server.Close()
	_, err = client(server, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	want(t, err, connect.CodeInternal, grpclock.ReasonMisconfigured)
}

// Clients cancel their calls at random moments, and some clients are waiting for their lock then.
// Nevertheless, no lock stays held.
func TestStreamsThatClientsLeaveKeepNoLock(t *testing.T) {
	store := lockertest.NewMemory()
	s := serve(t, lockertest.NewLocker(t, store), handlers{
		watch: func(ctx context.Context, _ *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
			for ctx.Err() == nil {
				if err := s.Send(receipt(ctx)); err != nil {
					return err
				}
			}
			return ctx.Err()
		},
		fill: func(_ context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
			for s.Receive() {
			}
			return connect.NewResponse(&shop.Receipt{}), s.Err()
		},
	}, grpclock.FromDescriptors())
	watch, fill := client(s, shop.Shop_Watch_FullMethodName), client(s, shop.Shop_Fill_FullMethodName)
	var all sync.WaitGroup
	for worker := range 10 {
		all.Go(func() {
			for i := range 30 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				order := &shop.Order{OrderId: fmt.Sprint(i % 7)} // there are few keys, so some calls wait for other calls
				if worker%2 == 0 {
					if w, err := watch.CallServerStream(ctx, connect.NewRequest(order)); err == nil {
						for w.Receive() {
						}
						_ = w.Close()
					}
				} else {
					f := fill.CallClientStream(ctx)
					_ = f.Send(order) // Send fails when the time of the call is over
					<-ctx.Done()
					_, _ = f.CloseAndReceive()
				}
				cancel()
			}
		})
	}
	all.Wait()
	for deadline := time.Now().Add(time.Minute); store.Len() != 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d locks are left", store.Len())
		}
	}
}

func TestAClientsInterceptorDoesNothing(t *testing.T) {
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{place: place}, grpclock.FromDescriptors())
	locks, err := connectlock.NewInterceptor(lockertest.NewLocker(t, lockertest.NewMemory()), grpclock.FromDescriptors())
	if err != nil {
		t.Fatal(err)
	}
	c := client(s, shop.Shop_Place_FullMethodName, connect.WithInterceptors(locks))
	if _, err := c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"})); err != nil {
		t.Error(err)
	}
}

// The lock of the order is lost, but the handler has paid. So the repeated call must not pay again.
func TestWorkThatIsDoneIsNotRepeatedAlthoughALockWasLost(t *testing.T) {
	runs, store := 0, lockertest.NewMemory()
	s := serve(t, lockertest.NewLocker(t, store), handlers{
		place: func(ctx context.Context, _ *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			runs++
			store.Steal("order:42")
			response := connect.NewResponse(receipt(ctx))
			response.Header().Set("X-Charge", "ch_1")
			return response, nil
		},
	}, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "order:{req.order_id}", Idempotency: "pay:{req.order_id}"}}),
		grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()}))
	_, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	want(t, err, connect.CodeAborted, grpclock.ReasonLost)
	store.Free("order:42")
	r, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	if err != nil || r.Msg.GetKey() != "order:42" || r.Header().Get("X-Charge") != "ch_1" || runs != 1 {
		t.Errorf("%v, %v after %d runs", r, err, runs)
	}
}
