package idempotency

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Memory is a [Store] in this process: for tests, and for a service that runs once. What it holds is bounded by the lifetime
// of the Records alone. Make one with [NewMemory].
type Memory struct {
	mu      sync.Mutex
	records map[string]entry
	sweepAt int // as many entries: look for those that have run out
}

type entry struct {
	rec  Record
	ends time.Time
}

var _ Store = (*Memory)(nil)

// smallest number of entries that is worth a sweep.
const smallest = 64

// NewMemory returns an empty Store.
func NewMemory() *Memory { return &Memory{records: make(map[string]entry), sweepAt: smallest} }

// Load is the Store's method. Its error is ctx's.
func (m *Memory) Load(ctx context.Context, key string) (rec Record, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return rec, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.records[key]
	if !ok || !time.Now().Before(e.ends) {
		return rec, false, nil
	}
	return e.rec.clone(), true, nil
}

// Save is the Store's method. Its error is ctx's.
func (m *Memory) Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.records[key]; ok && now.Before(e.ends) {
		return nil
	}
	m.records[key] = entry{rec.clone(), now.Add(lifetime)}
	if len(m.records) >= m.sweepAt {
		maps.DeleteFunc(m.records, func(_ string, e entry) bool { return !now.Before(e.ends) })
		m.sweepAt = max(smallest, 2*len(m.records))
	}
	return nil
}

// Len returns how many Records are held, those that have run out and were not yet swept away included.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// clone keeps a Record apart from what its owner does with it.
func (r Record) clone() Record {
	r.Body = bytes.Clone(r.Body)
	header := make(map[string][]string, len(r.Header))
	for name, values := range r.Header {
		header[name] = slices.Clone(values)
	}
	r.Header = header
	return r
}
