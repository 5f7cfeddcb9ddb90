package sqllock

import (
	"context"
	"encoding/json"

	"github.com/latchkit/latchkit/locker"
)

func (a *attempt) enterPostgres(ctx context.Context) error {
	if a.reads || len(a.claims) == 0 {
		if err := a.comparePostgres(ctx); err != nil || a.reads {
			return err
		}
	} else {
		n, err := a.claimPostgres(ctx)
		if err := a.checkStanding(ctx, n, len(a.claims), err); err != nil {
			return err
		}
	}
	for _, l := range a.shares {
		n := 0
		if _, err := a.tx.Exec(ctx, a.stmts["share_row"], l.Key()); err != nil {
			return err
		}
		err := a.tx.Row(ctx, a.stmts["share"], []any{l.Key(), int64(l.Fence())}, &n)
		if err := a.checkStanding(ctx, n, 1, err); err != nil {
			return err
		}
	}
	return nil
}

// comparePostgres compares the fences of all leases, without a claim, and sets the idle limit. If the transaction may write,
// comparePostgres also writes the operation into the ledger.
func (a *attempt) comparePostgres(ctx context.Context) error {
	n := 0
	var mark, idle string // the answers of set_config
	err := a.tx.Row(ctx, a.stmts["compare"], []any{asJSON(a.leases), a.id, a.idle.millis()}, &n, &mark, &idle)
	if err == nil && n > 0 {
		return a.claimError(ctx)
	}
	if err == nil && !a.reads {
		s := a.noteStep()
		_, err = a.tx.Exec(ctx, a.stmts[s.name], s.args...)
	}
	return err
}

// claimPostgres claims fences, and writes the operation into the ledger. It returns how many claims
// the database has accepted.
func (a *attempt) claimPostgres(ctx context.Context) (n int, err error) {
	query, args := "claim_one", []any{a.claims[0].Key(), int64(a.claims[0].Fence())}
	if len(a.claims) > 1 {
		query, args = "claim", []any{asJSON(a.claims)}
	}
	args = append(args, process(), a.id, a.idle.millis())
	var mark, idle string // the answers of set_config
	err = a.tx.Row(ctx, a.stmts[query], args, &n, &mark, &idle)
	return n, err
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
