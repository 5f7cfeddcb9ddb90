package grpclock_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// deaf is a stream whose Recv and Send end with the connection, and not with the stream's context.
// Streams behind an interceptor with a time limit behave like this.
type deaf struct {
	grpc.ServerStream
	ctx   context.Context
	gone  chan struct{}
	calls atomic.Int32
}

func (d *deaf) Context() context.Context { return d.ctx }
func (d *deaf) SendMsg(any) error        { return d.RecvMsg(nil) }

func (d *deaf) RecvMsg(any) error {
	d.calls.Add(1)
	<-d.gone
	return io.EOF
}

// talking returns an interceptor that guards Talk before its first message.
func talking(t *testing.T, l locker.Locker) func(s grpc.ServerStream, handler grpc.StreamHandler) error {
	t.Helper()
	intercept, err := grpclock.StreamServerInterceptor(l, grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName: {Key: "talk"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	return func(s grpc.ServerStream, handler grpc.StreamHandler) error {
		return intercept(nil, s, &grpc.StreamServerInfo{FullMethod: shop.Shop_Talk_FullMethodName}, handler)
	}
}

// A call has a deadline, and its client is silent. The lock must not outlive the deadline.
func TestTheEndOfACallEndsARecvAndASendThatWait(t *testing.T) {
	for name, wait := range map[string]func(grpc.ServerStream) error{
		"Recv": func(s grpc.ServerStream) error { return s.RecvMsg(nil) },
		"Send": func(s grpc.ServerStream) error { return s.SendMsg(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				intercept := talking(t, lockertest.NewLocker(t, store))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				stream := &deaf{ctx: ctx, gone: make(chan struct{})}
				defer close(stream.gone)
				began := time.Now()
				err := intercept(stream, func(_ any, s grpc.ServerStream) error {
					first := wait(s)
					want(t, wait(s), codes.DeadlineExceeded, "") // no second goroutine is in the stream
					return first
				})
				want(t, err, codes.DeadlineExceeded, "")
				if took, n := time.Since(began), stream.calls.Load(); took != time.Second || n != 1 || store.Len() != 0 {
					t.Errorf("it took %v, the stream was used %d times, and %d keys are locked", took, n, store.Len())
				}
			})
		})
	}
}

// After a pause, no look at the stream's context says that it is alive. Here the clock of the
// bubble jumps to the end of the lease, and the handler runs before or after the goroutine that
// ends the context.
func TestALookAtTheStreamsContextEndsAStreamWhoseTimeIsOver(t *testing.T) {
	for name, look := range locktest.Looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				intercept := talking(t, lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithoutRenewal(), locker.WithTTL(time.Second)))
				for range 50 {
					err := intercept(&deaf{ctx: t.Context()}, func(_ any, s grpc.ServerStream) error {
						lease, _ := locker.FromContext(s.Context())
						time.Sleep(time.Until(lease.Expires())) //nolint:forbidigo // virtual time
						if !look(s.Context()) {
							t.Error("the context says that the stream has its lock")
						}
						return nil
					})
					want(t, err, codes.Aborted, grpclock.ReasonLost)
				}
			})
		})
	}
}
