package idempotency

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Memory is a [Store] in this process, for tests and for a service that has one process. The size
// of a Memory is not limited, but each Record is deleted after its lifetime. Make a Memory with
// [NewMemory].
type Memory struct {
	mu      sync.Mutex
	records map[string]entry
	sweepAt int // at this number of entries, all expired entries are deleted
}

type entry struct {
	rec     Record
	expires time.Time
}

var _ Store = (*Memory)(nil)

// minSweep is the smallest number of entries at which expired entries are deleted.
const minSweep = 64

// NewMemory returns an empty Store.
func NewMemory() *Memory { return &Memory{records: make(map[string]entry), sweepAt: minSweep} }

// Load implements [Store]. Its error is the error of ctx.
func (m *Memory) Load(ctx context.Context, key string) (rec Record, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return rec, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, found = m.get(key)
	return rec, found, nil
}

// Begin implements [Store]. Its error is the error of ctx.
func (m *Memory) Begin(ctx context.Context, key string, fingerprint [32]byte, fence uint64, lifetime time.Duration) (
	earlier Record, found, began bool, err error,
) {
	if err := ctx.Err(); err != nil {
		return earlier, false, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	earlier, found = m.get(key)
	if found && (earlier.State != InProgress || earlier.Fingerprint != fingerprint || earlier.Fence > fence) {
		return earlier, true, false, nil
	}
	m.put(key, Record{Fingerprint: fingerprint, Fence: fence, State: InProgress}, lifetime)
	return earlier, found, true, nil
}

// Save implements [Store]. Its error is the error of ctx, or [ErrOvertaken].
func (m *Memory) Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, found := m.get(key); found {
		switch {
		case was.Fence != rec.Fence || was.Fingerprint != rec.Fingerprint:
			return ErrOvertaken
		case was.State != InProgress:
			return nil
		}
	}
	m.put(key, rec, lifetime)
	return nil
}

// Forget implements [Store]. Its error is the error of ctx.
func (m *Memory) Forget(ctx context.Context, key string, fence uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, found := m.get(key); found && was.State == InProgress && was.Fence == fence {
		delete(m.records, key)
	}
	return nil
}

// Remove deletes the Record of key, whatever its state.
func (m *Memory) Remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
}

// Len returns the number of Records, including expired Records that were not deleted yet.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// get returns the Record of key, and whether there is one. The caller holds m.mu.
func (m *Memory) get(key string) (Record, bool) {
	e, ok := m.records[key]
	if !ok || !time.Now().Before(e.expires) {
		return Record{}, false
	}
	return e.rec.clone(), true
}

// put stores rec under key for lifetime. The caller holds m.mu.
func (m *Memory) put(key string, rec Record, lifetime time.Duration) {
	now := time.Now()
	m.records[key] = entry{rec.clone(), now.Add(lifetime)}
	if len(m.records) >= m.sweepAt {
		maps.DeleteFunc(m.records, func(_ string, e entry) bool { return !now.Before(e.expires) })
		m.sweepAt = max(minSweep, 2*len(m.records))
	}
}

// clone returns a copy that shares no memory with rec.
func (rec Record) clone() Record {
	r := &rec.Response
	r.Header, r.Trailer, r.Body = cloneHeader(r.Header), cloneHeader(r.Trailer), bytes.Clone(r.Body)
	return rec
}

func cloneHeader(h map[string][]string) map[string][]string {
	if h == nil {
		return nil
	}
	clone := make(map[string][]string, len(h))
	for name, values := range h {
		clone[name] = slices.Clone(values)
	}
	return clone
}
