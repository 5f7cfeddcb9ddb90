package grpclock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
)

// naming is a service that replies with the key of its call's lock. It returns an error if two
// different requests have the same key.
type naming struct {
	shop.UnimplementedShopServer
	mu   sync.Mutex
	keys map[string]string // for each key: the request that locked it
}

func (n *naming) Place(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "there is no lock")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	who := fmt.Sprintf("%q %q", md.Get("x-tenant"), o.GetOrderId())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys == nil {
		n.keys = make(map[string]string)
	}
	if other, taken := n.keys[lease.Key()]; taken && other != who {
		return nil, status.Errorf(codes.Internal, "%s and %s have one key", who, other)
	}
	n.keys[lease.Key()] = who
	return &shop.Receipt{Key: lease.Key()}, nil
}

var tenantRule = grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "order:{meta.x-tenant}:{req.order_id}"}}

// Two different requests never lead to the same key, whatever they contain.
func TestNoValueReachesTheKeyOfAnother(t *testing.T) {
	n := &naming{}
	c := shop.NewShopClient(serve(t, n, grpclock.FromMap(tenantRule)).dial(t))
	values := []string{"a", "a:b", ":", "a:", ":a", "{}", "}", "%3A", "~", "~x", " a", strings.Repeat("x", 65)}
	orders := append([]string{
		"b", "::", "{a}", "{", "%", "%253A", "a%00", "a~", "\x7f", "..", "*", "a b", "latchkit:x", "A", strings.Repeat("x", 64),
		strings.Repeat("x", 5<<10), "\x00", "a\r\nb", "a\nb", "\u00e9", "e\u0301", strings.Repeat("y", 5<<20),
	}, values...)
	for _, tenant := range values {
		for _, order := range orders {
			if len(order) > 1<<20 && tenant != "a" {
				continue
			}
			_, err := c.Place(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("x-tenant", tenant)), &shop.Order{OrderId: order})
			if err != nil {
				t.Errorf("%.40q %.40q: %v", tenant, order, err)
			}
		}
	}
}

func TestOddMetadataIsRefusedOrRead(t *testing.T) {
	c := shop.NewShopClient(serve(t, &naming{}, grpclock.FromMap(tenantRule)).dial(t))
	order := &shop.Order{OrderId: "42"}
	for name, tc := range map[string]struct {
		md  metadata.MD
		key string // "": the request is refused
	}{
		"none":          {metadata.MD{}, ""},
		"empty":         {metadata.Pairs("x-tenant", ""), ""},
		"doubled":       {metadata.Pairs("x-tenant", "first", "x-tenant", "second"), "order:first:42"},
		"empty, then a": {metadata.Pairs("x-tenant", "", "x-tenant", "a"), ""},
		"binary":        {metadata.Pairs("x-tenant-bin", "\x00\xff"), ""},
		"8 kB":          {metadata.Pairs("x-tenant", strings.Repeat("x", 8<<10)), "order:~"},
	} {
		r, err := c.Place(metadata.NewOutgoingContext(t.Context(), tc.md), order)
		reason, _ := grpclock.Reason(err)
		if tc.key == "" {
			if status.Code(err) != codes.InvalidArgument || reason != grpclock.ReasonInvalidKey {
				t.Errorf("%s: %v, want that it is refused", name, err)
			}
		} else if err != nil || !strings.HasPrefix(r.GetKey(), tc.key) {
			t.Errorf("%s: locked %q, %v", name, r.GetKey(), err)
		}
	}
}
