package otellock_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// talker is a Shop for which each test defines the method Talk.
type talker struct {
	shop.UnimplementedShopServer
	talk func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error
}

func (s *talker) Talk(stream grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
	return s.talk(stream)
}

// streamIn is a stream whose context contains the span of the call.
type streamIn struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamIn) Context() context.Context { return s.ctx }

// A guarded stream has the same telemetry as a unary call: the result on the span around the
// stream, and one request in the count.
func TestEachEndOfAStreamAndTheTelemetryThatItLeaves(t *testing.T) {
	const key = "order:canary"
	receiveAll := func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt], _ *lockertest.Memory) error {
		for {
			switch _, err := s.Recv(); {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			}
		}
	}
	for name, tc := range map[string]struct {
		rule   grpclock.Rule
		opts   []grpclock.Option
		locker []locker.Option
		before func(backend *lockertest.Memory)
		handle func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt], backend *lockertest.Memory) error
		silent bool // the client keeps the stream open, and sends nothing more

		code   codes.Code
		result string // the attribute result of the stream's span; "": the stream took no lock
	}{
		"released": {handle: receiveAll, result: "acquired"},
		"lost": {
			locker: []locker.Option{locker.WithTTL(60 * time.Millisecond)},
			handle: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt], backend *lockertest.Memory) error {
				if _, err := s.Recv(); err != nil {
					return err
				}
				backend.Steal(key)
				_, err := s.Recv() // the client sends no further message, so only the loss of the lock can end this call
				return err
			},
			silent: true, code: codes.Aborted, result: "lock_lost",
		},
		"busy": {
			rule: grpclock.Rule{Wait: locker.NoWait}, handle: receiveAll,
			before: func(backend *lockertest.Memory) { backend.Occupy(key, 0) },
			code:   codes.Aborted, result: "lock_busy",
		},
		"the lock server is down, and the rule fails open": {
			opts: []grpclock.Option{grpclock.WithFailOpen()}, handle: receiveAll,
			before: func(backend *lockertest.Memory) {
				backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
			},
			result: "unguarded",
		},
		"the handler receives nothing": {
			handle: func(grpc.BidiStreamingServer[shop.Order, shop.Receipt], *lockertest.Memory) error { return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
			backend := lockertest.NewMemory()
			if tc.before != nil {
				tc.before(backend)
			}
			l := lockertest.NewLocker(t, backend, append(tc.locker, locker.WithObserver(tel.observer))...)
			tc.rule.Key = "order:{req.order_id}"
			rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Talk_FullMethodName: tc.rule})
			guard, err := grpclock.StreamServerInterceptor(l, rules, tc.opts...)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			client := place(t, rules, grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				defer close(ended)
				ctx, span := tel.tracer.Start(ss.Context(), "call")
				defer span.End()
				return handler(srv, &streamIn{ss, ctx})
			}, guard), &talker{talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error { return tc.handle(s, backend) }})

			if err := talk(t, client, tc.silent); status.Code(err) != tc.code {
				t.Errorf("the stream ended with %v", err)
			}
			<-ended
			if tc.result == "" {
				if counts := tel.requests(t); len(counts) > 0 {
					t.Errorf("counted are %v of a stream that took no lock", counts)
				}
			} else {
				tel.surrounded(t, tel.span(t, "call"), tc.result)
				if counts := tel.requests(t); counts["order "+tc.result] != 1 {
					t.Errorf("counted are %v, want one %s", counts, tc.result)
				}
			}
			if spans, points := tel.everything(t); strings.Contains(spans+points, "canary") {
				t.Errorf("the key was shown: %s", spans+points)
			}
		})
	}
}

// talk sends one order, and returns how the stream has ended. If silent is true, the client
// does not close its side of the stream.
func talk(t *testing.T, client shop.ShopClient, silent bool) error {
	t.Helper()
	stream, err := client.Talk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&shop.Order{OrderId: "canary"}) // fails when the handler has returned already
	if !silent {
		_ = stream.CloseSend()
	}
	if _, err = stream.Recv(); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
