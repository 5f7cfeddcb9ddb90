package grpclock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/grpclock/lockpb"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// registered is a server that has these services. It has only the methods that Bind needs.
type registered map[string]grpc.ServiceInfo

func (r registered) GetServiceInfo() map[string]grpc.ServiceInfo { return r }

var theShop = func() registered {
	s := grpc.NewServer()
	shop.RegisterShopServer(s, &service{})
	return s.GetServiceInfo()
}()

// asked calls a method of a server that has these rules. It returns the Rule with which the Locker
// was called.
func asked(t *testing.T, rules *grpclock.Rules, method string, req any) (locker.Rule, error) {
	t.Helper()
	var got locker.Rule
	l := lockerFunc(func(r locker.Rule) error { got = r; return locker.ErrBusy })
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-tenant", "acme:eu", "x-tenant", "second"))
	_, err := interceptor(t, l, rules)(ctx, method, req)
	if got.Key != "" {
		err = nil
	}
	return got, err
}

func TestTheAnnotationSaysWhatToLock(t *testing.T) {
	rules := grpclock.FromDescriptors()
	for _, bound := range []bool{false, true} {
		if bound {
			if err := bind(t, rules, theShop); err != nil {
				t.Fatal(err)
			}
		}
		for method, want := range map[string]locker.Rule{
			shop.Shop_Place_FullMethodName: {Key: "order:4%3A2", Name: "order", Wait: locker.NoWait},
			shop.Shop_Wait_FullMethodName:  {Key: "order:4%3A2", Name: "order", Wait: time.Hour},
			shop.Shop_Move_FullMethodName:  {Key: "move:acme%3Aeu:screw", Name: "stock", Wait: 5 * time.Second, TTL: 7 * time.Second, EndAfter: time.Minute},
			shop.Shop_Once_FullMethodName:  {Key: "once:4%3A2", Name: "once", Wait: locker.NoWait, OnceFor: time.Minute},
		} {
			got, err := asked(t, rules, method, &shop.Order{OrderId: "4:2", Item: &shop.Item{Sku: "screw"}})
			if err != nil || got != want {
				t.Errorf("%s, bound: %v: %+v, %v", method, bound, got, err)
			}
		}
	}
}

func TestEveryKindOfFieldHasOneTextInAKey(t *testing.T) {
	for template, tc := range map[key.Key]struct {
		order *shop.Order
		want  string // "": the part of the key is missing
	}{
		"k:{req.order_id}":       {&shop.Order{OrderId: "a"}, "k:a"},
		"k:{req.order_id} ":      {&shop.Order{}, ""},
		"k:{req.item.sku}":       {&shop.Order{Item: &shop.Item{Sku: "s"}}, "k:s"},
		"k:{req.item.sku} ":      {&shop.Order{Item: &shop.Item{}}, ""},
		"k:{req.item.sku}  ":     {&shop.Order{}, ""},
		"k:{req.shard}":          {&shop.Order{Shard: -7}, "k:-7"},
		"k:{req.shard} ":         {&shop.Order{}, "k:0 "},
		"k:{req.slot}":           {&shop.Order{Slot: proto.Uint32(0)}, "k:0"},
		"k:{req.slot} ":          {&shop.Order{}, ""},
		"k:{req.digest}":         {&shop.Order{Digest: []byte{0, 0xff}}, "k:00ff"},
		"k:{req.digest} ":        {&shop.Order{}, ""},
		"k:{req.kind}":           {&shop.Order{Kind: shop.Kind_KIND_GIFT}, "k:1"},
		"k:{req.express}":        {&shop.Order{Express: true}, "k:true"},
		"k:{req.within.seconds}": {&shop.Order{Within: durationpb.New(3 * time.Second)}, "k:3"},
		"k:{meta.X-Tenant}":      {&shop.Order{}, "k:acme%3Aeu"},
		"k:{meta.x-other}":       {&shop.Order{}, ""},
		"k:{meta.x-tenant}:x":    {&shop.Order{}, "k:acme%3Aeu:x"},
	} {
		rules := grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: template}})
		got, err := asked(t, rules, shop.Shop_Place_FullMethodName, tc.order)
		if tc.want != "" && (err != nil || got.Key != tc.want) {
			t.Errorf("%s: %q, %v, want %q", template, got.Key, err, tc.want)
		}
		if tc.want == "" {
			want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey)
		}
	}
}

