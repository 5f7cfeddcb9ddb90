package sqllock

import (
	"context"
	"fmt"
	"strings"
)

// step is a statement of this package, named after its file.
type step struct {
	name string
	args []any
}

// play runs steps. The last step may be a query with one row, which play scans into dest. MariaDB
// gets all steps in one statement, as a block. MySQL refuses the first block, and gets the steps of
// this and of all later calls one after the other.
func (a *attempt) play(ctx context.Context, steps []step, dest ...any) error {
	if !a.noBlocks.Load() {
		lines := []string{"BEGIN NOT ATOMIC"}
		for _, s := range steps {
			lines = append(lines, a.text(s)+";")
		}
		err := a.ask(ctx, strings.Join(append(lines, "END"), "\n"), dest)
		if a.dialect.number(err) != mysqlSyntax {
			return err
		}
		a.noBlocks.Store(true)
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

// ask runs query. If dest is not empty, it scans the row of the result into dest.
func (a *attempt) ask(ctx context.Context, query string, dest []any) error {
	if len(dest) == 0 {
		_, err := a.tx.Exec(ctx, query)
		return err
	}
	return a.tx.Row(ctx, query, nil, dest...)
}

// text returns s as one statement without parameters, because parameters cost another round
// trip on MySQL. It writes strings in hexadecimal, because settings of the connection can change
// the meaning of other strings.
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

// setSessionChanged records whether the settings of MySQL's session are changed, so that they must
// be restored after the transaction.
func (a *attempt) setSessionChanged(session bool) {
	a.sessionChanged = session
	if s, ok := a.tx.(*standard); ok {
		s.restore = ""
		if session {
			s.restore = a.stmts["restore"]
		}
	}
}
