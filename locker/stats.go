package locker

import (
	"math/rand/v2"
	"sync"
	"time"
)

// holdStats measures, for each Rule.Name, how long leases are held in this process, and how often
// an attempt after a pause succeeds.
type holdStats struct {
	mu     sync.Mutex
	byName map[string]*nameStats
}

// nameStats has measurements of the leases of one Name.
type nameStats struct {
	holds int
	mean  time.Duration // the mean time for which leases were held; the last leases count most
	scale float64       // the pause between attempts is the mean times this factor
}

// recordHold records that a lease whose Rule.Name is name was held for d.
func (t *holdStats) recordHold(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.statsOf(name)
	if h == nil {
		return
	}
	h.holds++
	h.mean += (d - h.mean) / time.Duration(min(h.holds, rememberWell))
}

// meanHold returns how long leases whose Rule.Name is name were held so far, on average, or 0 if
// there were none.
func (t *holdStats) meanHold(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.byName[name]; h != nil {
		return h.mean
	}
	return 0
}

// recordAttempt records whether an attempt after a pause succeeded. The pause becomes shorter or
// longer, and stays the same on average if every second attempt succeeds.
func (t *holdStats) recordAttempt(name string, success bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.statsOf(name)
	switch {
	case h == nil:
	case success:
		h.scale = max(h.scale*0.8, 1.0/64)
	default:
		h.scale = min(h.scale/0.8, 64)
	}
}

// advise returns the pause before the next attempt for the Rule.Name name, or 0 while nothing is
// known about it.
func (t *holdStats) advise(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byName[name]
	if h == nil || h.holds == 0 {
		return 0
	}
	return time.Duration(float64(h.mean) * h.scale)
}

// statsOf returns the measurements of the Rule.Name name, or nil when t has no room for another
// name. The caller holds t.mu.
func (t *holdStats) statsOf(name string) *nameStats {
	h := t.byName[name]
	if h == nil && len(t.byName) < mostNames {
		h = &nameStats{scale: 0.5} // on average, the holder has used half of its time when a caller arrives
		t.byName[name] = h
	}
	return h
}

// bounds are the smallest and the largest value of an adaptive setting.
type bounds struct{ least, most time.Duration }

// sensible reports whether both bounds are in the allowed range, and in order.
func (b bounds) sensible() bool {
	return b.least >= time.Millisecond && b.least <= b.most && b.most <= longestTime
}

func (b bounds) clamp(d time.Duration) time.Duration { return min(max(d, b.least), b.most) }

// pause turns the advice of holdStats into a pause: a random time between half of it and all of it,
// so that waiters that were refused together do not ask again together.
func (b bounds) pause(advice time.Duration) time.Duration {
	d := b.clamp(advice)
	return max(d/2+rand.N(d/2+1), b.least)
}

// ttlTuner sets the TTL of leases to ten times the longest delay of a recent renewal. A longer
// TTL would only delay the detection of a crash.
type ttlTuner struct {
	bounds

	mu    sync.Mutex
	delay time.Duration // the delay from a due renewal to its answer; rises at once, falls slowly
}

// observe records the delay of one renewal, from when it was due until its answer or its
// repetition.
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
