package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func ofOp(op locker.Op, errs ...error) error {
	return &locker.Error{Op: op, Key: "secret:42", RetryAfter: 1500 * time.Millisecond, Err: errors.Join(errs...)}
}

func TestStatusAnswersTheErrorsOfLocksAndTransactions(t *testing.T) {
	lost := ofOp(locker.OpHold, locker.ErrLost)
	for name, tc := range map[string]struct {
		err     error
		code    codes.Code
		reason  string
		message string
		retry   time.Duration
	}{
		"a stale fence":                       {fmt.Errorf("pay: %w", &sqllock.Error{Resource: "secret:42", Fence: 7, Err: sqllock.ErrStaleFence}), codes.Aborted, grpclock.ReasonLost, "nothing was changed", time.Second},
		"a stale fence, and the loss":         {errors.Join(&sqllock.Error{Err: sqllock.ErrStaleFence}, lost), codes.Aborted, grpclock.ReasonLost, "nothing was changed", 1500 * time.Millisecond},
		"too late":                            {&sqllock.Error{Err: sqllock.ErrTooLate}, codes.Aborted, grpclock.ReasonLost, "nothing was changed", time.Second},
		"an idle transaction, and the loss":   {errors.Join(fmt.Errorf("pay: %w", sqllock.ErrIdle), lost), codes.Aborted, grpclock.ReasonLost, "nothing was changed", 1500 * time.Millisecond},
		"done, says the database":             {&sqllock.Error{Err: locker.ErrDone}, codes.AlreadyExists, grpclock.ReasonDone, "not done again", 0},
		"done, says the lock server":          {ofOp(locker.OpAcquire, locker.ErrDone), codes.AlreadyExists, grpclock.ReasonDone, "not done again", 0},
		"lost":                                {lost, codes.Aborted, grpclock.ReasonLost, "may or may not", 0},
		"expired":                             {ofOp(locker.OpHold, locker.ErrExpired), codes.Aborted, grpclock.ReasonLost, "may or may not", 0},
		"lost, and a second lock was busy":    {errors.Join(ofOp(locker.OpAcquire, locker.ErrBusy), lost), codes.Aborted, grpclock.ReasonLost, "may or may not", 0},
		"lost while RunAll took further keys": {ofOp(locker.OpAcquire, locker.ErrLost), codes.Aborted, grpclock.ReasonLost, "nothing was done", 0},
		"busy":                                {ofOp(locker.OpAcquire, locker.ErrBusy), codes.Aborted, grpclock.ReasonBusy, "nothing was done", 1500 * time.Millisecond},
		"the server is down":                  {ofOp(locker.OpAcquire, locker.ErrUnavailable), codes.Unavailable, grpclock.ReasonUnavailable, "nothing was done", 1500 * time.Millisecond},
		"the release was not answered":        {ofOp(locker.OpRelease, locker.ErrUnavailable), codes.Unavailable, grpclock.ReasonUnavailable, "unknown whether", 0},
		"the process stops, before the work":  {ofOp(locker.OpAcquire, locker.ErrClosed), codes.Unavailable, grpclock.ReasonClosed, "nothing was done", 1500 * time.Millisecond},
		"the process stops, during the work":  {ofOp(locker.OpHold, locker.ErrClosed), codes.Unavailable, grpclock.ReasonClosed, "may or may not", 0},
	} {
		t.Run(name, func(t *testing.T) {
			err := grpclock.Status(t.Context(), tc.err)
			want(t, err, tc.code, tc.reason)
			text := status.Convert(err).Message()
			if p, ok := errors.AsType[*grpclock.Problem](err); !ok || p.RetryAfter != tc.retry || !errors.Is(err, tc.err) ||
				!strings.Contains(text, tc.message) || strings.Contains(fmt.Sprint(p, text, status.Convert(err).Details()), "secret") {
				t.Errorf("%v: %q, retry after %v", err, text, p.RetryAfter)
			}
		})
	}
	ended, lose := context.WithCancelCause(t.Context())
	lose(lost)
	want(t, grpclock.Status(ended, ended.Err()), codes.Aborted, grpclock.ReasonLost) // the error of a database driver
	for _, err := range []error{nil, errors.New("no rows"), context.Canceled, status.Error(codes.NotFound, "gone")} {
		if got := grpclock.Status(t.Context(), err); got != err {
			t.Errorf("Status(%v) = %v", err, got)
		}
	}
}

// The handler says that its transaction was rolled back. Its word counts, also after the loss.
func TestACallWhoseTransactionWasRefusedIsRetried(t *testing.T) {
	store := lockertest.NewMemory()
	var seen counting
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store),
		outer:  []grpc.UnaryServerInterceptor{seen.intercept},
		dial:   []grpc.DialOption{retriesOfGRPC},
		service: &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
			if seen.n.Load() > 1 {
				return receipt(ctx), nil
			}
			store.Steal("order:42")
			store.Free("order:42") // the other holder has written, and has left
			return nil, grpclock.Status(ctx, &sqllock.Error{Err: sqllock.ErrStaleFence})
		}},
	})
	r, err := client.Place(t.Context(), &shop.Order{OrderId: "42"})
	if err != nil || r.GetKey() != "order:42" || seen.n.Load() != 2 {
		t.Errorf("%v, %v after %d attempts", r, err, seen.n.Load())
	}
}

// A handler calls Run itself, and leaves the answers to Status.
func ExampleStatus() {
	store := lockertest.NewMemory()
	l, err := store.NewLocker()
	if err != nil {
		panic(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	store.Occupy("order:43", 0) // another call holds that lock

	place := func(ctx context.Context, in *shop.Order) (*shop.Receipt, error) {
		var receipt *shop.Receipt
		rule := locker.Rule{Key: "order:" + in.GetOrderId(), Wait: locker.NoWait}
		err := locker.Run(ctx, l, rule, func(context.Context) error {
			receipt = &shop.Receipt{Key: rule.Key}
			return nil
		})
		return receipt, grpclock.Status(ctx, err)
	}
	for _, order := range []string{"42", "43"} {
		receipt, err := place(context.Background(), &shop.Order{OrderId: order})
		reason, _ := grpclock.Reason(err)
		fmt.Printf("%q %v %q\n", receipt.GetKey(), status.Code(err), reason)
	}
	// Output:
	// "order:42" OK ""
	// "" Aborted "LOCK_BUSY"
}
