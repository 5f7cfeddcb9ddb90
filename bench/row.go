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
	about string // how the row is measured, for readers of the tables
	run   func(context.Context, order) (finding, error)
}

// order is how much to measure.
type order struct {
	rounds int
	turn   time.Duration

	// For the row on one processor, whose turns are half as long.
	aloneRounds int
	// For the row about held leases, whose turns last longer than a TTL.
	hoardRounds        int
	hoardTTL           time.Duration
	leases, peerLeases int
	// For the row about killed holders.
	inheritTTL time.Duration
}

// finding is the result of a row.
type finding struct {
	table    table
	verdicts []verdict
}

var rows = []row{
	uncontendedRow, unpinnedRow, manyKeysRow, farRow, handOffRow, fewProcessesRow, oneProcessRow, hoardRow, quorumRow,
	inheritRow, readWriteRow, adapterRow, shardsRow, besideRow, transactionsRow, guardedTasksRow, idleTasksRow,
	semaphoreRow, stripesRow, updateRow, headRow, observerRow,
}

func (r row) write(w io.Writer, f finding) {
	fmt.Fprintf(w, "## %s. %s\n\n%s\n\n%s\n", r.name, r.title, r.about, f.table)
}

// progress reports the progress of the bench on standard error.
var progress = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
