package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// attempt is one try at the transaction: begin, claim, work, commit.
type attempt struct {
	*call
	leases []*locker.Lease
	id     string // of the operation in the ledger
	tx     Transaction
	spoilt func() error // says whether a statement has ended the transaction already; nil: nobody watches
	around *attempt     // whose function began this one; nil: nobody's
	before int64        // what written said when the transaction began; see there
}

type attemptKey struct{}

// nested refuses to claim what a transaction around this one has claimed: it would wait for that one, which waits for us.
func (a *attempt) nested() error {
	for out := a.around; out != nil; out = out.around {
		if out.verifies || a.verifies || out.strategy == VerifyLast {
			continue
		}
		for _, l := range a.leases {
			if slices.ContainsFunc(out.leases, func(o *locker.Lease) bool { return o.Key() == l.Key() }) {
				return &locker.Error{Op: locker.OpTransact, Key: l.Key(), Err: fmt.Errorf(
					"%w: the transaction around this one has claimed it, and would be waited for; use its Tx, or Tx.Nested", locker.ErrUnsupported)}
			}
		}
	}
	return nil
}

// maxOwner is what the column holds.
const maxOwner = 64

// process names this process as the owner of claims. It also helps whoever looks at the table.
var process = sync.OnceValue(func() string {
	host, _ := os.Hostname()
	name := fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()[:12])
	host = strings.ToValidUTF8(host, "")
	return host[:min(len(host), maxOwner-len(name)-1)] + "-" + name
})

// newID returns the name of an operation: the time in microseconds, so that the oldest are found by the primary key, and
// enough chance.
func newID() string { return idAt(time.Now()) + rand.Text()[:12] }

func idAt(t time.Time) string { return fmt.Sprintf("%014x", t.UnixMicro()) }

// try makes one attempt. Again means: nothing was committed, and another attempt may succeed.
//
//	bound   ends with the caller's context or with a lease: what fn and the statements run under
//	ends    ends with bound, but only until COMMIT is sent: what the transaction runs under
//
// A COMMIT that was sent is waited for. To give it up would only mean not to know.
func (c *call) try(ctx context.Context, leases []*locker.Lease) (again bool, err error) {
	a := &attempt{call: c, leases: leases, id: newID()}
	a.around, _ = ctx.Value(attemptKey{}).(*attempt)
	if err := a.nested(); err != nil {
		return false, err
	}
	bound, unbind := bind(context.WithValue(ctx, attemptKey{}, a), leases)
	defer unbind()
	ends, end := context.WithCancelCause(context.WithoutCancel(bound))
	defer end(nil)
	detach := context.AfterFunc(bound, func() { end(context.Cause(bound)) })
	defer detach()
	margin := c.marginOf(leases)

	if c.strategy == VerifyLast && !c.verifies {
		if again, err := a.claimAhead(bound); err != nil {
			return again, a.because(bound, err)
		}
	}
	if a.tx, err = c.begin(ends, c.tx, a.idleLimit()); err != nil {
		return c.dialect.passing(err), a.because(bound, err)
	}
	open := true
	defer func() {
		if open { // an error, a loss or a panic
			a.rollback(bound)
		}
	}()
	if err := a.enter(bound); err != nil {
		return c.dialect.passing(err), a.because(bound, err)
	}
	if err := c.fn(bound, a); err != nil {
		return c.dialect.passing(err), err
	}
	if a.spoilt != nil {
		if err := a.spoilt(); err != nil {
			return c.dialect.passing(err), err
		}
	}
	if err := a.leave(bound); err != nil {
		if errors.Is(err, sql.ErrTxDone) && bound.Err() == nil { // by fn, then; nobody else has ended it
			return a.inquire(bound, err)
		}
		return c.dialect.passing(err), a.because(bound, err)
	}
	if !detach() { // it ended: with the lease, or with the caller
		return false, context.Cause(bound)
	}
	if rest := left(leases); rest < margin && !c.verifies {
		return false, a.fail(leases[0], fmt.Errorf("%w: %v", ErrTooLate, max(rest, 0).Round(time.Millisecond)), 0)
	}
	open = false
	return a.commit(bound, end)
}

// bind returns a context that ends with ctx or with any of the leases.
func bind(ctx context.Context, leases []*locker.Lease) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stops := make([]func() bool, 0, len(leases))
	for _, l := range leases {
		lease := l.Context()
		stops = append(stops, context.AfterFunc(lease, func() { cancel(context.Cause(lease)) }))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// because says more than the error of one of our own statements: what to do, and why ctx has ended where the error only says
// that it has.
func (a *attempt) because(ctx context.Context, err error) error {
	if a.dialect.missing(err) {
		return fmt.Errorf("sqllock: a claim failed; have the tables been made, by sqllock.Migrate? %w", err)
	}
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone)
	if ctx.Err() != nil && ended {
		return context.Cause(ctx)
	}
	return err
}

// idleLimit is how long the transaction may be idle.
func (a *attempt) idleLimit() time.Duration {
	if a.idle > 0 {
		return a.idle
	}
	return max(left(a.leases), time.Millisecond)
}

// idleMillis is the limit as PostgreSQL's setting takes it.
func (a *attempt) idleMillis() int64 {
	return int64(min((a.idleLimit()+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// rollback rolls back, whatever became of ctx, and waits for it, but not for ever: not every driver gives up by itself, and the
// lock is held as long. The error is nobody's business: the reason for the rollback is, and a server that cannot be told finds
// out when the connection ends.
func (a *attempt) rollback(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.answer)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.tx.Rollback(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// fail puts resource and fence to a reason.
func (a *attempt) fail(l *locker.Lease, why error, seen uint64) *Error {
	return &Error{Resource: l.Key(), Fence: l.Fence(), Seen: seen, Err: why}
}
