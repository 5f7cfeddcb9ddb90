package locker

import (
	"sync"
	"time"
)

// pace chooses the TTL of leases from how late renewals are answered: long enough that a renewal as late as the latest of
// late is early, with ten times that to spare, and no longer, because so long nobody notices a crash.
type pace struct {
	bounds

	mu   sync.Mutex
	late time.Duration // from when a renewal is due to its answer: rises at once, falls slowly
}

const (
	spare     = 10 // TTLs are so many times the lateness
	fallsSlow = 16 // by this part of the difference with each renewal that is less late
)

// observe is called with how long a renewal has been due, when it is answered or must be repeated.
func (p *pace) observe(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	late = max(late, 0)
	if late >= p.late {
		p.late = late
	} else {
		p.late -= (p.late - late) / fallsSlow
	}
}

// ttl is what to ask for now.
func (p *pace) ttl() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clamp(p.late * spare)
}
