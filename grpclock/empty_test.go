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
	var seen results
	ended := false
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(&seen)),
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
	if want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey); ended {
		t.Error("the handler has seen the end")
	}
	seen.mu.Lock()
	if !slices.Contains(seen.all, "order invalid_key") {
		t.Error(seen.all)
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
		t.Errorf("with a message: %v, %v", r, err)
	}
}
