package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// row is one statement about the cost of locks, and the measurement that shows whether the
// statement is true.
type row struct {
	name  string
	title string
	about string // how the row is measured; readers see this text above the table
	run   func(context.Context, order) (table, error)
}

// order defines how much to measure.
type order struct {
	rounds int
	turn   time.Duration

	// aloneRounds is the number of rounds of P1, in which client and server share a processor.
	// The turns of P1 are half as long as other turns.
	aloneRounds int
	// The next fields are for P6, the row about held leases. A turn of P6 takes longer than a
	// TTL.
	hoardRounds        int
	hoardTTL           time.Duration
	leases, peerLeases int
	// inheritTTL is the TTL of the locks in P8, the row about killed holders.
	inheritTTL time.Duration
}

var rows = []row{
	uncontendedRow, manyKeysRow, farRow, handOffRow, contendedRow, hoardRow, quorumRow, inheritRow,
	readWriteRow, transactionsRow, guardedTasksRow, updateRow,
}

func (r row) write(w io.Writer, t table) {
	fmt.Fprintf(w, "## %s. %s\n\n%s\n\n%s\n", r.name, r.title, r.about, t)
}

// progress writes a line about the progress of the bench to standard error.
var progress = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
