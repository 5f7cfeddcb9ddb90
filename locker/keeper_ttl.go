package locker

import (
	"sync"
	"time"
)

// ttlTuner sets the TTL of leases to ten times the longest delay of a recent renewal. A longer
// TTL would only delay the detection of a crash.
type ttlTuner struct {
	bounds

	mu   sync.Mutex
	late time.Duration // from when a renewal is due until its answer; rises at once, falls slowly
}

const (
	spare     = 10 // the TTL is the delay times this factor
	fallsSlow = 16 // a smaller delay lowers late by 1/fallsSlow of the difference
)

// observe is called with the delay of one renewal. The delay begins when the renewal is due. It
// ends when the renewal is answered, or is repeated.
func (p *ttlTuner) observe(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	late = max(late, 0)
	if late >= p.late {
		p.late = late
	} else {
		p.late -= (p.late - late) / fallsSlow
	}
}

// ttl returns the TTL to ask for now.
func (p *ttlTuner) ttl() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clamp(p.late * spare)
}
