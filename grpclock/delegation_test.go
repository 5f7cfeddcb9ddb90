package grpclock_test

import (
	"bytes"
	"cmp"
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// delegating returns a Sender. It also returns the options with which a client on loopback
// delegates to a server.
func delegating(t testing.TB, target func() string, opts ...delegate.Option) (*delegate.Sender, []grpc.DialOption) {
	t.Helper()
	sender, err := delegate.NewSender(opts...)
	if err != nil {
		t.Fatal(err)
	}
	// The target is known only when the server runs, so the interceptor is made at the time of the
	// call.
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		c, err := grpclock.UnaryClientInterceptor(grpclock.WithRetries(0, 0), grpclock.WithDelegated(sender, cmp.Or(target(), cc.Target())))
		if err != nil {
			return err
		}
		return c(ctx, method, req, reply, cc, invoke, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		c, err := grpclock.StreamClientInterceptor(grpclock.WithDelegated(sender, cmp.Or(target(), cc.Target())))
		if err != nil {
			return nil, err
		}
		return c(ctx, desc, cc, method, streamer, opts...)
	}
	return sender, []grpc.DialOption{grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream)}
}

func itself() string { return "" }

// nosy is a service that records which metadata its handlers get.
func nosy(saw *[]string) *service {
	look := func(ctx context.Context) *shop.Receipt {
		md, _ := metadata.FromIncomingContext(ctx)
		*saw = append(*saw, md.Get(delegate.MetadataKey)...)
		return receipt(ctx)
	}
	return &service{
		unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) { return look(ctx), nil },
		watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
			return s.Send(look(s.Context()))
		},
	}
}

func TestACallJoinsItsCallersLease(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 16)
	for kind, opts := range map[string][]delegate.Option{"by secret": nil, "by signature": {delegate.WithSigning(key)}} {
		t.Run(kind, func(t *testing.T) {
			newLocker := func(t *testing.T) *locker.Engine { return redisLocker(t) }
			caller := newLocker(t)
			sender, dial := delegating(t, itself, opts...)
			var saw []string
			client := serve(t, setup{locker: newLocker(t), service: nosy(&saw), dial: dial, opts: []grpclock.Option{grpclock.WithDelegation(opts...)}})
			stranger := serve(t, setup{locker: newLocker(t), service: nosy(&saw), dial: dial})
			var stale string
			err := locker.Run(t.Context(), caller, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
				lease, _ := locker.FromContext(ctx)
				r, err := client.Place(ctx, &shop.Order{OrderId: "42"})
				if err != nil || r.GetFence() != lease.Fence() {
					t.Errorf("%v, %v, the caller's fence is %d", r, err, lease.Fence())
				}
				s, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
				if err != nil {
					return err
				}
				if r, err := s.Recv(); err != nil || r.GetFence() != lease.Fence() {
					t.Errorf("a stream: %v, %v", r, err)
				}
				if err := lastOf(s); err != nil {
					t.Error(err)
				}
				if r, err := client.Place(ctx, &shop.Order{OrderId: "43"}); err != nil || r.GetFence() == lease.Fence() {
					t.Errorf("a lock that the caller does not hold: %v, %v", r, err)
				}
				if _, err := client.Read(ctx, &shop.Order{OrderId: "42"}); err != nil {
					t.Errorf("a method without a lock: %v", err)
				}
				_, err = client.Place(t.Context(), &shop.Order{OrderId: "42"})
				want(t, err, codes.Aborted, grpclock.ReasonBusy)
				_, err = stranger.Place(ctx, &shop.Order{OrderId: "42"})
				want(t, err, codes.Aborted, grpclock.ReasonBusy) // the server to which stranger is connected accepts no delegations
				if err := lease.Context().Err(); err != nil {
					t.Errorf("a call ended its caller's lease: %v", err)
				}
				token, err := sender.Token(ctx)
				stale = string(token)
				return err
			})
			if err != nil {
				t.Error(err)
			}
			plain := serve(t, setup{locker: newLocker(t), service: nosy(&saw), opts: []grpclock.Option{grpclock.WithDelegation(opts...)}})
			_, err = plain.Place(metadata.AppendToOutgoingContext(t.Context(), delegate.MetadataKey, stale), &shop.Order{OrderId: "42"})
			want(t, err, codes.FailedPrecondition, grpclock.ReasonDelegationRefused)
			for _, s := range saw {
				t.Errorf("a handler saw the delegation %x, and could send it on", s)
			}
		})
	}
}

func TestADelegationThatCannotBeReadIsRefused(t *testing.T) {
	var saw []string
	store := lockertest.NewMemory()
	client := serve(t, setup{locker: lockertest.NewLocker(t, store), service: nosy(&saw), opts: []grpclock.Option{grpclock.WithDelegation()}})
	off := serve(t, setup{locker: lockertest.NewLocker(t, store), service: nosy(&saw)})
	forged := "\x01\x01" + strings.Repeat("x", 24)
	for name, tc := range map[string]struct {
		values []string
		code   codes.Code
		reason string
	}{
		"one for another key": {[]string{forged}, codes.OK, ""},
		"two":                 {[]string{forged, forged}, codes.InvalidArgument, grpclock.ReasonDelegationInvalid},
		"cut":                 {[]string{forged[:20]}, codes.InvalidArgument, grpclock.ReasonDelegationInvalid},
		"empty":               {[]string{""}, codes.InvalidArgument, grpclock.ReasonDelegationInvalid},
		"oversized":           {[]string{strings.Repeat(forged, 40)}, codes.InvalidArgument, grpclock.ReasonDelegationInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for _, v := range tc.values {
				ctx = metadata.AppendToOutgoingContext(ctx, delegate.MetadataKey, v)
			}
			for _, call := range []func(context.Context, *shop.Order, ...grpc.CallOption) (*shop.Receipt, error){client.Place, client.Read} {
				_, err := call(ctx, &shop.Order{OrderId: "42"})
				want(t, err, tc.code, tc.reason)
			}
			s, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
			if err == nil {
				err = lastOf(s)
			}
			want(t, err, tc.code, tc.reason)
			if _, err := off.Place(ctx, &shop.Order{OrderId: "42"}); err != nil {
				t.Errorf("a service that takes none: %v", err)
			}
			if _, err := off.Read(ctx, &shop.Order{OrderId: "42"}); err != nil {
				t.Errorf("a service that takes none: %v", err)
			}
			s, err = off.Watch(ctx, &shop.Order{OrderId: "42"})
			if err == nil {
				err = lastOf(s)
			}
			want(t, err, codes.OK, "")
		})
	}
	for _, s := range saw {
		t.Errorf("a handler saw the delegation %x", s)
	}
}

