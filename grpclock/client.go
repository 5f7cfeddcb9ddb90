package grpclock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// UnaryClientInterceptor returns a client's interceptor that repeats refused calls if the server
// permits that. The server's status has a RetryInfo with the time after which the call may be
// repeated. A refused call has had no effect. It returns other errors unchanged.
//
// retries is how many times a call is repeated; 0: 4 times; a negative number: never. within is the
// longest time from the first attempt to the last; 0: 30 s. A call is repeated only while its
// deadline leaves time for it.
//
// gRPC's own retries, by a service config, repeat every call with a status code of their policy. Use
// either the interceptor or gRPC's retries: with both, each would repeat the repetitions of the
// other.
func UnaryClientInterceptor(retries int, within time.Duration) grpc.UnaryClientInterceptor {
	c := client{cmp.Or(retries, 4), cmp.Or(max(within, 0), 30*time.Second)}
	return c.unary
}

// client has the arguments of UnaryClientInterceptor.
type client struct {
	retries int
	within  time.Duration
}

// unary is the client's interceptor for unary calls.
func (c client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	for tries := 0; ; tries++ {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil || tries >= c.retries {
			return err
		}
		pause, ok := retryAfter(err)
		if !ok {
			return err
		}
		pause = max(pause, shortest(tries))
		// Clients that were refused together must not retry together. So a random time is added to
		// the pause.
		pause += rand.N(pause/10 + 1)
		again := time.Now().Add(pause)
		if deadline, ok := ctx.Deadline(); ok && again.After(deadline) || again.Sub(began) > c.within {
			return err // the status has more information than the end of the context
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// shortest returns the least time that a client must wait before it repeats a call once more. The
// argument repeated is how many times the client has repeated the call already. A client has only a
// few attempts. If nothing is known about the holder, the Locker's advice is 50 ms each time, so
// without this minimum all attempts would be over in 0.3 s.
func shortest(repeated int) time.Duration {
	if repeated <= 0 {
		return 0
	}
	return min(50*time.Millisecond<<(2*min(repeated, 5)), soon)
}

// retryAfter returns the time after which a call that ended with err may be repeated. It returns
// false if the server sent no time.
func retryAfter(err error) (time.Duration, bool) {
	if _, ours := Reason(err); !ours {
		return 0, false
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay().CheckValid() == nil {
			return max(info.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

// Reason returns why a call was refused, such as [ReasonBusy]. err is the error that a client got
// from a server with this package's interceptors. For other errors, ok is false.
func Reason(err error) (reason string, ok bool) {
	if p, ok := errors.AsType[*Problem](err); ok { // if client and server are in one process
		return p.Reason, true
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info.GetReason(), true
		}
	}
	return "", false
}
