package connectlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A refusal belongs to the trailers of a stream or to its error, and must not be sent in both.
func TestARefusedStreamHasOnePushback(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			store.Occupy("order:42", 0)
			s := serve(t, lockertest.NewLocker(t, store), handlers{watch: flood}, grpclock.FromDescriptors())
			w, err := client(s, shop.Shop_Watch_FullMethodName, opts...).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			if err != nil {
				t.Fatal(err)
			}
			w.Receive()
			want(t, w.Err(), connect.CodeAborted, grpclock.ReasonBusy)
			var failure *connect.Error
			if !errors.As(w.Err(), &failure) || len(failure.Meta().Values("Grpc-Retry-Pushback-Ms")) != 1 {
				t.Errorf("the metadata is %v", failure.Meta())
			}
			_ = w.Close()
		})
	}
}

// Metadata that a stream's handler sets in gRPC's way arrives with the first message.
func TestAStreamSendsTheHeaderThatItsHandlerSets(t *testing.T) {
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
		watch: func(ctx context.Context, _ *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
			return errors.Join(grpc.SetHeader(ctx, metadata.Pairs("x-set", "1")), s.Send(receipt(ctx)))
		},
	}, grpclock.FromDescriptors())
	w, err := client(s, shop.Shop_Watch_FullMethodName).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
	if err != nil || !w.Receive() || w.ResponseHeader().Get("X-Set") != "1" {
		t.Errorf("%v, %v", err, w.ResponseHeader())
	}
	_ = w.Close()
}

// A stored answer has the metadata that the handler has put into its response or into its error.
func TestARepeatedAnswerHasTheHandlersMetadata(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			rules, stores := answers()
			s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
				place: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
					if r.Msg.GetExpress() {
						err := connect.NewError(connect.CodeFailedPrecondition, errors.New("no express"))
						err.Meta()["X-Own"] = []string{"1", "2"}
						return nil, err
					}
					response := connect.NewResponse(receipt(ctx))
					response.Header()["X-Own"] = []string{"1", "2"}
					response.Trailer().Set("X-Last-Bin", connect.EncodeBinaryHeader([]byte{0, 255}))
					return response, nil
				},
			}, rules, stores)
			for range 2 {
				r, err := client(s, shop.Shop_Place_FullMethodName, opts...).CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
				if err != nil {
					t.Fatal(err)
				}
				if own, last := r.Header()["X-Own"], r.Trailer().Get("X-Last-Bin"); strings.Join(own, " ") != "1 2" || last != connect.EncodeBinaryHeader([]byte{0, 255}) {
					t.Errorf("the answer has %v and %v", r.Header(), r.Trailer())
				}
				_, err = client(s, shop.Shop_Place_FullMethodName, opts...).CallUnary(t.Context(), connect.NewRequest(&shop.Order{Express: true}))
				var failure *connect.Error
				if !errors.As(err, &failure) || !slices.Equal(failure.Meta()["X-Own"], []string{"1", "2"}) {
					t.Errorf("the failure is %v", err)
				}
			}
		})
	}
}

// answers are the rules and the option of a server that stores the answers of Place, one for orders
// and one for express orders.
func answers() (*grpclock.Rules, grpclock.Option) {
	return grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{req.express}"}}),
		grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()})
}

