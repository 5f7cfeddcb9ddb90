package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The Locker's error names the holder, for operators. No client may see the name. If an interceptor
// wraps the error, gRPC sends the text of the error.
func TestAStatusDoesNotNameTheHolder(t *testing.T) {
	const holder = "report@pod-7f9c:1"
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithMetadata(func(context.Context) string { return holder }))
	for name, wraps := range map[string]bool{"as it is": false, "wrapped": true} {
		t.Run(name, func(t *testing.T) {
			var refusal error
			client := serve(t, setup{locker: l, service: &service{}, outer: []grpc.UnaryServerInterceptor{
				func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					var answer any
					if answer, refusal = handler(ctx, req); refusal != nil && wraps {
						return nil, fmt.Errorf("outside: %w", refusal)
					}
					return answer, refusal
				},
			}})
			got, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
			if err != nil {
				t.Fatal(err)
			}
			lease, err := l.Acquire(t.Context(), locker.Rule{Key: got.GetKey()})
			if err != nil {
				t.Fatal(err)
			}
			var header, trailer metadata.MD
			_, err = client.Place(t.Context(), &shop.Order{OrderId: "42"}, grpc.Header(&header), grpc.Trailer(&trailer))
			p, ok := errors.AsType[*grpclock.Problem](refusal)
			if !ok || status.Code(err) != codes.Aborted || !strings.Contains(p.Unwrap().Error(), holder) {
				t.Fatalf("the call failed with %v (%v), want a busy lock, whose error names the holder", err, refusal)
			}
			st := status.Convert(err)
			if shown := fmt.Sprint(st.Message(), st.Details(), st.Proto(), header, trailer); strings.Contains(shown, "report") || strings.Contains(shown, "7f9c") {
				t.Errorf("the client got %s", shown)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
