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
	run   func(context.Context, order) (finding, error)
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
	// servers are the folders of P24's other servers.
	servers []string
}

// finding is the result of a row: its table, and a verdict on each target.
type finding struct {
	table    table
	verdicts []verdict
}

var rows = []row{
	uncontendedRow, unpinnedRow, manyKeysRow, farRow, handOffRow, farHandOffRow, fewProcessesRow, oneProcessRow, hoardRow,
	farHoardRow, quorumRow, farQuorumRow,
	inheritRow, readWriteRow, adapterRow, shardsRow, transactionsRow, guardedTasksRow, idleTasksRow,
	semaphoreRow, stripesRow, updateRow, headRow, observerRow, serversRow,
}

func (r row) write(w io.Writer, f finding) {
	fmt.Fprintf(w, "## %s. %s\n\n%s\n\n%s\n", r.name, r.title, r.about, f.table)
}

// progress writes a line about the progress of the bench to standard error.
var progress = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
