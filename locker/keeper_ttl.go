package locker

import (
	"sync"
	"time"
)

// ttlTuner sets the TTL of leases to ten times the longest delay of a recent renewal. A longer
// TTL would only delay the detection of a crash.
type ttlTuner struct {
	bounds

	mu    sync.Mutex
	delay time.Duration // the delay from a due renewal to its answer; rises at once, falls slowly
}

const (
	ttlFactor   = 10 // the TTL is the delay times this factor
	fallDivisor = 16 // a smaller delay lowers the field delay by 1/fallDivisor of the difference
)

// observe records the delay of one renewal. The delay begins when the renewal is due. This
// delay ends when the renewal is answered, or is repeated.
func (p *ttlTuner) observe(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delay = max(delay, 0)
	if delay >= p.delay {
		p.delay = delay
	} else {
		p.delay -= (p.delay - delay) / fallDivisor
	}
}

// ttl returns the TTL to ask for now.
func (p *ttlTuner) ttl() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clamp(p.delay * ttlFactor)
}
