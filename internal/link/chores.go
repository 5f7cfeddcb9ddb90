package link

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Outcome is the outcome of an attempt at a chore.
type Outcome uint8

// The outcomes of an attempt.
const (
	Unanswered Outcome = iota // it is unknown whether the node has executed the attempt
	NotNow                    // the node refused or was not reached: it has executed nothing
	Never                     // the node refused permanently
	Answered
)

// A Chore is a step for which no caller waits. The step is repeated until it is answered or
// useless.
type Chore struct {
	Useless time.Time // from this time on, the step has no effect

	// Try begins an attempt and does not block. When the attempt has ended, Try calls the function
	// done once, on any goroutine.
	Try func(done func(Outcome, error))
}

// Chores are the chores of one node. While the node answers, all chores are tried at once. After an
// attempt without an answer, one chore at a time probes the node, with pauses between the probes.
// After the first answer all chores are tried. The zero value is ready for use.
type Chores struct {
	Warn func(error) // receives a refusal that ends a chore; may be nil
	// One is true for a node of a quorum. While the Locker closes, Stop does not wait for a
	// quorum's node that cannot be reached. The lease at such a node is lost already, or will
	// expire.
	One bool

	work tasks

	mu      sync.Mutex
	waiting []Chore
	failing bool // the last attempt had no answer
	probe   *time.Timer
	probing bool // the timer runs, or the attempt that it has begun is under way
	pause   time.Duration
	closing bool
	dropped bool // no more attempts are made
}

// The shortest and the longest pause between two probes.
const firstPause, longestPause = 10 * time.Millisecond, 500 * time.Millisecond

// Add adds a chore. A chore that comes after Stop is tried once. If this attempt fails, the
// chore's lease expires by its TTL.
func (cs *Chores) Add(ch Chore) {
	cs.mu.Lock()
	if cs.dropped {
		cs.mu.Unlock()
		ch.Try(func(Outcome, error) {})
		return
	}
	cs.work.enter()
	if cs.failing {
		cs.waiting = append(cs.waiting, ch)
		cs.planProbe()
		cs.mu.Unlock()
		return
	}
	cs.mu.Unlock()
	cs.try(ch, false)
}

// try makes one attempt at ch. The parameter probe is true for an attempt that finds out whether
// the node answers again.
func (cs *Chores) try(ch Chore, probe bool) {
	ch.Try(func(o Outcome, err error) { cs.record(ch, probe, o, err) })
}

func (cs *Chores) record(ch Chore, probe bool, o Outcome, err error) {
	cs.mu.Lock()
	if probe {
		cs.probing = false
	}
	over := cs.dropped || !time.Now().Before(ch.Useless)
	var freed []Chore
	switch o {
	case Answered, Never:
		over = true
		cs.failing, cs.pause = false, 0
		freed, cs.waiting = cs.waiting, nil
	case NotNow:
		over = over || cs.closing && cs.One
		cs.failing = true
	default:
		cs.failing = true
	}
	if !over {
		cs.waiting = append(cs.waiting, ch)
	}
	cs.planProbe()
	cs.mu.Unlock()
	if o == Never && cs.Warn != nil {
		cs.Warn(err)
	}
	if over {
		cs.work.leave()
	}
	for _, ch := range freed {
		cs.try(ch, false)
	}
}

// planProbe starts the timer of the next probe if chores wait. If no chore waits, planProbe clears
// the state, so that the next chore is tried at once. The caller holds cs.mu.
func (cs *Chores) planProbe() {
	if cs.probing {
		return
	}
	if len(cs.waiting) == 0 {
		cs.failing, cs.pause = false, 0
		return
	}
	cs.probing = true
	if cs.pause = min(max(2*cs.pause, firstPause), longestPause); cs.closing {
		cs.pause = firstPause
	}
	d := cs.pause/2 + rand.N(cs.pause/2+1)
	if cs.probe == nil {
		cs.probe = time.AfterFunc(d, cs.probeNext)
	} else {
		cs.probe.Reset(d)
	}
}

// probeNext drops the chores that have become useless, and tries the first of the remaining chores
// as a probe.
func (cs *Chores) probeNext() {
	cs.mu.Lock()
	now, n := time.Now(), 0
	for _, ch := range cs.waiting {
		if cs.dropped || !now.Before(ch.Useless) {
			cs.work.leave()
			continue
		}
		cs.waiting[n] = ch
		n++
	}
	clear(cs.waiting[n:])
	if cs.waiting = cs.waiting[:n]; n == 0 {
		cs.probing = false
		cs.planProbe()
		cs.mu.Unlock()
		return
	}
	ch := cs.waiting[0]
	cs.waiting = slices.Delete(cs.waiting, 0, 1)
	cs.mu.Unlock()
	cs.try(ch, true)
}

func (cs *Chores) idle() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.waiting) == 0 && !cs.probing
}

// Stop waits until all chores have ended, or until ctx ends. At the end, Stop drops the remaining
// chores.
func (cs *Chores) Stop(ctx context.Context) error {
	cs.mu.Lock()
	cs.closing = true
	if cs.probe != nil && cs.probe.Stop() { // probe at once, instead of when the timer ends
		cs.probe.Reset(0)
	}
	cs.mu.Unlock()
	err := cs.work.wait(ctx)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.dropped = true
	if cs.probe != nil && cs.probe.Stop() { // the stopped timer will not end the waiting chores, so they are ended here
		for range cs.waiting {
			cs.work.leave()
		}
		cs.waiting, cs.probing = nil, false
	}
	return err
}
