package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// row is one claim, and the measurement that decides whether the claim is true.
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

	// aloneRounds is the number of rounds of the row on one processor. The turns of this row are
	// half as long.
	aloneRounds int
	// The next fields are for the row about held leases. The turns of this row last longer than
	// a TTL.
	hoardRounds        int
	hoardTTL           time.Duration
	leases, peerLeases int
	// inheritTTL is for the row about killed holders.
	inheritTTL time.Duration
}

// finding is what a row has found.
type finding struct {
	table    table
	verdicts []verdict
}

var rows = []row{
	uncontendedRow, unpinnedRow, manyKeysRow, farRow, handOffRow, fewProcessesRow, oneProcessRow, hoardRow, quorumRow,
	inheritRow, readWriteRow, adapterRow, shardsRow, backgroundRow, transactionsRow, guardedTasksRow, idleTasksRow,
	semaphoreRow, stripesRow, updateRow, headRow, observerRow,
}

func (r row) write(w io.Writer, f finding) {
	fmt.Fprintf(w, "## %s. %s\n\n%s\n\n%s\n", r.name, r.title, r.about, f.table)
}

// progress writes a line about the progress of the bench to standard error.
var progress = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
