package lead

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 30 * time.Second
	// afterStepDown is the pause after StepDown, in which another process can become the leader.
	afterStepDown = time.Second
)

// pauses are the pauses of a candidate between its attempts to lead.
type pauses struct {
	next   time.Duration // 0: shortestPause
	failed bool          // the last attempt failed
}

// afterTerm returns the pause that follows the term t. If there was no term, t is nil, and
// afterTerm returns the pause that follows the error err.
func (p *pauses) afterTerm(l *Leader, t *term, err error) time.Duration {
	if t == nil {
		if !p.failed {
			l.cfg.logger.Warn("latchkit: this process cannot become leader now, and tries again", "key", l.rule.Key, "error", err)
		}
		p.failed = true
		return p.grow(min(l.rule.TTL, longestPause)) // at most a TTL: after a crash, there is no leader for as long
	}
	p.failed = false
	whole := l.rule.TTL
	if l.longest > 0 {
		whole = min(whole, l.longest)
	}
	switch {
	case t.ended.Sub(t.began) >= whole:
		p.next = 0
		if errors.Is(t.reason, ErrSteppedDown) {
			return afterStepDown
		}
		return 0
	case errors.Is(t.reason, ErrSteppedDown):
		return afterStepDown
	}
	return p.grow(longestPause)
}

// grow returns the next pause, with jitter, and doubles it up to the parameter most.
func (p *pauses) grow(most time.Duration) time.Duration {
	d := min(max(p.next, shortestPause), max(most, shortestPause))
	p.next = 2 * d
	return d + rand.N(d/4)
}