func TestALackingPartIsNamed(t *testing.T) {
	client := serve(t, setup{locker: lockertest.NewLocker(t, lockertest.NewMemory()), service: &service{}})
	for field, ctx := range map[string]context.Context{
		"metadata.x-tenant": t.Context(),
		"item.sku":          metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "acme"),
	} {
		_, err := client.Move(ctx, &shop.Order{Item: &shop.Item{}})
		want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey)
		named := ""
		for _, d := range status.Convert(err).Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok && len(bad.GetFieldViolations()) == 1 {
				named = bad.GetFieldViolations()[0].GetField()
			}
		}
		if named != field {
			t.Errorf("%v names %q, want %q", err, named, field)
		}
	}
}

func TestBindFindsEveryMistake(t *testing.T) {
	const place = shop.Shop_Place_FullMethodName
	byOther := grpclock.KeyOf(func(*shop.Item) string { return "k" })
	for name, tc := range map[string]struct {
		rule grpclock.Rule
		want string
	}{
		"unknown field":            {grpclock.Rule{Key: "k:{req.nope}"}, `the message latchkit.shop.v1.Order has no field "nope"; it has order_id, item, tags`},
		"a message":                {grpclock.Rule{Key: "k:{req.item}"}, `item is a message; name a field of it: sku`},
		"a list":                   {grpclock.Rule{Key: "k:{req.tags}"}, `tags is a list; write tags.* for a lock on each element`},
		"a map":                    {grpclock.Rule{Key: "k:{req.labels}"}, `labels is a map`},
		"a fraction":               {grpclock.Rule{Key: "k:{req.weight}"}, `weight is a double`},
		"inside a text":            {grpclock.Rule{Key: "k:{req.order_id.x}"}, `order_id is a string, there is nothing in it`},
		"unknown source":           {grpclock.Rule{Key: "k:{param.id}"}, `write {claim.NAME}, {meta.NAME}, {peer} or {req.NAME}`},
		"claims that nobody finds": {grpclock.Rule{Key: "k:{claim.sub}"}, `Rules.WithClaims`},
		"two lists in one key":     {grpclock.Rule{Key: "k:{req.items.*.sku}:{req.tags.*}"}, `two parts that stand for several`},
		"a list in a list":         {grpclock.Rule{Key: "k:{req.items.*.serials.*}"}, `a list inside of a list`},
		"no key":                   {grpclock.Rule{Name: "k"}, `the rule has no Key`},
		"two keys":                 {grpclock.Rule{Key: "k", Func: byOther}, `a Key and a Func`},
		"a function of another":    {grpclock.Rule{Func: byOther}, `the Func makes keys of latchkit.shop.v1.Item, and the request is a latchkit.shop.v1.Order`},
		"a wait of -2":             {grpclock.Rule{Key: "k", Wait: -2}, `the wait is -2ns`},
		"a negative once":          {grpclock.Rule{Key: "k", OnceFor: -time.Second}, `once_for is -1s`},
		"once for each spelling":   {grpclock.Rule{Key: "k:{req.order_id}", OnceFor: time.Hour}, `write "k:{req.order_id|int}" for whole numbers`},
		"once for all metadata":    {grpclock.Rule{Key: "k:{meta.order}", OnceFor: time.Hour}, `write "k:{meta.order|int}" for whole numbers`},
		"once for texts in a list": {grpclock.Rule{Key: "k:{req.items.*.sku}", OnceFor: time.Hour}, `write "k:{req.items.*.sku|int}" for whole numbers`},
		"an HMAC without a secret": {grpclock.Rule{Key: "k:{req.order_id|hmac}"}, `there is no secret`},
	} {
		t.Run(name, func(t *testing.T) {
			rules := grpclock.FromDescriptors().With(grpclock.RuleMap{place: tc.rule})
			err := bind(t, rules, theShop)
			if err == nil || !strings.HasPrefix(err.Error(), "grpclock: "+place+": ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
			// If the program ignores the error of Bind and serves, the server refuses all calls.
			// The status of a refused call shows no details.
			_, err = asked(t, rules, place, &shop.Order{OrderId: "42"})
			want(t, err, codes.Internal, grpclock.ReasonMisconfigured)
			if strings.Contains(status.Convert(err).Message(), "req.") {
				t.Errorf("the client gets %q", status.Convert(err).Message())
			}
		})
	}
}

// A number, an enum, a boolean and bytes have one text for each value.
func TestARuleWithOnceForNeedsNoFilterWhereThereIsOneSpelling(t *testing.T) {
	for _, k := range []key.Key{"k:{req.shard}", "k:{req.slot}:{peer}", "k:{req.digest}", "k:{req.order_id|int}:{meta.order|text}:{req.items.*.sku|lower}"} {
		rules := grpclock.FromDescriptors().With(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: k, OnceFor: time.Hour}})
		if err := bind(t, rules, theShop); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// annotated is the number of services that were registered. The number makes the names of these
// services differ, because a service stays registered even when its test is repeated.
var annotated atomic.Int32

// annotate registers a service whose method has this option. It registers the service in the same
// way as code that protoc makes from a .proto file.
func annotate(t *testing.T, lock *lockpb.Lock) (service string) {
	t.Helper()
	pkg := fmt.Sprintf("latchkit.odd%d", annotated.Add(1))
	options := &descriptorpb.MethodOptions{}
	proto.SetExtension(options, lockpb.E_Lock, lock)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new(pkg + ".proto"), Package: new(pkg), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Request")}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new("Odd"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: new("Do"), InputType: new("." + pkg + ".Request"), OutputType: new("." + pkg + ".Request"), Options: options,
		}}}},
	}, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pkg + ".Odd"
}