// A call that runs without a lock does not forward the delegation that it got, even if the service
// accepts delegations.
func TestACallWithoutALockDoesNotCarryADelegationOn(t *testing.T) {
	never := grpclock.WithFilter(func(context.Context, string) bool { return false })
	for name, opts := range map[string][]grpclock.Option{"taken": {never, grpclock.WithDelegation()}, "not taken": {never}} {
		t.Run(name, func(t *testing.T) {
			var saw []string
			client := serve(t, setup{locker: lockertest.NewLocker(t, lockertest.NewMemory()), service: nosy(&saw), opts: opts})
			ctx := metadata.AppendToOutgoingContext(t.Context(), delegate.MetadataKey, "\x01\x01"+strings.Repeat("x", 24))
			if _, err := client.Place(ctx, &shop.Order{OrderId: "42"}); err != nil {
				t.Error(err)
			}
			s, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
			if err == nil {
				err = lastOf(s)
			}
			want(t, err, codes.OK, "")
			for _, s := range saw {
				t.Errorf("a handler saw the delegation %x", s)
			}
		})
	}
}

// A target has a short name and a full name, and a client may use either name.
func TestATargetIsKnownByBothOfItsNames(t *testing.T) {
	conn, err := grpc.NewClient("inventory:443", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	store := lockertest.NewMemory()
	sender, err := delegate.NewSender()
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"inventory:443", "dns:///inventory:443"} {
		call, err := grpclock.UnaryClientInterceptor(grpclock.WithDelegated(sender, target))
		if err != nil {
			t.Fatal(err)
		}
		err = locker.Run(t.Context(), lockertest.NewLocker(t, store), locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
			return call(ctx, "/shop/Place", nil, nil, conn, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(delegate.MetadataKey)) != 1 {
					t.Errorf("%s, called %s here, got no delegation", conn.Target(), target)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestADelegationGoesToNoOtherTarget(t *testing.T) {
	store := lockertest.NewMemory()
	_, dial := delegating(t, func() string { return "dns:///inventory:443" })
	var got []string
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store), service: &service{}, dial: dial,
		outer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			got = append(got, md.Get(delegate.MetadataKey)...)
			return handler(ctx, req)
		}},
	})
	err := locker.Run(t.Context(), lockertest.NewLocker(t, store), locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		sentOn := metadata.AppendToOutgoingContext(ctx, delegate.MetadataKey, "of somebody else", "x-other", "y")
		_, err := client.Place(sentOn, &shop.Order{OrderId: "43"})
		return err
	})
	if err != nil || len(got) > 0 {
		t.Errorf("%v, another target got %q", err, got)
	}
}

func TestACallWhoseLeaseCannotBeDelegatedIsNotMade(t *testing.T) {
	store := lockertest.NewMemory()
	_, dial := delegating(t, itself)
	client := serve(t, setup{locker: lockertest.NewLocker(t, store), service: &service{}, dial: dial, opts: []grpclock.Option{grpclock.WithDelegation()}})
	err := locker.Run(t.Context(), lockertest.NewLocker(t, store), locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		store.Fail(locker.OpDelegate, context.DeadlineExceeded)
		_, err := client.Place(ctx, &shop.Order{OrderId: "42"})
		want(t, err, codes.Unavailable, grpclock.ReasonUnavailable)
		s, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
		if s != nil || status.Code(err) != codes.Unavailable {
			t.Errorf("a stream: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDelegationOptionsThatMakeNoSense(t *testing.T) {
	sender, err := delegate.NewSender()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []grpclock.ClientOption{
		grpclock.WithDelegated(nil, "a"), grpclock.WithDelegated(sender), grpclock.WithDelegated(sender, ""),
	} {
		if _, err := grpclock.UnaryClientInterceptor(o); err == nil || !strings.HasPrefix(err.Error(), "grpclock: UnaryClientInterceptor: WithDelegated: ") {
			t.Error(err)
		}
		if _, err := grpclock.StreamClientInterceptor(o); err == nil {
			t.Error("taken")
		}
	}
	refuses := lockerFunc(func(locker.Rule) error { return locker.ErrBusy })
	if _, err := grpclock.UnaryServerInterceptor(refuses, grpclock.FromDescriptors(), grpclock.WithDelegation()); err == nil || !strings.Contains(err.Error(), "cannot be joined") {
		t.Error(err)
	}
	if _, err := grpclock.StreamServerInterceptor(lockertest.NewLocker(t, lockertest.NewMemory()), grpclock.FromDescriptors(), grpclock.WithDelegation(delegate.WithDepth(0))); err == nil {
		t.Error("taken")
	}
}
