package sqllock

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// enter does what comes first in the transaction: it claims or compares the fences, writes the
// operation into the ledger, and marks the transaction for proof.
func (a *attempt) enter(ctx context.Context) error {
	defer a.idle.touch()
	switch a.dialect {
	case Postgres:
		return a.enterPostgres(ctx)
	case MySQL:
		return a.enterMySQL(ctx)
	default:
		return a.enterSQLite(ctx)
	}
}

// split returns the leases that are claimed, and those whose resources are only locked against
// claims: the Shared ones beside Exclusive ones.
func (a *attempt) split() (claims, shares []*locker.Lease) {
	for _, l := range a.leases {
		if l.Mode() == locker.Shared {
			shares = append(shares, l)
		} else {
			claims = append(claims, l)
		}
	}
	return claims, shares
}

func (a *attempt) enterPostgres(ctx context.Context) error {
	var n int
	var mark, idle string // what set_config answers
	switch {
	case a.reads:
		err := a.tx.Row(ctx, a.stmts["compare"], []any{asJSON(a.leases), a.id}, &n, &mark)
		if err == nil && n > 0 {
			return a.refuse(ctx)
		}
		return err
	case a.strategy == VerifyLast:
		first := a.leases[0]
		return a.tx.Row(ctx, a.stmts["note"], []any{a.id, first.Key(), int64(first.Fence()), a.idle.millis()}, &mark, &idle)
	}
	claims, shares := a.split()
	args := []any{asJSON(claims), a.owner, a.id, a.idle.millis()}
	if err := a.tx.Row(ctx, a.stmts["claim"], args, &n, &mark, &idle); err != nil {
		return err
	}
	if n < len(claims) {
		return a.refuse(ctx)
	}
	for _, l := range shares {
		if err := a.tx.Exec(ctx, a.stmts["share_row"], l.Key()); err != nil {
			return err
		}
		if err := a.tx.Row(ctx, a.stmts["share"], []any{l.Key(), int64(l.Fence())}, &n); err != nil {
			return err
		}
		if n == 0 {
			return a.refuse(ctx)
		}
	}
	return nil
}

// asJSON is how PostgreSQL gets any number of leases in one parameter that all drivers can send.
func asJSON(leases []*locker.Lease) string {
	type lease struct {
		Resource string `json:"resource"`
		Fence    uint64 `json:"fence"`
	}
	all := make([]lease, len(leases))
	for i, l := range leases {
		all[i] = lease{l.Key(), l.Fence()}
	}
	text, _ := json.Marshal(all) // strings and numbers: it cannot fail
	return string(text)
}

// enterMySQL claims all rows before it reads any of them. InnoDB takes its snapshot with the first
// plain SELECT, and the snapshot must have what those holders have committed whom the claims have
// waited for.
func (a *attempt) enterMySQL(ctx context.Context) error {
	var steps []step
	if !a.borrowed {
		steps = append(steps, step{"session", []any{a.idle.seconds()}})
	}
	claims, shares := a.split()
	want := len(a.leases)
	switch {
	case a.reads:
		steps = append(steps, step{name: "count"})
		for _, l := range a.leases {
			steps = append(steps, step{"compare", []any{l.Key(), int64(l.Fence())}})
		}
	case a.strategy == VerifyLast:
		steps, want = append(steps, a.noting(), step{name: "count"}), 0
	default:
		steps = append(steps, a.claiming(claims)...)
		for _, l := range shares {
			steps = append(steps, step{"share_row", []any{l.Key()}})
		}
		for _, l := range shares {
			fence := int64(l.Fence())
			steps = append(steps, step{"share", []any{l.Key(), fence, fence}})
		}
		steps = append(steps, a.noting())
	}
	a.changed(!a.borrowed)
	var n int
	if err := a.play(ctx, append(steps, step{name: "open"}, step{name: "counted"}), &n); err != nil {
		return err
	}
	if n < want {
		return a.refuse(ctx)
	}
	return nil
}

