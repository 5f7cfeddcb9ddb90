package sqllock

import (
	"context"
	"encoding/json"

	"github.com/latchkit/latchkit/locker"
)

// enterPostgres claims all fences in one statement, which also writes the operation into the ledger,
// marks the transaction and sets the idle limit. Without claims, another statement does the same.
func (a *attempt) enterPostgres(ctx context.Context) error {
	var claims, shares []*locker.Lease
	for _, l := range a.leases {
		if l.Mode() == locker.Shared {
			shares = append(shares, l)
		} else {
			claims = append(claims, l)
		}
	}
	if a.reads || len(claims) == 0 {
		if err := a.comparePostgres(ctx); err != nil || a.reads {
			return err
		}
		if err := a.note(ctx); err != nil {
			return err
		}
	} else if err := a.claimPostgres(ctx, claims); err != nil {
		return err
	}
	for _, l := range shares {
		if err := a.lock(ctx, l); err != nil {
			return err
		}
		if err := a.check(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// comparePostgres compares the fences of all leases, without a claim.
func (a *attempt) comparePostgres(ctx context.Context) error {
	overtaken := 0
	var mark, idle string // the answers of set_config
	err := a.row(ctx, "compare", []any{asJSON(a.leases), a.id, a.idle.millis()}, &overtaken, &mark, &idle)
	if err == nil && overtaken > 0 {
		return a.claimError(ctx)
	}
	return err
}

func (a *attempt) claimPostgres(ctx context.Context, claims []*locker.Lease) error {
	query, args := "claim_one", []any{claims[0].Key(), int64(claims[0].Fence())}
	if len(claims) > 1 {
		query, args = "claim", []any{asJSON(claims)}
	}
	n := 0
	var mark, idle string // the answers of set_config
	err := a.row(ctx, query, append(args, process(), a.id, a.idle.millis()), &n, &mark, &idle)
	if err == nil && n < len(claims) {
		return a.claimError(ctx)
	}
	return err
}

// asJSON returns leases as one JSON parameter, which every PostgreSQL driver can send.
func asJSON(leases []*locker.Lease) string {
	type lease struct {
		Resource string `json:"resource"`
		Fence    uint64 `json:"fence"`
	}
	all := make([]lease, len(leases))
	for i, l := range leases {
		all[i] = lease{l.Key(), l.Fence()}
	}
	text, _ := json.Marshal(all) // cannot fail for strings and numbers
	return string(text)
}