// A handler can also set metadata beside its response, through CallInfo. The answer has it once,
// and so has the repeated answer. What an interceptor outside of the locks has set is of its own
// call.
func TestARepeatedAnswerHasTheMetadataOfCallInfo(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			rules, stores := answers()
			var calls atomic.Int32
			s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
				outer: func(next connect.UnaryFunc) connect.UnaryFunc {
					return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
						info, _ := connect.CallInfoForHandlerContext(ctx)
						info.ResponseHeader().Set("X-Call", strconv.Itoa(int(calls.Add(1))))
						info.ResponseHeader().Set("X-Both", strconv.Itoa(int(calls.Load())))
						return next(ctx, r)
					}
				},
				simple: func(ctx context.Context, order *shop.Order) (*shop.Receipt, error) {
					info, _ := connect.CallInfoForHandlerContext(ctx)
					info.ResponseHeader().Add("X-Both", "own")
					info.ResponseHeader()["X-Own"] = []string{"1", "2"}
					info.ResponseTrailer().Set("X-Last", "3")
					if !order.GetExpress() {
						return receipt(ctx), nil
					}
					err := connect.NewError(connect.CodeFailedPrecondition, errors.New("no express"))
					err.Meta().Set("X-Why", "4")
					return nil, err
				},
			}, rules, stores)
			c := client(s, shop.Shop_Place_FullMethodName, opts...)
			for range 2 {
				r, err := c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
				if err != nil {
					t.Fatal(err)
				}
				wantHeader(t, r.Header(), map[string]string{"X-Own": "1 2", "X-Call": strconv.Itoa(int(calls.Load())), "X-Both": strconv.Itoa(int(calls.Load())) + " own"})
				wantHeader(t, r.Trailer(), map[string]string{"X-Last": "3"})
				_, err = c.CallUnary(t.Context(), connect.NewRequest(&shop.Order{Express: true}))
				wantMeta(t, err, map[string]string{"X-Own": "1 2", "X-Last": "3", "X-Why": "4", "X-Call": strconv.Itoa(int(calls.Load())), "X-Both": strconv.Itoa(int(calls.Load())) + " own"})
			}
		})
	}
}

// wantHeader checks the values of these names, which are separated by spaces.
func wantHeader(t *testing.T, h http.Header, want map[string]string) {
	t.Helper()
	for name, values := range want {
		if got := strings.Join(h[name], " "); got != values {
			t.Errorf("%s is %q, want %q, in %v", name, got, values, h)
		}
	}
}

// wantMeta checks the metadata of a failure.
func wantMeta(t *testing.T, err error, want map[string]string) {
	t.Helper()
	failure, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	wantHeader(t, failure.Meta(), want)
}

// A failure has the metadata that its handler has set in gRPC's way, as an answer has. The error of
// the handler may be shared by all calls, so it does not change.
func TestAFailureHasTheMetadataThatItsHandlerSets(t *testing.T) {
	for name, opts := range protocols {
		for _, stored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stored: %v", name, stored), func(t *testing.T) {
				rules, option := answers()
				if !stored {
					rules, option = grpclock.FromDescriptors(), grpclock.WithWait(time.Second)
				}
				shared := connect.NewError(connect.CodeFailedPrecondition, errors.New("no express"))
				shared.Meta().Set("X-Why", "1")
				s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
					place: func(ctx context.Context, _ *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
						_ = grpc.SetHeader(ctx, metadata.Pairs("x-head", "2"))
						_ = grpc.SetTrailer(ctx, metadata.Pairs("x-last-bin", "\x00\xff"))
						return nil, shared
					},
				}, rules, option)
				for range 2 {
					_, err := client(s, shop.Shop_Place_FullMethodName, opts...).CallUnary(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
					wantMeta(t, err, map[string]string{"X-Why": "1", "X-Head": "2", "X-Last-Bin": connect.EncodeBinaryHeader([]byte{0, 255})})
				}
				if len(shared.Meta()) != 1 {
					t.Errorf("the error of the handler has %v", shared.Meta())
				}
			})
		}
	}
}

// A cookie belongs to one client, so a repeated answer does not contain the cookie. The first
// answer has all headers of the handler, also those that are no valid metadata.
func TestARepeatedAnswerHasNoCookie(t *testing.T) {
	rules, stores := answers()
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
		place: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			response, err := connect.NewResponse(receipt(ctx)), connect.NewError(connect.CodeFailedPrecondition, errors.New("no express"))
			for _, h := range []http.Header{response.Header(), err.Meta()} {
				h.Set("Set-Cookie", "session=1")
				h.Set("X-Bad-Bin", "###")
			}
			if r.Msg.GetExpress() {
				return nil, err
			}
			return response, nil
		},
	}, rules, stores)
	for _, want := range []map[string]string{{"Set-Cookie": "session=1", "X-Bad-Bin": "###"}, {"Set-Cookie": "", "X-Bad-Bin": ""}} {
		r, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
		if err != nil {
			t.Fatal(err)
		}
		wantHeader(t, r.Header(), want)
		_, err = client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{Express: true}))
		wantMeta(t, err, want)
	}
}

