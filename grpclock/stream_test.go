package grpclock_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// streams has one stream of each kind. When begin has returned, the handler runs under the lock.
// The function end ends the stream.
var streams = map[string]struct {
	key  string
	open func(ctx context.Context, client shop.ShopClient) (begin func() error, end func() error)
}{
	"watch": {"order:42", func(ctx context.Context, client shop.ShopClient) (begin, end func() error) {
		s, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
		return func() error { return firstOf(err, s) }, func() error { return lastOf(s) }
	}},
	"fill": {"order:42", func(ctx context.Context, client shop.ShopClient) (begin, end func() error) {
		s, err := client.Fill(ctx)
		if err == nil {
			err = s.Send(&shop.Order{OrderId: "42"})
		}
		return func() error { return err }, func() error { _, err := s.CloseAndRecv(); return err }
	}},
	"talk": {"talk:acme", func(ctx context.Context, client shop.ShopClient) (begin, end func() error) {
		s, err := client.Talk(metadata.AppendToOutgoingContext(ctx, "x-tenant", "acme"))
		return func() error { return firstOf(err, s) }, func() error {
			if err := s.CloseSend(); err != nil {
				return err
			}
			return lastOf(s)
		}
	}},
}

func firstOf(err error, s interface{ Recv() (*shop.Receipt, error) }) error {
	if err == nil {
		_, err = s.Recv()
	}
	return err
}

func lastOf(s interface{ Recv() (*shop.Receipt, error) }) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// streaming is a service whose streams send one message. Such a stream ends when its client ends
// it, when finish is closed, or when its context ends.
type streaming struct {
	finish  chan struct{} // the method Watch returns when `finish` is closed
	entered chan context.Context
}

func (h *streaming) service(t *testing.T) *service {
	enter := func(early, ctx context.Context) *shop.Receipt {
		r := receipt(early) // uses the context that the handler has asked for before its first message
		if r.GetFence() == 0 || receipt(ctx).GetFence() != r.GetFence() {
			t.Errorf("the contexts have the leases %v and %v", r, receipt(ctx))
		}
		h.entered <- early
		return r
	}
	return &service{
		watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
			if err := s.Send(enter(s.Context(), s.Context())); err != nil {
				return err
			}
			select {
			case <-h.finish:
				return nil
			case <-s.Context().Done():
				return context.Cause(s.Context())
			}
		},
		fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
			ctx := s.Context()
			for first := true; ; first = false {
				if _, err := s.Recv(); err == io.EOF {
					return s.SendAndClose(receipt(ctx))
				} else if err != nil {
					return err
				}
				if first {
					enter(ctx, s.Context())
				}
			}
		},
		talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
			if err := s.Send(enter(s.Context(), s.Context())); err != nil {
				return err
			}
			for {
				if _, err := s.Recv(); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
			}
		},
	}
}

func TestAStreamIsUnderItsLockFromItsFirstMessageToItsEnd(t *testing.T) {
	for name, kind := range streams {
		t.Run(name, func(t *testing.T) {
			h := streaming{make(chan struct{}), make(chan context.Context, 1)}
			store := lockertest.NewMemory()
			client := serve(t, setup{locker: lockertest.NewLocker(t, store), service: h.service(t)})
			begin, end := kind.open(t.Context(), client)
			if err := begin(); err != nil {
				t.Fatal(err)
			}
			<-h.entered
			_, other := kind.open(t.Context(), client)
			want(t, other(), codes.Aborted, grpclock.ReasonBusy)
			close(h.finish)
			if err := end(); err != nil {
				t.Error(err)
			}
			if store.Len() != 0 {
				t.Error("the stream is over, and the lock is held")
			}
		})
	}
}

// A handler may wait for a message that does not come. When the lock is lost, the handler and the
// client must learn of it.
func TestALostLockEndsAStreamThatWaits(t *testing.T) {
	for name, kind := range streams {
		t.Run(name, func(t *testing.T) {
			h := streaming{make(chan struct{}), make(chan context.Context, 1)}
			store := lockertest.NewMemory()
			client := serve(t, setup{locker: lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), service: h.service(t)})
			begin, end := kind.open(t.Context(), client)
			if err := begin(); err != nil {
				t.Fatal(err)
			}
			ctx := <-h.entered
			store.Steal(kind.key)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), locker.ErrLost) {
				t.Errorf("the context ended because of %v", context.Cause(ctx))
			}
			want(t, end(), codes.Aborted, grpclock.ReasonLost)
		})
	}
}

