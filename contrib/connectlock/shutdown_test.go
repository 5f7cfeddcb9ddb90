package connectlock_test

import (
	"context"
	"testing"

	"connectrpc.com/connect"

	"github.com/latchkit/latchkit/contrib/connectlock"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
)

func TestAShutdownCutsNoCallThatHoldsItsLock(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
				s := serve(t, l, handlers{wait: func(ctx context.Context, r *connect.Request[shop.Order]) (*connect.Response[shop.Receipt], error) {
					if err := work(ctx); err != nil {
						return nil, err
					}
					return place(ctx, r)
				}}, grpclock.FromDescriptors())
				// One connection is open, so that five hundred calls do not dial five hundred.
				if resp, err := s.Client().Get(s.URL); err != nil {
					t.Fatal(err)
				} else {
					_ = resp.Body.Close()
				}
				c := client(s, shop.Shop_Wait_FullMethodName, opts...)
				return locktest.Stopping{
					Send: func(ctx context.Context, key string) string {
						_, err := c.CallUnary(ctx, connect.NewRequest(&shop.Order{OrderId: key}))
						if err == nil {
							return locktest.Served
						}
						if _, ok := connectlock.RetryAfter(err); ok && connect.CodeOf(err) == connect.CodeUnavailable {
							return locktest.Refused
						}
						return err.Error()
					},
					Stop: s.Config.Shutdown,
				}
			})
		})
	}
}