// claiming are the steps that claim on MySQL, and count the claims that stand.
func (a *attempt) claiming(leases []*locker.Lease) (steps []step) {
	for _, l := range leases {
		key, fence := l.Key(), int64(l.Fence())
		steps = append(steps, step{"claim", []any{key, fence, a.owner, fence, a.owner, fence, fence}})
	}
	steps = append(steps, step{name: "count"})
	for _, l := range leases {
		key, fence := l.Key(), int64(l.Fence())
		steps = append(steps, step{"claimed", []any{key, fence, a.owner, fence}})
	}
	return steps
}

// noting is the step that writes the operation into the ledger: one row for the transaction, under
// its first resource.
func (a *attempt) noting() step {
	return step{"note", []any{a.id, a.leases[0].Key(), int64(a.leases[0].Fence())}}
}

// step is a statement of ours, by the name of its file.
type step struct {
	name string
	args []any
}

// withoutBlocks has the pools whose servers have refused a block: those of MySQL.
var withoutBlocks sync.Map

// play runs steps, the last of which may be a query with one row. MariaDB takes them all in one
// statement, as a block, and MySQL one after the other.
func (a *attempt) play(ctx context.Context, steps []step, dest ...any) error {
	if _, ok := withoutBlocks.Load(a.pool); !ok {
		lines := []string{"BEGIN NOT ATOMIC"}
		for _, s := range steps {
			lines = append(lines, a.text(s)+";")
		}
		err := a.ask(ctx, strings.Join(append(lines, "END"), "\n"), dest)
		if a.dialect.number(err) != mysqlSyntax {
			return err
		}
		if a.pool != nil {
			withoutBlocks.Store(a.pool, true)
		}
	}
	for i, s := range steps {
		var into []any
		if i == len(steps)-1 {
			into = dest
		}
		if err := a.ask(ctx, a.text(s), into); err != nil {
			return err
		}
	}
	return nil
}

// ask runs a statement, and scans its row if there is a destination for it.
func (a *attempt) ask(ctx context.Context, query string, dest []any) error {
	if len(dest) == 0 {
		return a.tx.Exec(ctx, query)
	}
	return a.tx.Row(ctx, query, nil, dest...)
}

// text is a step as one statement without parameters, which are a round trip more on MySQL. Strings
// are written in hexadecimal: no setting of the connection changes what that means.
func (a *attempt) text(s step) string {
	var b strings.Builder
	rest := a.stmts[s.name]
	for _, arg := range s.args {
		before, after, _ := strings.Cut(rest, "?")
		b.WriteString(before)
		if text, ok := arg.(string); ok {
			fmt.Fprintf(&b, "X'%X'", text)
		} else {
			fmt.Fprint(&b, arg)
		}
		rest = after
	}
	b.WriteString(rest)
	return b.String()
}

// changed notes whether the settings of MySQL's session are changed.
func (a *attempt) changed(session bool) {
	a.session = session
	if s, ok := a.tx.(*standard); ok {
		s.restore = ""
		if session {
			s.restore = a.stmts["restore"]
		}
	}
}

func (a *attempt) enterSQLite(ctx context.Context) (err error) {
	if err := a.tx.Exec(ctx, a.stmts["open"]); err != nil {
		return err
	}
	switch {
	case a.reads:
		if err := a.compare(ctx, a.leases); err != nil {
			return err
		}
		a.before, err = a.written(ctx)
		return err
	case a.strategy == VerifyLast: // leave writes the operation: here that would take the only write lock
		return nil
	}
	claims, shares := a.split()
	if err := a.claimSQLite(ctx, claims); err != nil {
		return err
	}
	if err := a.compare(ctx, shares); err != nil { // nobody else can write any more
		return err
	}
	return a.note(ctx)
}

func (a *attempt) claimSQLite(ctx context.Context, leases []*locker.Lease) error {
	for _, l := range leases {
		if err := a.tx.Exec(ctx, a.stmts["claim"], l.Key(), int64(l.Fence()), a.owner, int64(l.Fence())); err != nil {
			return err
		}
	}
	for _, l := range leases {
		seen, owner, err := a.look(ctx, l.Key())
		if err != nil {
			return err
		}
		if seen != int64(l.Fence()) || owner != a.owner {
			return a.refuse(ctx)
		}
	}
	return nil
}

