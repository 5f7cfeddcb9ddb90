package otellock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// orders is a Shop for which each test defines the method Place.
type orders struct {
	shop.UnimplementedShopServer
	place func(ctx context.Context) error
}

func (s *orders) Place(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
	return &shop.Receipt{}, s.place(ctx)
}

// Each row of grpclock's table of replies is tested by a call over a real connection. The test
// checks the reply of the call, the result on the span around the call, and the count.
func TestEachReplyOfAGRPCCallAndTheResultThatItLeaves(t *testing.T) {
	const canary = "canary"
	refusal := func(err error) func(*lockertest.Memory) {
		return func(backend *lockertest.Memory) { backend.Fail(locker.OpAcquire, &store.Refusal{Err: err}) }
	}
	occupied := func(backend *lockertest.Memory) { backend.Occupy("order:"+canary, 0) }
	for name, tc := range map[string]struct {
		rule    grpclock.Rule
		locker  []locker.Option
		opts    []grpclock.Option
		before  func(backend *lockertest.Memory)
		closed  bool
		bare    bool                                                        // the Locker does not support readers
		order   string                                                      // the order's id; default: the canary
		handle  func(ctx context.Context, backend *lockertest.Memory) error // what the handler does; default: it returns nil
		patient time.Duration                                               // the client's deadline

		code   codes.Code
		reason string // "": no ErrorInfo
		retry  bool   // the reply has a RetryInfo, and a pushback of the same time in ms
		field  string // the field that the BadRequest names
	}{
		"OK": {},
		"the handler's own error": {
			handle: func(context.Context, *lockertest.Memory) error { return status.Error(codes.NotFound, "no such order") },
			code:   codes.NotFound,
		},
		"busy": {
			before: occupied, rule: grpclock.Rule{Wait: locker.NoWait},
			code: codes.Aborted, reason: grpclock.ReasonBusy, retry: true,
		},
		"busy until the wait is over": {
			before: occupied, rule: grpclock.Rule{Wait: 20 * time.Millisecond},
			code: codes.Aborted, reason: grpclock.ReasonBusy, retry: true,
		},
		"too many waiters": {
			before: occupied, rule: grpclock.Rule{Wait: time.Minute}, locker: []locker.Option{locker.WithMaxWaiters(1)},
			code: codes.ResourceExhausted, reason: grpclock.ReasonTooManyWaiters, retry: true,
		},
		"done already": {
			rule: grpclock.Rule{OnceFor: time.Hour, Wait: locker.NoWait}, code: codes.AlreadyExists, reason: grpclock.ReasonDone,
		},
		"a field is missing": {
			order: " ", code: codes.InvalidArgument, reason: grpclock.ReasonInvalidKey, field: "order_id",
		},
		"a key that is none": {
			opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.Key = "latchkit:x" })},
			code: codes.InvalidArgument, reason: grpclock.ReasonInvalidKey,
		},
		"a rule that is none": {
			opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.TTL = -1 })},
			code: codes.Internal, reason: grpclock.ReasonMisconfigured,
		},
		"a mode that the Locker has not": {
			// The Rule is made for each call, because Bind would refuse a fixed Rule of this kind
			// at start-up.
			opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) { r.Mode = locker.Shared })},
			bare: true, code: codes.Internal, reason: grpclock.ReasonMisconfigured,
		},
		"unavailable": {
			before: refusal(errors.New("out of memory")), code: codes.Unavailable, reason: grpclock.ReasonUnavailable, retry: true,
		},
		"closed": {closed: true, code: codes.Unavailable, reason: grpclock.ReasonClosed, retry: true},
		"lost": {
			locker: []locker.Option{locker.WithTTL(60 * time.Millisecond)},
			handle: func(ctx context.Context, backend *lockertest.Memory) error {
				backend.Steal("order:" + canary)
				<-ctx.Done()
				return nil
			},
			code: codes.Aborted, reason: grpclock.ReasonLost,
		},
		"expired": {
			rule: grpclock.Rule{EndAfter: 50 * time.Millisecond},
			handle: func(ctx context.Context, _ *lockertest.Memory) error {
				<-ctx.Done()
				return ctx.Err()
			},
			code: codes.Aborted, reason: grpclock.ReasonLost,
		},
		"the caller's deadline is over": {
			before: occupied, rule: grpclock.Rule{Wait: time.Minute}, patient: 50 * time.Millisecond,
			code: codes.DeadlineExceeded, reason: grpclock.ReasonCallerGone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
			backend := lockertest.NewMemory()
			if tc.before != nil {
				tc.before(backend)
			}
			var kind store.Store = backend
			if tc.bare {
				kind = struct{ store.Store }{backend}
			}
			l := lockertest.NewLocker(t, kind, append(tc.locker, locker.WithObserver(tel.observer))...)
			if tc.closed {
				if err := l.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			tc.rule.Key = "order:{req.order_id|text}"
			rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: tc.rule})
			unary, err := grpclock.UnaryServerInterceptor(l, rules, tc.opts...)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{}, 2)
			client := place(t, rules, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				ctx, span := tel.tracer.Start(ctx, "call")
				defer func() { span.End(); ended <- struct{}{} }()
				if tc.patient > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.patient)
					defer cancel()
				}
				return handler(ctx, req)
			}, unary), &orders{place: func(ctx context.Context) error {
				if tc.handle == nil {
					return nil
				}
				return tc.handle(ctx, backend)
			}})
			order := &shop.Order{OrderId: canary}
			if tc.order != "" {
				order.OrderId = strings.TrimSpace(tc.order)
			}
			ctx := t.Context()
			var trailer metadata.MD
			switch name {
			case "too many waiters": // the second of two calls is refused
				waits, giveUp := context.WithCancel(ctx)
				defer giveUp()
				both := make(chan error, 2)
				for range 2 {
					go func() {
						var mine metadata.MD
						_, err := client.Place(waits, order, grpc.Trailer(&mine))
						if status.Code(err) != codes.Canceled {
							trailer = mine
						}
						both <- err
					}()
				}
				err = <-both
			case "done already":
				if _, err := client.Place(ctx, order); err != nil {
					t.Fatal(err)
				}
				<-ended
				fallthrough
			default:
				_, err = client.Place(ctx, order, grpc.Trailer(&trailer))
			}
			<-ended

			reason, _ := grpclock.Reason(err)
			if status.Code(err) != tc.code || reason != tc.reason {
				t.Errorf("%v with the reason %q", err, reason)
			}
			after, field, rule := details(err)
			told := strings.Join(trailer.Get("grpc-retry-pushback-ms"), " ")
			want := ""
			switch {
			case tc.retry:
				want = fmt.Sprint(after.Milliseconds())
			case tc.reason != "":
				want = "-1" // gRPC does not repeat the call
			}
			if told != want || (after > 0) != tc.retry || field != tc.field {
				t.Errorf("RetryInfo %v, pushback %q, field %q", after, told, field)
			}
			if tc.reason != "" && rule != "order" {
				t.Errorf("the ErrorInfo has the rule %q", rule)
			}
			result := cmp.Or(strings.ToLower(tc.reason), "acquired")
			if !slices.ContainsFunc(tel.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool {
				return s.Name() == "call" && strings.Contains(text(s.Attributes())+" ", " result="+result+" ")
			}) {
				t.Errorf("no span around a call has the result %s", result)
			}
			if counts := tel.requests(t); counts["order "+result] == 0 {
				t.Errorf("counted are %v, want the result %s", counts, result)
			}
			spans, points := tel.everything(t)
			if all := spans + points + fmt.Sprint(err, status.Convert(err).Details(), trailer); strings.Contains(all, canary) {
				t.Errorf("the key was shown: %s", all)
			}
		})
	}
}

// place starts a server, and returns a client of this server.
func place(t *testing.T, rules *grpclock.Rules, chain grpc.ServerOption, service shop.ShopServer) shop.ShopClient {
	t.Helper()
	server := grpc.NewServer(chain)
	shop.RegisterShopServer(server, service)
	if err := rules.Bind(server); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return shop.NewShopClient(conn)
}

// details returns the retry delay, the field and the rule that the details of a status contain.
func details(err error) (after time.Duration, field, rule string) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			after = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			field = d.GetFieldViolations()[0].GetField()
		case *errdetails.ErrorInfo:
			rule = d.GetMetadata()["rule"]
		}
	}
	return after, field, rule
}
