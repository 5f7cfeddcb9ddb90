package sqllock

import (
	"context"

	"github.com/latchkit/latchkit/locker"
)

// enterMySQL claims all rows before it reads any of them. InnoDB takes its snapshot with the first
// plain SELECT. The snapshot must contain everything that earlier holders have committed. The
// claims may have waited for some of these holders.
func (a *attempt) enterMySQL(ctx context.Context) error {
	claims, shares := a.split()
	var steps []step
	want := len(a.leases)
	switch {
	case a.reads:
		steps = append(steps, step{name: "count"})
		for _, l := range a.leases {
			steps = append(steps, step{"compare", []any{l.Key(), int64(l.Fence())}})
		}
	default:
		steps = a.claimSteps(claims)
		for _, l := range shares {
			steps = append(steps, step{"share_row", []any{l.Key()}})
		}
		for _, l := range shares {
			fence := int64(l.Fence())
			steps = append(steps, step{"share", []any{l.Key(), fence, fence}})
		}
		steps = append(steps, a.noteStep())
	}
	return a.playCounted(ctx, append(a.sessionStep(), steps...), want)
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

// playCounted runs steps. The steps count the claims that the database has accepted. playCounted
// returns an error if this count is less than the number want. It also marks the transaction, so
// that the proof can later show that it is still open.
func (a *attempt) playCounted(ctx context.Context, steps []step, want int) error {
	n := 0
	err := a.play(ctx, append(steps, step{name: "open"}, step{name: "counted"}), &n)
	return a.checkStanding(ctx, n, want, err)
}

// claimSteps returns the steps that claim the resources of leases, and count the claims that the
// database has accepted.
func (a *attempt) claimSteps(leases []*locker.Lease) (steps []step) {
	owner := process()
	for _, l := range leases {
		key, fence := l.Key(), int64(l.Fence())
		steps = append(steps, step{"claim", []any{key, fence, owner, fence, owner, fence, fence}})
	}
	steps = append(steps, step{name: "count"})
	for _, l := range leases {
		key, fence := l.Key(), int64(l.Fence())
		steps = append(steps, step{"claimed", []any{key, fence, owner, fence}})
	}
	return steps
}