func TestARefusedStreamSaysSoWhateverItsHandlerMakesOfIt(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 0)
	client := serve(t, setup{locker: lockertest.NewLocker(t, store), service: &service{
		fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
			_, err := s.Recv()
			want(t, err, codes.Aborted, grpclock.ReasonBusy)
			_, err = s.Recv()
			want(t, err, codes.Aborted, grpclock.ReasonBusy)
			want(t, s.SendAndClose(&shop.Receipt{}), codes.Aborted, grpclock.ReasonBusy)
			return nil
		},
	}})
	_, end := streams["fill"].open(t.Context(), client)
	want(t, end(), codes.Aborted, grpclock.ReasonBusy)
}

// If a stream was refused before anything was sent, gRPC's own client repeats it, provided that
// the client's retry policy allows that.
func TestARefusedStreamIsRetried(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 200*time.Millisecond)
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store),
		dial:   []grpc.DialOption{retriesOfGRPC},
		service: &service{watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
			return s.Send(receipt(s.Context()))
		}},
	})
	s, err := client.Watch(t.Context(), &shop.Order{OrderId: "42"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || r.GetKey() != "order:42" {
		t.Errorf("%v, %v", r, err)
	}
}

func TestAStreamWithoutALockIsLeftAlone(t *testing.T) {
	client := serve(t, setup{
		locker: lockerFunc(func(locker.Rule) error { return locker.ErrBusy }),
		rules:  grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "k"}}),
		service: &service{watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
			return s.Send(receipt(s.Context()))
		}},
	})
	s, err := client.Watch(t.Context(), &shop.Order{OrderId: "42"})
	if err := firstOf(err, s); err != nil {
		t.Error(err)
	}
}

// fakeStream is a stream whose handler panics. In a real server, the panic would end the process.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (f *fakeStream) Context() context.Context { return f.ctx }
func (f *fakeStream) RecvMsg(m any) error      { m.(*shop.Order).OrderId = "42"; return nil }

// Before version 1.79.3, gRPC served a path that a client had sent without the first slash. The
// rules apply to such a call, too.
func TestAPathWithoutItsSlashIsGuarded(t *testing.T) {
	busy := lockerFunc(func(locker.Rule) error { return locker.ErrBusy })
	intercept, err := grpclock.StreamServerInterceptor(busy, grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName: {Key: "talk"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	info := &grpc.StreamServerInfo{FullMethod: strings.TrimPrefix(shop.Shop_Talk_FullMethodName, "/")}
	err = intercept(nil, &fakeStream{ctx: t.Context()}, info, func(any, grpc.ServerStream) error {
		t.Error("the handler runs without its lock")
		return nil
	})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
}

func TestAPanicInAStreamReleasesTheLockAndGoesOn(t *testing.T) {
	store := lockertest.NewMemory()
	intercept, err := grpclock.StreamServerInterceptor(lockertest.NewLocker(t, store), grpclock.FromDescriptors())
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-tenant", "acme"))
	for _, method := range []string{shop.Shop_Talk_FullMethodName, shop.Shop_Fill_FullMethodName} {
		func() {
			defer func() {
				if recover() != "handler" || store.Len() != 0 {
					t.Errorf("%s: %d keys are held", method, store.Len())
				}
			}()
			_ = intercept(nil, &fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method}, func(_ any, s grpc.ServerStream) error {
				if err := s.RecvMsg(&shop.Order{}); err != nil {
					t.Error(err)
				}
				if store.Len() != 1 {
					t.Error("the handler runs without its lock")
				}
				panic("handler")
			})
		}()
	}
}

func TestContextsDerivedFromAStreamsContextEndWithTheLock(t *testing.T) {
	store := lockertest.NewMemory()
	ends := make(chan error, 3)
	client := serve(t, setup{locker: lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), service: &service{
		fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
			before, cancel := context.WithCancel(s.Context())
			defer cancel()
			if _, err := s.Recv(); err != nil {
				return err
			}
			after, cancel := context.WithTimeout(s.Context(), time.Hour)
			defer cancel()
			context.AfterFunc(s.Context(), func() { ends <- context.Cause(s.Context()) })
			var wg sync.WaitGroup
			for _, ctx := range []context.Context{before, after} {
				wg.Go(func() { <-ctx.Done(); ends <- context.Cause(ctx) })
			}
			store.Steal("order:42")
			wg.Wait()
			return nil
		},
	}})
	_, end := streams["fill"].open(t.Context(), client)
	want(t, end(), codes.Aborted, grpclock.ReasonLost)
	for range 3 {
		if cause := <-ends; !errors.Is(cause, locker.ErrLost) {
			t.Errorf("a context ended because of %v", cause)
		}
	}
}
