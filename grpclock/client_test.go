package grpclock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// counting is a service that records the time of each attempt that reaches it.
type counting struct {
	n  atomic.Int32
	at [8]time.Time
}

func (c *counting) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if n := c.n.Add(1); int(n) <= len(c.at) {
		c.at[n-1] = time.Now()
	}
	return handler(ctx, req)
}

// busyOnce is a Locker that refuses its first caller. The refusal has a time after which the
// caller should try again.
type busyOnce struct {
	locker.Locker
	refused atomic.Bool
	after   time.Duration
}

func (b *busyOnce) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	if b.refused.CompareAndSwap(false, true) {
		return nil, &locker.Error{Op: locker.OpAcquire, Key: r.Key, RetryAfter: b.after, Err: locker.ErrBusy}
	}
	return b.Locker.Acquire(ctx, r)
}

// retriesOfGRPC makes a client repeat calls by itself, as a service config of its program says.
var retriesOfGRPC = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
	"initialBackoff": "0.05s", "maxBackoff": "2s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["ABORTED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`)

// gRPC's own client tries again after the time that the server's reply names. A second run, without
// such a time in the reply, shows that the first pause would be at most 50 ms.
func TestARetryingClientFollowsThePushback(t *testing.T) {
	const after = 400 * time.Millisecond
	for name, dial := range map[string]grpc.DialOption{
		"by the trailer":   retriesOfGRPC,
		"by the RetryInfo": grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor(0, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			var seen counting
			client := serve(t, setup{
				locker:  &busyOnce{Locker: lockertest.NewLocker(t, lockertest.NewMemory()), after: after},
				service: &service{}, dial: []grpc.DialOption{dial}, outer: []grpc.UnaryServerInterceptor{seen.intercept},
			})
			if _, err := client.Read(t.Context(), &shop.Order{}); err != nil { // opens the connection
				t.Fatal(err)
			}
			seen.n.Store(0)
			_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
			if err != nil || seen.n.Load() != 2 {
				t.Fatalf("%v after %d attempts", err, seen.n.Load())
			}
			if seen.at[1].Sub(seen.at[0]) < after {
				t.Errorf("the second attempt came after %v, want %v", seen.at[1].Sub(seen.at[0]), after)
			}
		})
	}
}

// busyAlways is a Locker that refuses every caller as busy, and does not know the holder.
type busyAlways struct{ locker.Locker }

func (busyAlways) Acquire(_ context.Context, r locker.Rule) (*locker.Lease, error) {
	return nil, &locker.Error{Op: locker.OpAcquire, Key: r.Key, RetryAfter: 50 * time.Millisecond, Err: locker.ErrBusy}
}

// When the holder is unknown, each RetryAfter is short. Nevertheless a client spreads its attempts
// over some seconds.
func TestAClientSpreadsItsAttempts(t *testing.T) {
	t.Parallel()
	var seen counting
	client := serve(t, setup{
		locker: busyAlways{}, service: &service{}, outer: []grpc.UnaryServerInterceptor{seen.intercept},
		dial: []grpc.DialOption{grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor(0, 0))},
	})
	_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
	if status.Code(err) != codes.Aborted || seen.n.Load() != 5 {
		t.Fatalf("%v after %d attempts", err, seen.n.Load())
	}
	if took := seen.at[4].Sub(seen.at[0]); took < 2*time.Second {
		t.Errorf("five attempts took %v", took)
	}
}

// A client with gRPC's own retries does not repeat a call whose handler may have had an effect: its
// lock was lost, or its process has stopped.
func TestACallThatMayHaveHadAnEffectIsNotRetried(t *testing.T) {
	for name, tc := range map[string]struct {
		handle   func(ctx context.Context, store *lockertest.Memory, l *locker.Engine) error
		code     codes.Code
		attempts int32
	}{
		"lost": {func(ctx context.Context, store *lockertest.Memory, _ *locker.Engine) error {
			store.Steal("order:42")
			<-ctx.Done()
			return nil
		}, codes.Aborted, 1},
		"closed": {func(ctx context.Context, _ *lockertest.Memory, l *locker.Engine) error {
			go func() { _ = l.Close(context.WithoutCancel(ctx)) }()
			<-ctx.Done()
			return context.Cause(ctx)
		}, codes.Unavailable, 1},
		"lost, and answered by Status": {func(ctx context.Context, store *lockertest.Memory, _ *locker.Engine) error {
			store.Steal("order:42")
			<-ctx.Done()
			return grpclock.Status(ctx, ctx.Err()) // the error of a database driver
		}, codes.Aborted, 1},
		"the control": {func(context.Context, *lockertest.Memory, *locker.Engine) error {
			return status.Error(codes.Aborted, "of the handler")
		}, codes.Aborted, 5},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			var seen counting
			l := lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond))
			client := serve(t, setup{
				locker: l,
				outer:  []grpc.UnaryServerInterceptor{seen.intercept},
				dial:   []grpc.DialOption{retriesOfGRPC},
				service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
					return receipt(ctx), tc.handle(ctx, store, l)
				}},
			})
			_, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
			if status.Code(err) != tc.code || seen.n.Load() != tc.attempts {
				t.Errorf("%v after %d attempts, want %v after %d", err, seen.n.Load(), tc.code, tc.attempts)
			}
		})
	}
}

// Each refusal has its status, and says whether gRPC's own clients may repeat the call. A refusal
// that names no time forbids it, whatever its status is. No status shows the key.
func TestEachRefusalHasItsStatus(t *testing.T) {
	for refusal, tc := range map[error]struct {
		code   codes.Code
		reason string
		retry  bool
	}{
		locker.ErrBusy:           {codes.Aborted, grpclock.ReasonBusy, true},
		locker.ErrTooManyWaiters: {codes.ResourceExhausted, grpclock.ReasonTooManyWaiters, true},
		locker.ErrClosed:         {codes.Unavailable, grpclock.ReasonClosed, true},
		locker.ErrUnavailable:    {codes.Unavailable, grpclock.ReasonUnavailable, true},
		locker.ErrDone:           {codes.AlreadyExists, grpclock.ReasonDone, false},
		locker.ErrLost:           {codes.Aborted, grpclock.ReasonLost, false},
		locker.ErrInvalidKey:     {codes.InvalidArgument, grpclock.ReasonInvalidKey, false},
		locker.ErrInvalidRule:    {codes.Internal, grpclock.ReasonMisconfigured, false},
		locker.ErrUnsupported:    {codes.Internal, grpclock.ReasonMisconfigured, false},
	} {
		observed := ""
		client := serve(t, setup{
			locker: lockerFunc(func(r locker.Rule) error {
				return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: refusal}
			}),
			service: &service{},
			opts: []grpclock.Option{grpclock.WithObserve(func(_ context.Context, p *grpclock.Problem) {
				observed += p.Reason + " " + p.Method
			})},
		})
		var trailer metadata.MD
		_, err := client.Place(t.Context(), &shop.Order{OrderId: "secret"}, grpc.Trailer(&trailer))
		want(t, err, tc.code, tc.reason)
		got := trailer.Get("grpc-retry-pushback-ms")
		if len(got) != 1 || (got[0] != "-1") != tc.retry {
			t.Errorf("%v: the trailer says %q, and a retry is permitted: %t", err, got, tc.retry)
		}
		if shown := status.Convert(err).String() + fmt.Sprint(status.Convert(err).Details()); strings.Contains(shown, "secret") {
			t.Errorf("the status shows the key: %s", shown)
		}
		if observed != tc.reason+" "+shop.Shop_Place_FullMethodName {
			t.Errorf("%v: observed %q", err, observed)
		}
	}
}

// The process stops while a stream works. The stream ends with a status that forbids a retry.
func TestAStreamThatWasEndedByCloseIsNotRetried(t *testing.T) {
	l, entered := lockertest.NewLocker(t, lockertest.NewMemory()), make(chan struct{})
	client := serve(t, setup{locker: l, service: &service{talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
		close(entered)
		_, err := s.Recv()
		return err
	}}})
	s, err := client.Talk(metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "acme"))
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	closed := make(chan error, 1)
	go func() { closed <- l.Close(t.Context()) }()
	_, err = s.Recv()
	want(t, err, codes.Unavailable, grpclock.ReasonClosed)
	if got := s.Trailer().Get("grpc-retry-pushback-ms"); len(got) != 1 || got[0] != "-1" {
		t.Errorf("the trailer says %q", got)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestTheClientRetriesWithinItsBounds(t *testing.T) {
	busy := func(after time.Duration) error {
		p := &grpclock.Problem{Code: codes.Aborted, Reason: grpclock.ReasonBusy, RetryAfter: after}
		return p.GRPCStatus().Err()
	}
	for name, tc := range map[string]struct {
		retries  int
		within   time.Duration
		deadline time.Duration
		err      error
		calls    int
		least    time.Duration
		most     time.Duration
	}{
		"four retries":                 {err: busy(time.Second), calls: 5, least: 4 * time.Second, most: 4400 * time.Millisecond},
		"as many as the status allows": {retries: 2, within: time.Hour, err: busy(time.Minute), calls: 3, least: 2 * time.Minute, most: 132 * time.Second},
		"none":                         {retries: -1, err: busy(time.Second), calls: 1},
		"no longer than allowed":       {retries: 9, within: 3500 * time.Millisecond, err: busy(time.Second), calls: 4, least: 3 * time.Second, most: 3300 * time.Millisecond},
		"not past the deadline":        {deadline: 2500 * time.Millisecond, err: busy(time.Second), calls: 3, least: 2 * time.Second, most: 2200 * time.Millisecond},
		"not what was lost":            {err: (&grpclock.Problem{Code: codes.Aborted, Reason: grpclock.ReasonLost}).GRPCStatus().Err(), calls: 1},
		"not what others say":          {err: status.Error(codes.Aborted, "of the handler"), calls: 1},
		"nothing after a success":      {calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tc.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.deadline)
					defer cancel()
				}
				calls, began := 0, time.Now()
				err := grpclock.UnaryClientInterceptor(tc.retries, tc.within)(ctx, "/m", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					calls++
					return tc.err
				})
				if took := time.Since(began); calls != tc.calls || took < tc.least || took > tc.most || status.Code(err) != status.Code(tc.err) {
					t.Errorf("%d calls in %v: %v", calls, took, err)
				}
			})
		})
	}
	// A caller that gives up returns at once, so the clock of the bubble does not advance.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		err := grpclock.UnaryClientInterceptor(0, 0)(ctx, "/m", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return busy(time.Second)
		})
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("gave up after %v", took)
		}
		want(t, err, codes.Aborted, grpclock.ReasonBusy)
	})
}
