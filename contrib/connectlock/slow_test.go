package connectlock_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A client that does not read loses the lock of its stream, perhaps while a message is under way to
// this client. The end of the stream is written after this message, because two goroutines must
// never write to the connection at once.
func TestAClientThatDoesNotReadLosesItsHold(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			locked := make(chan struct{})
			s := serve(t, lockertest.NewLocker(t, store), handlers{
				watch: func(ctx context.Context, r *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
					close(locked)
					return flood(ctx, r, s)
				},
			}, grpclock.FromDescriptors(), grpclock.WithMaxStall(100*time.Millisecond))
			w, err := client(s, shop.Shop_Watch_FullMethodName, opts...).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			<-locked
			untilFree(t, store)
			for w.Receive() { // now the client reads
			}
			want(t, w.Err(), connect.CodeDeadlineExceeded, grpclock.ReasonStalled)
		})
	}
}

// A Send waits, because the client does not read. When the lock is lost, the waiting Send ends.
func TestALostLockEndsASendThatWaits(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			ended := make(chan struct{})
			s := serve(t, lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), handlers{
				watch: func(ctx context.Context, r *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
					defer close(ended)
					return flood(ctx, r, s)
				},
			}, grpclock.FromDescriptors())
			w, err := client(s, shop.Shop_Watch_FullMethodName, opts...).CallServerStream(t.Context(), connect.NewRequest(&shop.Order{OrderId: "42"}))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			if !w.Receive() {
				t.Fatal(w.Err())
			}
			store.Steal("order:42")
			<-ended
			for w.Receive() {
			}
			want(t, w.Err(), connect.CodeAborted, grpclock.ReasonLost)
		})
	}
}

// When the lock of a stream is lost, its client receives the reason, even if this client sends
// nothing more.
func TestAClientThatSendsNothingLosesItsHold(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			locked := make(chan struct{})
			s := serve(t, lockertest.NewLocker(t, store), handlers{
				fill: func(_ context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
					for s.Receive() {
						close(locked)
					}
					return connect.NewResponse(&shop.Receipt{}), s.Err()
				},
			}, grpclock.FromDescriptors(), grpclock.WithMaxStall(100*time.Millisecond))
			fill := client(s, shop.Shop_Fill_FullMethodName, opts...).CallClientStream(t.Context())
			if err := fill.Send(&shop.Order{OrderId: "42"}); err != nil {
				t.Fatal(err)
			}
			<-locked
			untilFree(t, store)
			_, err := fill.CloseAndReceive()
			want(t, err, connect.CodeDeadlineExceeded, grpclock.ReasonStalled)
		})
	}
}

// A client may set a deadline, and then neither read nor write. Its lock must not outlive the
// deadline, and the handler must learn of the deadline.
func TestACallWhoseTimeIsOverKeepsNoLock(t *testing.T) {
	for name, opts := range protocols {
		for way, procedure := range map[string]string{"no message": shop.Shop_Fill_FullMethodName, "no reading": shop.Shop_Watch_FullMethodName} {
			t.Run(name+", "+way, func(t *testing.T) {
				store := lockertest.NewMemory()
				ended := make(chan error, 1)
				s := serve(t, lockertest.NewLocker(t, store), handlers{
					watch: func(ctx context.Context, r *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
						err := flood(ctx, r, s)
						ended <- err
						return err
					},
					fill: func(_ context.Context, s *connect.ClientStream[shop.Order]) (*connect.Response[shop.Receipt], error) {
						for s.Receive() {
						}
						ended <- s.Err()
						return connect.NewResponse(&shop.Receipt{}), s.Err()
					},
				}, grpclock.FromDescriptors())
				// The client's own context has no deadline, so the client keeps the connection.
				c := client(s, procedure, opts...).CallBidiStream(t.Context())
				c.RequestHeader().Set("Grpc-Timeout", "200m")
				c.RequestHeader().Set("Connect-Timeout-Ms", "200")
				if err := c.Send(&shop.Order{OrderId: "42"}); err != nil {
					t.Fatal(err)
				}
				if way == "no reading" {
					_ = c.CloseRequest()
				}
				if err := <-ended; connect.CodeOf(err) != connect.CodeDeadlineExceeded {
					t.Errorf("the handler got %v", err)
				}
				untilFree(t, store)
				_ = c.CloseResponse()
			})
		}
	}
}

// flood sends more than the buffers between server and client can hold. Its text is random,
// because connect-go compresses messages.
func flood(_ context.Context, _ *connect.Request[shop.Order], s *connect.ServerStream[shop.Receipt]) error {
	noise := make([]byte, 64<<10)
	for range 1000 {
		_, _ = rand.Read(noise)
		if err := s.Send(&shop.Receipt{Key: base64.StdEncoding.EncodeToString(noise)}); err != nil {
			return err
		}
	}
	return nil
}

// untilFree waits until no lock is held.
func untilFree(t *testing.T, store *lockertest.Memory) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); store.Len() != 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d locks are left", store.Len())
		}
	}
}
