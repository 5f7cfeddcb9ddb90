package idempotency

import (
	"context"
	"maps"
	"sync"
	"time"
)

// memory is the Store of [NewMemory].
type memory struct {
	mu      sync.Mutex
	records map[string]entry
	sweepAt int // at this number of entries, all expired entries are deleted
}

type entry struct {
	rec     Record
	expires time.Time
}

var _ Store = (*memory)(nil)

// minSweep is the smallest number of entries at which expired entries are deleted.
const minSweep = 64

// NewMemory returns an empty Store in this process, for tests and for a service that has one process.
// Its size is not limited, but each Record is deleted after its lifetime.
func NewMemory() Store { return &memory{records: make(map[string]entry), sweepAt: minSweep} }

// Load implements [Store]. Its error is the error of ctx.
func (m *memory) Load(ctx context.Context, key string) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(key), ctx.Err()
}

// Swap implements [Store]. Its error is the error of ctx.
func (m *memory) Swap(ctx context.Context, key string, old, next Record, lifetime time.Duration) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.get(key); now.Run != old.Run || now.Open != old.Open {
		return now, nil
	}
	if next.Run == "" {
		delete(m.records, key)
		return next, nil
	}
	now := time.Now()
	m.records[key] = entry{next, now.Add(lifetime)}
	if len(m.records) >= m.sweepAt {
		maps.DeleteFunc(m.records, func(_ string, e entry) bool { return !now.Before(e.expires) })
		m.sweepAt = max(minSweep, 2*len(m.records))
	}
	return next, nil
}

// get returns the Record of key. The caller holds m.mu.
func (m *memory) get(key string) Record {
	if e, ok := m.records[key]; ok && time.Now().Before(e.expires) {
		return e.rec
	}
	return Record{}
}
