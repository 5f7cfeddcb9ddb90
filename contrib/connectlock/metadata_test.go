package connectlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

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
			}, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{req.express}"}}),
				grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()}))
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

// A cookie belongs to one client, so a repeated answer does not contain the cookie. The first
// answer has all headers of the handler, also those that are no valid metadata.
func TestARepeatedAnswerHasNoCookie(t *testing.T) {
	s := serve(t, lockertest.NewLocker(t, lockertest.NewMemory()), handlers{
		place: func(ctx context.Context, _ *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			response := connect.NewResponse(receipt(ctx))
			response.Header().Set("Set-Cookie", "session=1")
			response.Header().Set("X-Bad-Bin", "###")
			return response, nil
		},
	}, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{req.express}"}}),
		grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()}))
	for n, want := range []struct{ cookie, bad string }{{"session=1", "###"}, {}} {
		r, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
		if err != nil {
			t.Fatal(err)
		}
		if h := r.Header(); h.Get("Set-Cookie") != want.cookie || h.Get("X-Bad-Bin") != want.bad {
			t.Errorf("answer %d has the header %v", n+1, h)
		}
	}
}

// The answer of a handler that lost its lock is not sent, and its header is not sent either.
func TestARefusalHasNoHeaderOfTheHandler(t *testing.T) {
	store := lockertest.NewMemory()
	s := serve(t, lockertest.NewLocker(t, store), handlers{
		place: func(ctx context.Context, _ *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
			attempt, _ := idempotency.FromContext(ctx)
			store.Steal(attempt.Lease().Key())
			<-ctx.Done()
			response := connect.NewResponse(receipt(ctx))
			response.Header().Set("X-Own", "of the handler")
			return response, nil
		},
	}, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Idempotency: "pay:{req.express}"}}),
		grpclock.WithIdempotency(grpclock.Idempotency{Store: idempotency.NewMemory()}))
	_, err := client(s, shop.Shop_Place_FullMethodName).CallUnary(t.Context(), connect.NewRequest(&shop.Order{}))
	var failure *connect.Error
	if !errors.As(err, &failure) || failure.Meta().Get("X-Own") != "" {
		t.Errorf("%v with %v", err, failure.Meta())
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
