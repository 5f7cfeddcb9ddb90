package sqllock

import (
	"context"

	"github.com/latchkit/latchkit/locker"
)

// enterMySQL locks all rows before it reads any of them. InnoDB takes its snapshot with the first
// plain SELECT. The snapshot must contain everything that earlier holders have committed. Each of
// the locks may have waited for one of these holders.
func (a *attempt) enterMySQL(ctx context.Context) error {
	steps := a.sessionStep()
	count := step{name: "count"}
	if a.reads {
		steps = append(steps, count)
		for _, l := range a.leases {
			steps = append(steps, step{"compare", []any{l.Key(), int64(l.Fence())}})
		}
		return a.playCounted(ctx, steps)
	}
	for _, l := range a.leases { // all callers use the order of the keys: two orders could deadlock
		steps = append(steps, a.lockStep(l))
	}
	steps = append(steps, count)
	for _, l := range a.leases {
		steps = append(steps, a.checkStep(l))
	}
	return a.playCounted(ctx, append(steps, a.noteStep()))
}

// lockStep returns the step that claims the resource of l, or locks it against claims if l is
// Shared. The step may wait for an earlier holder.
func (a *attempt) lockStep(l *locker.Lease) step {
	if a.isShared(l) {
		return step{"share_row", []any{l.Key()}}
	}
	key, fence, owner := l.Key(), int64(l.Fence()), process()
	return step{"claim", []any{key, fence, owner, fence, owner, fence, fence}}
}

// checkStep returns the step that counts l, if the database has accepted its claim, or if l is
// Shared and no larger fence was claimed. The step waits for no earlier holder, because lockStep
// has locked the row.
func (a *attempt) checkStep(l *locker.Lease) step {
	key, fence := l.Key(), int64(l.Fence())
	if a.isShared(l) {
		return step{"share", []any{key, fence, fence}}
	}
	return step{"claimed", []any{key, fence, process(), fence}}
}

// sessionStep returns the step that changes the session's settings. A transaction of InTx keeps its
// settings.
func (a *attempt) sessionStep() []step {
	a.setSessionChanged(!a.borrowed)
	if a.borrowed {
		return nil
	}
	return []step{{"session", []any{a.idle.seconds()}}}
}

// playCounted runs steps. The steps count the leases that the database has accepted. playCounted
// returns an error if it has not accepted all. It also marks the transaction, so that the proof can
// later show that it is still open.
func (a *attempt) playCounted(ctx context.Context, steps []step) error {
	n := 0
	err := a.play(ctx, append(steps, step{name: "open"}, step{name: "counted"}), &n)
	return a.checkStanding(ctx, n, len(a.leases), err)
}
