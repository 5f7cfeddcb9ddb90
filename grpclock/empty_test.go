package grpclock_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// results is an Observer that records the results of calls.
type results struct {
	lockertest.Recorder
	mu  sync.Mutex
	all []string
}

func (r *results) Request(_ context.Context, e locker.RequestEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e.Name+" "+e.Result)
}

// A client could choose that a handler finishes without its lock, by sending no message.
func TestAStreamWithoutAMessageDoesNotFinishWithoutItsLock(t *testing.T) {
	for name, tc := range map[string]struct {
		opts    []grpclock.Option
		code    codes.Code
		reason  string
		counted string
	}{
		"default":                   {nil, codes.InvalidArgument, grpclock.ReasonInvalidKey, "order invalid_key"},
		"WithUnguardedEmptyStreams": {[]grpclock.Option{grpclock.WithUnguardedEmptyStreams()}, codes.OK, "", "order unguarded"},
	} {
		var seen results
		ended := false
		client := serve(t, setup{
			locker: lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(&seen)), opts: tc.opts,
			service: &service{fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
				for {
					_, err := s.Recv()
					if errors.Is(err, io.EOF) {
						ended = true
						return s.SendAndClose(receipt(s.Context())) // a handler that commits at the end
					}
					if err != nil {
						return err
					}
				}
			}},
		})
		stream, err := client.Fill(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.CloseAndRecv()
		if want(t, err, tc.code, tc.reason); ended != (tc.code == codes.OK) {
			t.Errorf("%s: the handler has seen the end: %v", name, ended)
		}
		seen.mu.Lock()
		if !slices.Contains(seen.all, tc.counted) {
			t.Errorf("%s: %v", name, seen.all)
		}
		seen.mu.Unlock()
		stream, err = client.Fill(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&shop.Order{OrderId: "42"}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.CloseAndRecv(); err != nil || r.GetKey() != "order:42" {
			t.Errorf("%s: with a message: %v, %v", name, r, err)
		}
	}
}
