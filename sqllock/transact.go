package sqllock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// transact makes attempts until the transaction is committed, or another attempt is useless or not
// allowed.
func (c *call) transact(ctx context.Context, leases []*locker.Lease) (err error) {
	if err := checkFences(leases); err != nil {
		return err
	}
	tries, returned := 0, false
	ctx, end := leases[0].Observe(ctx, opTransact)
	defer func() {
		if !returned { // fn has panicked or called runtime.Goexit
			err = errPanicked
		}
		end(c.outcome(err, tries))
	}()
	again := false
	for pause := range betweenTries {
		tries++
		again, err = c.try(ctx, leases)
		if !again || tries > c.retries || pause > remaining(leases)-c.marginOf(leases) || !pauseFor(ctx, pause) {
			break
		}
	}
	if again && tries > 1 {
		hint := ""
		if isConnectionLost(err) {
			hint = " (Rows or a Row that are open when the function sends a statement or returns look like a lost connection, too)"
		}
		err = fmt.Errorf("%w after %d attempts%s: %w", ErrRetries, tries, hint, err)
	}
	returned = true
	return err
}

// checkFences returns an error if a lease has a fence that a database cannot compare.
func checkFences(leases []*locker.Lease) error {
	for _, l := range leases {
		if l.Units() > 0 {
			return &locker.Error{Op: opTransact, Key: l.Key(), Err: fmt.Errorf(
				"%w: the lease is a permit of a semaphore, and permits with smaller fences may still be valid, "+
					"so the database cannot refuse a stale holder by its fence; take an Exclusive lock on what the transaction writes, "+
					"or name the keys to claim with WithinAll", locker.ErrUnsupported)}
		}
		if l.Fence() == 0 || l.Fence() > math.MaxInt64 {
			return &locker.Error{Op: opTransact, Key: l.Key(), Err: fmt.Errorf(
				"%w: the lease has no fence that a database could check; use a Locker whose server mints one, such as locker.New, "+
					"or name the keys to claim with WithinAll", locker.ErrUnsupported)}
		}
	}
	return nil
}

// betweenTries are the pauses between attempts. They have jitter, so that two transactions that
// collided do not collide again.
var betweenTries = locker.Jitter(locker.Exponential(5*time.Millisecond, 200*time.Millisecond))

// pauseFor waits for the time pause. It returns false when ctx ends.
func pauseFor(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// remaining returns the remaining time of the lease that ends first. Without leases, it is long.
func remaining(leases []*locker.Lease) time.Duration {
	rest := time.Duration(math.MaxInt64)
	for _, l := range leases {
		rest = min(rest, time.Until(l.Expires()))
	}
	return rest
}

// marginOf returns how much of the leases must be left to send the COMMIT: see WithMargin.
func (c *call) marginOf(leases []*locker.Lease) time.Duration {
	if c.margin > 0 {
		return c.margin
	}
	return min(100*time.Millisecond, remaining(leases)/4)
}

var errPanicked = errors.New("sqllock: the function did not return")

// opTransact is the operation that Observers see: a transaction under the lease, with its
// repetitions.
const opTransact locker.Op = "transact"

// The results of opTransact. Another one is locker.ResultDone.
const (
	resultCommitted      locker.Result = "committed"
	resultRolledBack     locker.Result = "rolled_back"     // because of its work, its database or its lease
	resultStaleFence     locker.Result = "stale_fence"     // a newer holder has claimed the resource
	resultFenceRegressed locker.Result = "fence_regressed" // the fence is older than the database's
	resultCommitUnknown  locker.Result = "commit_unknown"  // it is not known whether the transaction was committed
)

// outcome returns the Outcome for the Observer: of a call that ended with err after this many
// tries.
func (c *call) outcome(err error, tries int) locker.Outcome {
	o := locker.Outcome{Result: resultCommitted, Err: err, Calls: tries}
	switch {
	case err == nil:
	case errors.Is(err, locker.ErrDone):
		o.Result = locker.ResultDone
	case errors.Is(err, ErrStaleFence):
		o.Result = resultStaleFence
	case errors.Is(err, ErrFenceRegressed):
		o.Result = resultFenceRegressed
	case errors.Is(err, ErrCommitUnknown):
		o.Result = resultCommitUnknown
	default:
		o.Result = resultRolledBack
		if code := c.dialect.code(err); code != "" {
			o.Err = coded{err, code}
		}
	}
	return o
}

// coded gives a database's error the error.type of OpenTelemetry's conventions for databases.
type coded struct {
	error
	code string
}

func (c coded) Unwrap() error     { return c.error }
func (c coded) ErrorType() string { return c.code }