func TestAnAnnotationThatMakesNoSenseIsFoundAtTheStart(t *testing.T) {
	unknown := &lockpb.Lock{Key: "k"}
	unknown.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01}) // field 127
	for want, lock := range map[string]*lockpb.Lock{
		"has no key":                         {Name: "k"},
		"the mode 7":                         {Key: "k", Mode: 7},
		"wait is -1 s":                       {Key: "k", Wait: durationpb.New(-time.Second)},
		"ttl is 0; the shortest":             {Key: "k", Ttl: &durationpb.Duration{}},
		"once_for is 1 s and -1 ns":          {Key: "k", OnceFor: &durationpb.Duration{Seconds: 1, Nanos: -1}},
		"a field that this version does not": unknown,
		"Weight 4 is more than the Limit":    {Key: "k", Limit: 3, Weight: 4},
	} {
		service := annotate(t, lock)
		err := bind(t, grpclock.FromDescriptors(), registered{service: {Methods: []grpc.MethodInfo{{Name: "Do"}}}})
		if err == nil || !strings.HasPrefix(err.Error(), "grpclock: /"+service+"/Do: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	service := annotate(t, &lockpb.Lock{Key: "k", Mode: lockpb.Lock_SHARED})
	rules := grpclock.FromDescriptors()
	if err := bind(t, rules, registered{service: {Methods: []grpc.MethodInfo{{Name: "Do"}}}}); err != nil {
		t.Fatal(err)
	}
	if r, err := asked(t, rules, "/"+service+"/Do", nil); err != nil || r.Mode != locker.Shared {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWhoDecides(t *testing.T) {
	const place = shop.Shop_Place_FullMethodName
	order := &shop.Order{OrderId: "42"}
	for name, tc := range map[string]struct {
		rules *grpclock.Rules
		want  locker.Rule // the zero Rule means that the Locker was not called
	}{
		"the .proto file":         {grpclock.FromDescriptors(), locker.Rule{Key: "order:42", Name: "order", Wait: locker.NoWait}},
		"a map comes first":       {grpclock.FromDescriptors().With(grpclock.RuleMap{place: {Key: "mine:{req.order_id}"}}), locker.Rule{Key: "mine:42", Name: "mine", Wait: 5 * time.Second}},
		"a zero Rule lifts it":    {grpclock.FromDescriptors().With(grpclock.RuleMap{place: {}}), locker.Rule{}},
		"a function":              {grpclock.FromMap(grpclock.RuleMap{place: {Func: grpclock.KeyOf(func(o *shop.Order) string { return "f:" + o.GetOrderId() })}}), locker.Rule{Key: "f:42", Name: "latchkit.shop.v1.Shop/Place", Wait: 5 * time.Second}},
		"an HMAC with its secret": {grpclock.FromMap(grpclock.RuleMap{place: {Key: "k:{req.order_id|hmac}", Name: "n"}}).WithSecret(make([]byte, 16)), locker.Rule{Key: "k:~", Name: "n", Wait: 5 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := bind(t, tc.rules, theShop); err != nil {
				t.Fatal(err)
			}
			got, err := asked(t, tc.rules, place, order)
			if prefix, ok := strings.CutSuffix(tc.want.Key, "~"); ok && strings.HasPrefix(got.Key, prefix+"~") {
				got.Key = tc.want.Key
			}
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

// A client can call methods with any names. The server must not store names that clients have made
// up.
func TestNamesThatClientsMakeUpAreForgotten(t *testing.T) {
	rules := grpclock.FromDescriptors()
	call := interceptor(t, lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), rules)
	for i := range 100 {
		if _, err := call(t.Context(), fmt.Sprintf("/made.Up/%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := rules.Unguarded(); len(got) > 0 {
		t.Errorf("remembered: %q", got)
	}
}
