package lockertest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

var order = locker.Rule{Key: "order:42", TTL: 3 * time.Second}

// A payment is written in two steps: the amount, and then the receipt.
type payment func(ctx context.Context, l locker.Locker, write func(context.Context) error) error

func pay(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
	return locker.Run(ctx, l, order, func(ctx context.Context) error {
		if err := write(ctx); err != nil {
			return err
		}
		return write(ctx)
	})
}

// Each of these functions has a mistake, and passes a test without a loss.
var mistakes = []struct {
	name string
	pay  payment
	want []string // parts of the output of the test that fails
}{
	{"the caller's context", func(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
		lease, err := l.Acquire(ctx, order)
		if err != nil {
			return err
		}
		if err := errors.Join(write(ctx), write(ctx)); err != nil {
			return err
		}
		return lease.Release(ctx)
	}, []string{"FAIL: TestEachLoss/loss_at_1_acquire", "data was written after order:42 was taken away, and neither ErrLost nor a stale fence", "loss_test.go:"}},
	{"a cleanup under another context", func(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
		return locker.Run(ctx, l, order, func(ctx context.Context) error {
			if err := write(ctx); err != nil {
				return errors.Join(err, write(context.Background())) // "undo" what another holder may have written
			}
			return write(ctx)
		})
	}, []string{"FAIL: TestEachLoss/loss_before_2_look", "data was written"}},
	{"work that outlives the lease", func(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
		written := make(chan error)
		err := locker.Run(ctx, l, order, func(ctx context.Context) error {
			go func() {
				<-time.After(time.Minute) // the lease is renewed; then the holder leaves, and the receipt comes
				written <- write(locker.Detach(ctx))
			}()
			return write(ctx)
		})
		return errors.Join(err, <-written)
	}, []string{"FAIL: TestEachLoss/loss_at_3_release", "data was written"}},
	{"an error that is dropped", func(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
		lease, err := l.Acquire(ctx, order)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release(ctx) }()
		_, _ = write(lease.Context()), write(lease.Context())
		return nil
	}, []string{"FAIL: TestEachLoss/loss_at_2_look", "paid, and 0 of 2 writes"}},
}

// checkPayment returns a test for EachLoss.
func checkPayment(pay payment) func(*testing.T, locker.Locker, func(context.Context) error) {
	return func(t *testing.T, l locker.Locker, write func(context.Context) error) {
		written := 0
		err := pay(t.Context(), l, func(ctx context.Context) error {
			err := write(ctx)
			if err == nil {
				written++
			}
			return err
		})
		switch {
		case err == nil && written != 2:
			t.Errorf("paid, and %d of 2 writes", written)
		case err != nil && !errors.Is(err, locker.ErrLost) && !errors.Is(err, sqllock.ErrStaleFence):
			t.Error(err)
		}
	}
}

// A mistake makes the test fail, so it runs in another process.
func TestEachLoss(t *testing.T) {
	if name := os.Getenv("LATCHKIT_MISTAKE"); name != "" {
		for _, m := range mistakes {
			if m.name == name {
				lockertest.EachLoss(t, checkPayment(m.pay))
			}
		}
		return
	}
	lockertest.EachLoss(t, checkPayment(pay))
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEachLoss$", "-test.v")
			child.Env = append(os.Environ(), "LATCHKIT_MISTAKE="+m.name)
			out, err := child.CombinedOutput()
			if err == nil {
				t.Fatalf("the mistake was not found:\n%s", out)
			}
			for _, want := range m.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestEachLossTakesTheLeaseAwayAtEachCallAndLook(t *testing.T) {
	var places []string
	lockertest.EachLoss(t, func(t *testing.T, l locker.Locker, _ func(context.Context) error) {
		_, place, _ := strings.Cut(t.Name(), "/")
		places = append(places, place)
		waited := false
		err := locker.Run(t.Context(), l, order, func(ctx context.Context) error {
			switch at := ctx.Err(); {
			case strings.HasPrefix(place, "loss_before_2") != (at != nil):
				t.Errorf("%s: the look has seen %v", place, at)
			case at != nil:
				return context.Cause(ctx)
			}
			select {
			case <-ctx.Done(): // a look, and a wait in which a renewal learns of the loss
				waited = true
				return context.Cause(ctx)
			case <-time.After(1500 * time.Millisecond):
				return nil
			}
		})
		if lost := place != ""; lost != errors.Is(err, locker.ErrLost) {
			t.Errorf("%s: Run returned %v", place, err)
		}
		if early := slices.Contains([]string{"", "loss_before_2_look", "loss_at_5_release"}, place); waited == early {
			t.Errorf("%s: the work has waited for the end of its context: %v", place, waited)
		}
	})
	want := []string{"", "loss_at_1_acquire", "loss_at_2_look", "loss_before_2_look", "loss_at_3_look", "loss_before_3_look", "loss_at_4_renew", "loss_at_5_release"}
	if !slices.Equal(places, want) {
		t.Errorf("places %q, want %q", places, want)
	}
}

func TestEachLossLetsTheCodeTryAgain(t *testing.T) {
	lockertest.EachLoss(t, func(t *testing.T, l locker.Locker, write func(context.Context) error) {
		tries := 0
		err := errors.New("not paid")
		for ; err != nil && tries < 3; tries++ {
			err = pay(t.Context(), l, write)
		}
		if lost := strings.Contains(t.Name(), "/"); err != nil || (tries == 2) != lost {
			t.Errorf("%d tries, then %v", tries, err)
		}
	})
}

// ExampleEachLoss is the test of a function that pays an order under a lock.
func ExampleEachLoss() {
	var t *testing.T // of your test

	lockertest.EachLoss(t, func(t *testing.T, l locker.Locker, write func(ctx context.Context) error) {
		paid := false
		save := func(ctx context.Context) error { // in production: an UPDATE in sqllock's Within
			err := write(ctx)
			paid = paid || err == nil
			return err
		}
		err := locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, save) // the code under test
		switch {
		case err == nil && !paid:
			t.Error("the order counts as paid, and nothing was saved")
		case err != nil && !errors.Is(err, locker.ErrLost) && !errors.Is(err, sqllock.ErrStaleFence):
			t.Error(err)
		}
	})
}
