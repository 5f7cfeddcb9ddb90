package grpclock_test

import (
	"context"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/lockertest"
)

type claimsKey struct{}

// authenticated returns ctx with claims, as an interceptor for authentication does.
func authenticated(ctx context.Context, claims map[string]any) context.Context {
	return context.WithValue(ctx, claimsKey{}, claims)
}

func claimsIn(ctx context.Context) map[string]any {
	claims, _ := ctx.Value(claimsKey{}).(map[string]any)
	return claims
}

func TestAKeyHasClaimsAndThePeer(t *testing.T) {
	base := authenticated(t.Context(), map[string]any{"sub": "ann:1", "level": 7.0, "roles": []string{"a"}})
	tcp := peer.NewContext(base, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 40000}})
	socket := peer.NewContext(base, &peer.Peer{Addr: &net.UnixAddr{Name: "/run/x.sock", Net: "unix"}})
	for template, tc := range map[key.Key]struct {
		ctx  context.Context
		want string
		code codes.Code
	}{
		"k:{claim.sub}":        {ctx: base, want: "k:ann%3A1"},
		"k:{claim.level}":      {ctx: base, want: "k:7"},
		"k:{claim.none}":       {ctx: base, code: codes.InvalidArgument},
		"k:{claim.roles}":      {ctx: base, code: codes.InvalidArgument},
		"k:{claim.sub} ":       {ctx: t.Context(), code: codes.InvalidArgument}, // without claims, because the call is not authenticated
		"k:{peer}":             {ctx: tcp, want: "k:192.0.2.7"},
		"k:{peer} ":            {ctx: socket, want: "k:/run/x.sock "},
		"k:{peer}  ":           {ctx: base, code: codes.InvalidArgument},
		"k:{claim.sub}:{peer}": {ctx: tcp, want: "k:ann%3A1:192.0.2.7"},
	} {
		var got string
		rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: template}}).
			WithClaims(claimsIn)
		call := interceptor(t, lockerFunc(func(r locker.Rule) error { got = r.Key; return locker.ErrBusy }), rules)
		_, err := call(tc.ctx, shop.Shop_Place_FullMethodName, &shop.Order{})
		if tc.want != "" && got != tc.want {
			t.Errorf("%s: %q, %v, want %q", template, got, err, tc.want)
		}
		if tc.want == "" {
			want(t, err, tc.code, grpclock.ReasonInvalidKey)
		}
	}
}

func TestACallTakesTheLocksOfAllItsKeys(t *testing.T) {
	items := []*shop.Item{{Sku: "screw"}, {Sku: "bolt"}, {Sku: "screw"}}
	for name, tc := range map[string]struct {
		rule  grpclock.Rule
		order *shop.Order
		want  []string
		code  codes.Code
	}{
		"each element of a list": {rule: grpclock.Rule{Key: "stock:{req.items.*.sku}"}, order: &shop.Order{Items: items},
			want: []string{"stock:bolt", "stock:screw"}},
		"and a key of its own": {rule: grpclock.Rule{Keys: []key.Key{"order:{req.order_id}", "stock:{req.items.*.sku}"}},
			order: &shop.Order{OrderId: "7", Items: items}, want: []string{"order:7", "stock:bolt", "stock:screw"}},
		"a function": {rule: grpclock.Rule{Func: grpclock.KeyOf(func(o *shop.Order) string { return key.Of("a", o.GetOrderId()) })},
			order: &shop.Order{OrderId: "x:y"}, want: []string{"a:x%3Ay"}},
		"a function without a key": {rule: grpclock.Rule{Func: grpclock.KeyOf(func(*shop.Order) string { return "" })},
			order: &shop.Order{}, code: codes.InvalidArgument},
		"no element":       {rule: grpclock.Rule{Key: "stock:{req.items.*.sku}"}, order: &shop.Order{}, code: codes.InvalidArgument},
		"an empty element": {rule: grpclock.Rule{Key: "stock:{req.items.*.sku}"}, order: &shop.Order{Items: []*shop.Item{{Sku: "a"}, {}}}, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			var locked []string
			client := serve(t, setup{locker: lockertest.NewLocker(t, store), rules: grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: tc.rule}),
				service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
					for _, lease := range locker.LeasesFromContext(ctx) {
						locked = append(locked, lease.Key())
					}
					return receipt(ctx), nil
				}}})
			_, err := client.Place(t.Context(), tc.order)
			if tc.code != codes.OK {
				want(t, err, tc.code, grpclock.ReasonInvalidKey)
				return
			}
			want(t, err, codes.OK, "")
			if slices.Sort(locked); !slices.Equal(locked, tc.want) {
				t.Errorf("locked %q, want %q", locked, tc.want)
			}
			if n := store.Len(); n != 0 {
				t.Errorf("%d keys are locked after the call", n)
			}
		})
	}
}

func TestABasketWhoseItemIsHeldIsRefusedWhole(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("stock:b", 0)
	client := serve(t, setup{locker: lockertest.NewLocker(t, store), service: &service{}})
	_, err := client.Basket(t.Context(), &shop.Order{OrderId: "7", Items: []*shop.Item{{Sku: "a"}, {Sku: "b"}}})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
	if n := store.Len(); n != 1 {
		t.Errorf("%d keys are locked, want the one of the other holder", n)
	}
}