func (a *attempt) note(ctx context.Context) error {
	s := a.noting()
	return a.tx.Exec(ctx, a.stmts[s.name], s.args...)
}

// compare refuses leases if a larger fence was claimed.
func (a *attempt) compare(ctx context.Context, leases []*locker.Lease) error {
	for _, l := range leases {
		seen, _, err := a.look(ctx, l.Key())
		if err != nil {
			return err
		}
		if seen > int64(l.Fence()) {
			return a.refuse(ctx)
		}
	}
	return nil
}

// leave does what comes last before the COMMIT.
func (a *attempt) leave(ctx context.Context) error {
	if a.reads {
		if err := a.unwritten(ctx); err != nil {
			return err
		}
	}
	if !a.proofRides() {
		if err := a.prove(ctx); err != nil {
			return err
		}
	}
	if a.strategy == VerifyLast && !a.reads {
		return a.verify(ctx)
	}
	return nil
}

// verify makes sure that the claims still stand, and keeps others from claiming until the
// transaction ends.
func (a *attempt) verify(ctx context.Context) error {
	standing := 0
	switch a.dialect {
	case Postgres:
		if err := a.tx.Row(ctx, a.stmts["verify"], []any{asJSON(a.leases), a.owner}, &standing); err != nil {
			return err
		}
	case SQLite:
		if err := a.note(ctx); err != nil {
			if a.dialect.duplicate(err) {
				return errGivenUp
			}
			return err
		}
		fallthrough
	default:
		for _, l := range a.leases {
			n := 0
			query := a.text(step{"verify", []any{l.Key(), int64(l.Fence()), a.owner}})
			if a.dialect == SQLite { // to which X'…' is no text
				query = a.stmts["verify"]
			}
			args := []any{l.Key(), int64(l.Fence()), a.owner}
			if a.dialect == MySQL {
				args = nil
			}
			if err := a.tx.Row(ctx, query, args, &n); err != nil {
				return err
			}
			standing += n
		}
	}
	if standing < len(a.leases) {
		return a.refuse(ctx)
	}
	return nil
}

// proofRides reports whether the proof goes to the server together with COMMIT.
func (a *attempt) proofRides() bool {
	_, ok := a.tx.(commitAfterer)
	return a.dialect == MySQL || a.dialect == Postgres && ok
}

// prove makes sure that the transaction is the one that was begun, and open. A COMMIT or ROLLBACK
// in the text of a statement has ended it, and so may a statement's error, see [Dialect.ended].
// What was written since is in no transaction that has claimed anything.
func (a *attempt) prove(ctx context.Context) error {
	if a.dialect == Postgres {
		var one int
		return a.unproven(a.tx.Row(ctx, a.stmts["proof"], []any{a.id}, &one))
	}
	return a.unproven(a.tx.Exec(ctx, a.stmts["proof"]))
}

// unproven explains the error of a proof.
func (a *attempt) unproven(err error) error {
	switch {
	case a.dialect.failsProof(err):
		e := a.fail(a.leases[0], ErrEnded, 0)
		e.Op = a.op()
		return e
	case a.dialect == Postgres && state(err) == "25P02":
		return fmt.Errorf("sqllock: a statement of the transaction has failed, and the function has ignored its error: %w", err)
	}
	return err
}

var errGivenUp = errors.New("sqllock: Resolve has answered that the operation is not committed, before the operation was done; " +
	"so it must not be committed any more")

// written is how many rows the connection has changed so far, where the database does not refuse to
// write in a transaction that only reads; 0 elsewhere.
func (a *attempt) written(ctx context.Context) (rows int64, err error) {
	if query := a.stmts["written"]; query != "" {
		err = a.tx.Row(ctx, query, nil, &rows)
	}
	return rows, err
}

// unwritten refuses a transaction that has written, and has claimed nothing.
func (a *attempt) unwritten(ctx context.Context) error {
	rows, err := a.written(ctx)
	if err != nil {
		return err
	}
	if rows != a.before {
		return a.fail(a.leases[0], fmt.Errorf(
			"%w: the transaction has written, though its lease is Shared or WithTxOptions says ReadOnly", locker.ErrUnsupported), 0)
	}
	return nil
}

