package lockertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Record is one operation that has ended.
type Record struct {
	Op      locker.Op
	Rule    locker.Rule
	Outcome locker.Outcome
}

// Recorder is an Observer that records operations and warnings. Its zero value is ready to use.
type Recorder struct {
	mu         sync.Mutex
	begunCount map[locker.Op]int
	records    []Record
	warnings   []locker.Warning
	changed    chan struct{} // closed at the next change
}

var _ interface {
	locker.Observer
	locker.Warner
} = (*Recorder)(nil)

// Begin implements [locker.Observer].
func (r *Recorder) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	r.change(func() {
		if r.begunCount == nil {
			r.begunCount = make(map[locker.Op]int)
		}
		r.begunCount[op]++
	})
	return ctx, func(o locker.Outcome) {
		r.change(func() { r.records = append(r.records, Record{op, rule, o}) })
	}
}

// Warn implements [locker.Warner].
func (r *Recorder) Warn(w locker.Warning) { r.change(func() { r.warnings = append(r.warnings, w) }) }

// Begun returns how many operations of this kind have begun.
func (r *Recorder) Begun(op locker.Op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begunCount[op]
}

// Records returns the operations that have ended, in the order of their ends. With ops, it returns
// only operations of these kinds.
func (r *Recorder) Records(ops ...locker.Op) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.filter(ops)
}

// Warnings returns the warnings so far.
func (r *Recorder) Warnings() []locker.Warning {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]locker.Warning(nil), r.warnings...)
}

// Await waits until cond returns true for r. If that takes more than a minute, the test fails.
func (r *Recorder) Await(t testing.TB, cond func(*Recorder) bool) {
	t.Helper()
	bound := time.After(time.Minute)
	for {
		r.mu.Lock()
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if cond(r) {
			return
		}
		select {
		case <-changed:
		case <-bound:
			t.Fatal("lockertest: the Recorder did not record within a minute what Await waits for")
		}
	}
}

// filter returns the records of the operations in ops, or all records if ops is empty. The caller
// holds r.mu.
func (r *Recorder) filter(ops []locker.Op) []Record {
	var found []Record
	for _, rec := range r.records {
		for _, op := range ops {
			if rec.Op == op {
				found = append(found, rec)
			}
		}
		if len(ops) == 0 {
			found = append(found, rec)
		}
	}
	return found
}

// change calls do under the mutex, and wakes the callers of Await.
func (r *Recorder) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}
