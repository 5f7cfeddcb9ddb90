package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A lock that guards nothing is worse than no lock. So Bind finds methods that nothing guards.
func TestBindFindsWhatNothingGuards(t *testing.T) {
	newLocker := func() locker.Locker { return lockertest.NewLocker(t, lockertest.NewMemory()) }
	for name, tc := range map[string]struct {
		rules *grpclock.Rules
		make  func(rules *grpclock.Rules) error
		want  string // "": Bind succeeds
	}{
		"no stream interceptor": {grpclock.FromDescriptors(), func(r *grpclock.Rules) error {
			_, err := grpclock.UnaryServerInterceptor(newLocker(), r)
			return err
		}, "no StreamServerInterceptor was made of these Rules"},
		"no unary interceptor": {grpclock.FromDescriptors(), func(r *grpclock.Rules) error {
			_, err := grpclock.StreamServerInterceptor(newLocker(), r)
			return err
		}, "no UnaryServerInterceptor was made of these Rules, so nothing guards /latchkit.shop.v1.Shop/"},
		"only unary rules": {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k"}}), func(r *grpclock.Rules) error {
			_, err := grpclock.UnaryServerInterceptor(newLocker(), r)
			return err
		}, ""},
		"interceptors of other Rules": {grpclock.FromDescriptors().WithSecret(make([]byte, 16)), func(*grpclock.Rules) error {
			_, err := grpclock.ServerOptions(newLocker(), grpclock.FromDescriptors())
			return err
		}, "no UnaryServerInterceptor"},
		"no rules":             {grpclock.FromMap(nil), serverOptions(newLocker()), "no method of the server has a rule"},
		"everything":           {grpclock.FromDescriptors(), serverOptions(newLocker()), ""},
		"a rule of no service": {grpclock.FromMap(grpclock.RuleMap{"/x.Y/Z": {Key: "k"}}), serverOptions(newLocker()), "the server has no such method"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.make(tc.rules); err != nil {
				t.Fatal(err)
			}
			err := tc.rules.Bind(theShop)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func serverOptions(l locker.Locker, opts ...grpclock.Option) func(*grpclock.Rules) error {
	return func(r *grpclock.Rules) error {
		_, err := grpclock.ServerOptions(l, r, opts...)
		return err
	}
}

// A rule that would make the server refuse every call is found when the server starts.
func TestBindFindsRulesThatTheLockerCanNeverGrant(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no server is needed, because nothing is sent
	t.Cleanup(func() { _ = client.Close() })
	l, err := locker.New(client, locker.WithMaxTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		rule grpclock.Rule
		opts []grpclock.Option
		want string
	}{
		"shared without readers":            {grpclock.Rule{Key: "k", Mode: locker.Shared}, nil, "Mode Shared needs a Locker with readers"},
		"a TTL above the Locker's":          {grpclock.Rule{Key: "k", TTL: time.Hour}, nil, "WithMaxTTL allows 1m0s"},
		"a TTL of the interceptor above it": {grpclock.Rule{Key: "k"}, []grpclock.Option{grpclock.WithTTL(time.Hour)}, "WithMaxTTL allows 1m0s"},
	} {
		rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: tc.rule})
		if err := serverOptions(l, tc.opts...)(rules); err != nil {
			t.Fatal(err)
		}
		if err := rules.Bind(theShop); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// Without a Bind, or after a Bind that failed, a server refuses every call.
func TestAServerThatIsNotBoundRefusesEveryCall(t *testing.T) {
	rules := grpclock.FromDescriptors()
	options, err := grpclock.ServerOptions(lockertest.NewLocker(t, lockertest.NewMemory()), rules)
	if err != nil || len(options) != 2 {
		t.Fatal(options, err)
	}
	server := grpc.NewServer(options...)
	shop.RegisterShopServer(server, &service{watch: func(*shop.Order, grpc.ServerStreamingServer[shop.Receipt]) error { return nil }})
	client := dial(t, server)
	calls := func() (read, place, watch error) {
		_, read = client.Read(t.Context(), &shop.Order{OrderId: "42"})
		_, place = client.Place(t.Context(), &shop.Order{OrderId: "42"})
		s, err := client.Watch(t.Context(), &shop.Order{OrderId: "42"})
		if err == nil {
			err = lastOf(s)
		}
		return read, place, err
	}
	read, place, watch := calls()
	for _, err := range []error{read, place, watch} {
		want(t, err, codes.Internal, grpclock.ReasonMisconfigured)
	}
	if err := rules.Bind(server); err != nil {
		t.Fatal(err)
	}
	read, place, watch = calls()
	if err := errors.Join(read, place, watch); err != nil {
		t.Error(err)
	}
}

// down is a Locker whose server cannot be reached. Each acquire takes a while before it fails.
type down struct{ asked chan struct{} }

func (d down) Acquire(ctx context.Context, _ locker.Rule) (*locker.Lease, error) {
	d.asked <- struct{}{}
	select {
	case <-time.After(100 * time.Millisecond):
		return nil, &locker.Error{Op: locker.OpAcquire, Err: locker.ErrUnavailable}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestAnOutageThatFailsOpenCostsOnlyTheFirstCalls(t *testing.T) {
	l := down{make(chan struct{}, 1000)}
	var observed []string
	client := serve(t, setup{locker: l, opts: []grpclock.Option{grpclock.WithFailOpen(), grpclock.WithObserve(func(_ context.Context, p *grpclock.Problem) {
		observed = append(observed, p.Reason) // needs no mutex, because there is one call at a time
	})}, service: &service{fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
		for range 2 {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
		return s.SendAndClose(receipt(s.Context()))
	}}})
	for range 50 {
		r, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
		want(t, err, codes.OK, "")
		if r.GetFence() != 0 {
			t.Error("a call without a lock has a fence")
		}
		s, err := client.Fill(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Send(&shop.Order{OrderId: "42"}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.CloseAndRecv()
		want(t, err, codes.OK, "")
	}
	if n := len(l.asked); n > 20 {
		t.Errorf("%d of 100 calls asked the lock server", n)
	}
	if len(observed) != 100 || observed[0] != grpclock.ReasonUnavailable || observed[99] != grpclock.ReasonUnavailable {
		t.Errorf("observed %d problems: %q", len(observed), observed)
	}
	_, err := client.Place(t.Context(), &shop.Order{})
	want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey) // WithFailOpen applies only when the lock server is down
}