// claimAhead claims in a transaction of its own, so that no row of the table stays locked while fn
// runs.
func (a *attempt) claimAhead(ctx context.Context) (again bool, err error) {
	ends, end := context.WithCancelCause(ctx)
	defer end(nil)
	ahead := &attempt{call: a.call, leases: a.leases, id: ""}
	ahead.idle.begin(ahead)
	if ahead.lent, ahead.tx, err = a.begin(ends, nil); err != nil {
		return a.dialect.passing(err), err
	}
	if err := ahead.claimOnly(ctx); err != nil {
		ahead.rollback(ctx)
		return a.dialect.passing(err) || a.dialect.lockTimeout(err), err
	}
	// When COMMIT gets no answer, it is done again: the same owner may claim twice.
	if err := ahead.sendCommit(ctx, end); err != nil {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return true, err
	}
	return false, nil
}

// claimOnly claims without an operation.
func (a *attempt) claimOnly(ctx context.Context) error {
	var n int
	var mark, idle string
	switch a.dialect {
	case Postgres:
		err := a.tx.Row(ctx, a.stmts["claim"], []any{asJSON(a.leases), a.owner, "", a.idle.millis()}, &n, &mark, &idle)
		if err != nil {
			return err
		}
	case MySQL:
		a.changed(true)
		steps := append([]step{{"session", []any{a.idle.seconds()}}}, a.claiming(a.leases)...)
		if err := a.play(ctx, append(steps, step{name: "open"}, step{name: "counted"}), &n); err != nil {
			return err
		}
	default:
		if err := a.tx.Exec(ctx, a.stmts["open"]); err != nil {
			return err
		}
		return a.claimSQLite(ctx, a.leases)
	}
	if n < len(a.leases) {
		return a.refuse(ctx)
	}
	return nil
}

// look returns the newest claim of a resource.
func (c *call) lookIn(ctx context.Context, tx Transaction, key string) (fence int64, owner string, err error) {
	err = tx.Row(ctx, c.stmts["look"], []any{key}, &fence, &owner)
	return fence, owner, err
}

func (a *attempt) look(ctx context.Context, key string) (fence int64, owner string, err error) {
	return a.lookIn(ctx, a.tx, key)
}

// refuse says why a claim does not stand. If the lease is still ours after the larger fence was
// seen, nobody can have been granted the key in between, so that fence is older, and the lock
// server has gone back. Otherwise we come too late.
func (a *attempt) refuse(ctx context.Context) error {
	for _, l := range a.leases {
		seen, owner, err := a.look(ctx, l.Key())
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		claims := !a.reads && l.Mode() != locker.Shared
		switch fence := int64(l.Fence()); {
		case seen < fence && (a.strategy == ClaimFirst || !claims):
			continue // it was not this one
		case seen == fence && (owner == a.owner || !claims):
			continue
		}
		why := ErrStaleFence
		if time.Until(l.Expires()) > 0 && l.Context().Err() == nil && a.holds(ctx, l) {
			why = ErrFenceRegressed
			if uint64(seen) == l.Fence() {
				why = errSharedFence
			}
		}
		return a.fail(l, why, uint64(seen))
	}
	return a.fail(a.leases[0], ErrStaleFence, 0)
}

// errSharedFence: the same fence was claimed by another owner.
var errSharedFence = fmt.Errorf(
	"%w, or another process works under the same lease: then give both the same WithOwner", ErrFenceRegressed)

// inspector is a Locker that can say who holds a key.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// holds asks the lock server whether it still knows the lease: after a failover the key may have
// another holder, and this process not know it yet.
func (a *attempt) holds(ctx context.Context, l *locker.Lease) bool {
	var info locker.Info
	var err error
	if i, ok := a.locker.(inspector); ok {
		info, err = i.Inspect(ctx, l.Key())
	} else {
		info, err = l.Inspect(ctx)
	}
	return err == nil && info.Held && !info.Foreign && info.Fence <= l.Fence()
}
