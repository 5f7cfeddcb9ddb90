package lockertest

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// keys returns the keys that match pattern and have a holder or a waiter. The caller holds m.mu, as
// for all methods below.
func (m *Memory) keys(pattern string) ([]string, error) {
	names := make(map[string]struct{})
	for key := range m.leases {
		if l, held := m.lease(key); held && !l.foreign {
			names[key] = struct{}{}
		}
	}
	for key := range m.queues {
		if len(m.queue(key)) > 0 {
			names[key] = struct{}{}
		}
	}
	var found []string
	flat := strings.NewReplacer("/", "\x00") // a star in a pattern of Redis matches a slash too
	for _, key := range slices.Sorted(maps.Keys(names)) {
		ok, err := path.Match(flat.Replace(pattern), flat.Replace(key))
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, key)
		}
	}
	return found, nil
}

// line returns the queue of key in the form that operators get.
func (m *Memory) line(key string) []locker.Waiter {
	var all []locker.Waiter
	processes := make(map[string]int)
	for _, w := range m.queue(key) {
		shown := locker.Waiter{Mode: w.mode, Since: w.queuedAt, Handed: w.handed, Metadata: w.metadata, Weight: w.weight, Limit: w.limit}
		if w.inbox != "" {
			if processes[w.inbox] == 0 {
				processes[w.inbox] = len(processes) + 1
			}
			shown.Process, shown.Gone = processes[w.inbox], m.listener(w.inbox) == nil
		}
		all = append(all, shown)
	}
	return all
}
