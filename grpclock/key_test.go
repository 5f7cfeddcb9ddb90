package grpclock_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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

func TestAKeyHasClaimsThePeerAndOwnParts(t *testing.T) {
	base := authenticated(t.Context(), map[string]any{"sub": "ann:1", "level": 7.0, "roles": []string{"a"}})
	tcp := peer.NewContext(base, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 40000}})
	socket := peer.NewContext(base, &peer.Peer{Addr: &net.UnixAddr{Name: "/run/x.sock", Net: "unix"}})
	own := func(_ context.Context, method string) (string, error) {
		if strings.HasSuffix(method, "/Move") {
			return "", errors.New("the shard map is gone")
		}
		return "eu", nil
	}
	for template, tc := range map[key.Key]struct {
		ctx  context.Context
		want string
		code codes.Code
	}{
		"k:{claim.sub}":                 {ctx: base, want: "k:ann%3A1"},
		"k:{claim.level}":               {ctx: base, want: "k:7"},
		"k:{claim.none}":                {ctx: base, code: codes.InvalidArgument},
		"k:{claim.roles}":               {ctx: base, code: codes.InvalidArgument},
		"k:{claim.sub} ":                {ctx: t.Context(), code: codes.InvalidArgument}, // without claims, because the call is not authenticated
		"k:{peer}":                      {ctx: tcp, want: "k:192.0.2.7"},
		"k:{peer} ":                     {ctx: socket, want: "k:/run/x.sock "},
		"k:{peer}  ":                    {ctx: base, code: codes.InvalidArgument},
		"k:{region}":                    {ctx: base, want: "k:eu"},
		"k:{claim.sub}:{peer}:{region}": {ctx: tcp, want: "k:ann%3A1:192.0.2.7:eu"},
	} {
		var got string
		rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: template}}).
			WithClaims(claimsIn).WithPart("region", own)
		call := interceptor(t, lockerFunc(func(r locker.Rule) error { got = r.Key; return locker.ErrBusy }), rules)
		_, err := call(tc.ctx, shop.Shop_Place_FullMethodName, &shop.Order{})
		if tc.want != "" && got != tc.want {
			t.Errorf("%s: %q, %v, want %q", template, got, err, tc.want)
		}
		if tc.want == "" {
			want(t, err, tc.code, grpclock.ReasonInvalidKey)
		}
	}
	rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Move_FullMethodName: {Key: "k:{region}"}}).WithPart("region", own)
	_, err := interceptor(t, lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), rules)(base, shop.Shop_Move_FullMethodName, &shop.Order{})
	// The code is Internal, because this is a mistake of the program and not of the client.
	want(t, err, codes.Internal, grpclock.ReasonMisconfigured)
}

func TestARuleWithoutWhatItsPartsNeedIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		rules *grpclock.Rules
		want  string
	}{
		"claims that nobody finds": {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{claim.sub}"}}), "Rules.WithClaims"},
		"a part without function":  {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{region}"}}).WithPart("region", nil), "give a function"},
		"a part that nobody reads": {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{region}"}}), "write {claim.region}"},
		"two lists in one key":     {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{req.items.*.sku}:{req.tags.*}"}}), "two parts that stand for several"},
		"a list in a list":         {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{req.items.*.serials.*}"}}), "a list inside of a list"},
		"a key and keys":           {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k", Keys: []key.Key{"l"}}}), "write all keys into Keys"},
		"a list without a *":       {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{req.items.sku}"}}), "write items.* for a lock"},
		"a * without a list":       {grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k:{req.item.*}"}}), `no field "*"`},
	} {
		err := bind(t, tc.rules, theShop)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
}

// several is a Locker that grants all keys, and records the requested keys.
type several struct {
	locker.Locker
	mu   sync.Mutex
	keys []string
}

func (s *several) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	s.mu.Lock()
	s.keys = append(s.keys, r.Key)
	s.mu.Unlock()
	return s.Locker.Acquire(ctx, r)
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
		"texts": {rule: grpclock.Rule{Keys: []key.Key{"tag:{req.tags.*}:{req.order_id}"}}, order: &shop.Order{OrderId: "7", Tags: []string{"b:", "a"}},
			want: []string{"tag:a:7", "tag:b%3A:7"}},
		"a function": {rule: grpclock.Rule{Func: grpclock.KeysOf(func(o *shop.Order) []string {
			return []string{key.Of("b", o.GetOrderId()), key.Of("a", o.GetOrderId())}
		})}, order: &shop.Order{OrderId: "x:y"}, want: []string{"a:x%3Ay", "b:x%3Ay"}},
		"a function without keys": {rule: grpclock.Rule{Func: grpclock.KeysOf(func(*shop.Order) []string { return nil })},
			order: &shop.Order{}, code: codes.InvalidArgument},
		"no element":       {rule: grpclock.Rule{Key: "stock:{req.items.*.sku}"}, order: &shop.Order{}, code: codes.InvalidArgument},
		"an empty element": {rule: grpclock.Rule{Key: "stock:{req.items.*.sku}"}, order: &shop.Order{Items: []*shop.Item{{Sku: "a"}, {}}}, code: codes.InvalidArgument},
		"too many":         {rule: grpclock.Rule{Key: "tag:{req.tags.*}"}, order: &shop.Order{Tags: numbers(101)}, code: codes.InvalidArgument},
		"too many together": {rule: grpclock.Rule{Keys: []key.Key{"tag:{req.tags.*}", "k:{req.tags.*}"}},
			order: &shop.Order{Tags: numbers(60)}, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			l := &several{Locker: lockertest.NewLocker(t, store)}
			client := serve(t, setup{locker: l, rules: grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: tc.rule}),
				service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
					if n := len(locker.LeasesFromContext(ctx)); n != len(tc.want) {
						t.Errorf("the handler has %d leases, want %d", n, len(tc.want))
					}
					return receipt(ctx), nil
				}}})
			_, err := client.Place(t.Context(), tc.order)
			if tc.code != codes.OK {
				want(t, err, tc.code, grpclock.ReasonInvalidKey)
				return
			}
			want(t, err, codes.OK, "")
			if !slices.Equal(l.keys, tc.want) {
				t.Errorf("locked %q, want %q", l.keys, tc.want)
			}
			if n := store.Len(); n != 0 {
				t.Errorf("%d keys are locked after the call", n)
			}
		})
	}
}

func numbers(n int) (texts []string) {
	for i := range n {
		texts = append(texts, strconv.Itoa(i))
	}
	return texts
}

// Baskets with common items exclude each other, whatever the order of their items is.
func TestBasketsDoNotWaitForEachOtherForEver(t *testing.T) {
	stock := map[string]int{"a": 0, "b": 0, "c": 0} // guarded only by the locks
	client := serve(t, setup{locker: redisLocker(t), opts: []grpclock.Option{grpclock.WithRule(func(_ context.Context, _ string, _ any, r *locker.Rule) {
		r.Wait = time.Minute
	})}, service: &service{unary: func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
		for _, i := range o.GetItems() {
			stock[i.GetSku()]++
		}
		return receipt(ctx), nil
	}}})
	baskets := [][]string{{"a", "b"}, {"b", "a"}, {"c", "b", "a"}, {"a", "c"}}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			o := &shop.Order{OrderId: string(rune('A' + i))}
			for _, sku := range baskets[i%len(baskets)] {
				o.Items = append(o.Items, &shop.Item{Sku: sku})
			}
			_, err := client.Basket(t.Context(), o)
			want(t, err, codes.OK, "")
		})
	}
	all.Wait()
	if stock["a"] != 40 || stock["b"] != 30 || stock["c"] != 20 {
		t.Errorf("the stock is %v", stock)
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