// The answer of a handler that lost its lock is not sent, whether the handler succeeds or fails. So
// its metadata is not sent either.
func TestARefusalHasNoHeaderOfTheHandler(t *testing.T) {
	for name, express := range map[string]bool{"succeeds": false, "fails": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := lockertest.NewMemory()
			rules, stores := answers()
			s := serve(t, lockertest.NewLocker(t, store), handlers{
				place: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
					attempt, _ := idempotency.FromContext(ctx)
					store.Steal(attempt.Lease().Key())
					<-ctx.Done()
					info, _ := connect.CallInfoForHandlerContext(ctx)
					response := connect.NewResponse(receipt(ctx))
					for _, h := range []http.Header{response.Header(), response.Trailer(), info.ResponseHeader(), info.ResponseTrailer()} {
						h.Set("X-Own", "of the handler")
					}
					_ = grpc.SetHeader(ctx, metadata.Pairs("x-own", "of the handler"))
					_ = grpc.SetTrailer(ctx, metadata.Pairs("x-own", "of the handler", "grpc-retry-pushback-ms", "7"))
					if r.Msg.GetExpress() {
						return nil, context.Cause(ctx)
					}
					return response, nil
				},
			}, rules, stores)
			_, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{Express: express}))
			want(t, err, connect.CodeAborted, grpclock.ReasonLost)
			wantMeta(t, err, map[string]string{"X-Own": "", "Grpc-Retry-Pushback-Ms": "-1"})
		})
	}
}

// What a stream's handler has set belongs to its answer, also if it has sent no message yet.
func TestARefusedStreamHasNoMetadataOfItsHandler(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := lockertest.NewMemory()
			s := serve(t, lockertest.NewLocker(t, store), handlers{
				watch: func(ctx context.Context, r *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
					store.Steal("order:42")
					<-ctx.Done()
					s.ResponseHeader().Set("X-Own", "of the handler")
					s.ResponseTrailer().Set("X-Own", "of the handler")
					_ = grpc.SetHeader(ctx, metadata.Pairs("x-own", "of the handler"))
					_ = grpc.SetTrailer(ctx, metadata.Pairs("x-own", "of the handler"))
					return nil
				},
			}, grpclock.FromDescriptors())
			w, err := client(s, shop.Shop_Watch_FullMethodName, opts...).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			if err != nil {
				t.Fatal(err)
			}
			for w.Receive() {
			}
			want(t, w.Err(), connect.CodeAborted, grpclock.ReasonLost)
			wantMeta(t, w.Err(), map[string]string{"X-Own": "", "Grpc-Retry-Pushback-Ms": "-1"})
			wantHeader(t, w.ResponseHeader(), map[string]string{"X-Own": ""})
			_ = w.Close()
		})
	}
}

// The handler sees the invalid value, so the next value must not become the key.
func TestAnInvalidBinaryHeaderIsNotSkippedByTheKey(t *testing.T) {
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{place: place},
		grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "order:{meta.x-id-bin}"}}))
	for _, tc := range []struct {
		values []string
		key    string
	}{
		{[]string{connect.EncodeBinaryHeader([]byte("a"))}, "order:a"},
		{[]string{"###", connect.EncodeBinaryHeader([]byte("decoy"))}, ""},
		{[]string{connect.EncodeBinaryHeader([]byte("a")), "###"}, "order:a"},
	} {
		r := connect.NewRequest(&shop.Order{})
		r.Header()["X-Id-Bin"] = tc.values
		switch res, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), r); {
		case tc.key == "":
			want(t, err, connect.CodeInvalidArgument, grpclock.ReasonInvalidKey)
		case err != nil || res.Msg.GetKey() != tc.key:
			t.Errorf("%q: %v, %v", tc.values, res, err)
		}
	}
}

// A client could choose that a handler finishes without its lock, by sending no message.
func TestAStreamWithoutAMessageDoesNotFinishWithoutItsLock(t *testing.T) {
	for name, opts := range protocols {
		s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
			fill: func(ctx context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
				for s.Receive() {
				}
				return connect.NewResponse(receipt(ctx)), s.Err()
			},
		}, grpclock.FromDescriptors())
		_, err := client(s, shop.Shop_Fill_FullMethodName, opts...).CallClientStream(t.Context()).CloseAndReceive()
		if err == nil {
			t.Errorf("%s: the handler has finished without its lock", name)
		}
		want(t, err, connect.CodeInvalidArgument, grpclock.ReasonInvalidKey)
	}
}
