package lead

import (
	"time"

	"github.com/latchkit/latchkit/locker"
)

// An Overrun reports that fn still runs after the end of its term.
type Overrun struct {
	Term Term
	Late time.Duration // the time since the end of the term
	// Held reports whether the lease is still held, so that no other process leads. If Held is
	// false, another process may lead while fn runs.
	Held bool
}

// watch reports an Overrun when fn does not return after the end of its term. The first report
// comes after the time of WithGrace, and a further report comes every TTL.
func (t *term) watch() {
	l := t.leader
	timer := time.NewTimer(l.cfg.grace)
	defer timer.Stop()
	for {
		select {
		case <-t.returned:
			return
		case <-timer.C:
		}
		term := t.snapshot()
		o := Overrun{Term: term, Late: time.Since(term.Ended), Held: time.Now().Before(t.lease.Expires())}
		l.cfg.logger.Error("latchkit: the leader's function still runs although its term is over", "key", l.rule.Key,
			"fence", term.Fence, "late", o.Late, "held", o.Held, "cause", term.Cause)
		_, end := t.lease.Observe(t.ctx, opOverrun)
		end(locker.Outcome{Result: resultOverrun, Err: term.Cause})
		if l.cfg.overrun != nil {
			l.cfg.overrun(o)
		}
		timer.Reset(l.rule.TTL)
	}
}
