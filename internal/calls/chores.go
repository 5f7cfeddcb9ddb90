package calls

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// A Chore is a release for which no caller waits. The release is repeated until it is answered or
// useless.
type Chore struct {
	Claim   store.Claim
	Keep    time.Time // the time until which KeepFor keeps the key; zero: KeepFor is not set
	Useless time.Time // from this time on, the release has no effect

	// Try begins an attempt with the claim c, and does not block. When the attempt has ended, Try
	// calls onAnswer once, on any goroutine.
	Try func(c store.Claim, onAnswer func(store.Grant, error))
}

// At returns the claim for a release that is sent at the time now.
func (ch *Chore) At(now time.Time) store.Claim {
	claim := ch.Claim
	if !ch.Keep.IsZero() {
		claim.KeepFor = max(0, ch.Keep.Sub(now))
	}
	return claim
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

	work Tasks

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
		ch.Try(ch.At(time.Now()), func(store.Grant, error) {})
		return
	}
	cs.work.Enter()
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
	ch.Try(ch.At(time.Now()), func(_ store.Grant, err error) { cs.record(ch, probe, err) })
}

// record acts on the end of an attempt. The table shows what err means:
//
//	nil                     answered: the chore is done
//	a Refusal               the node refuses for good: the chore is over
//	a temporary Refusal,    the node refused or was not reached: it has executed nothing
//	or one until a repair
//	any other error         it is unknown whether the node has executed the attempt
func (cs *Chores) record(ch Chore, probe bool, err error) {
	no, refused := errors.AsType[*store.Refusal](err)
	answered := err == nil || refused && !no.Temporary && !no.UntilRepaired
	cs.mu.Lock()
	if probe {
		cs.probing = false
	}
	over := cs.dropped || !time.Now().Before(ch.Useless)
	var freed []Chore
	if answered {
		over = true
		cs.failing, cs.pause = false, 0
		freed, cs.waiting = cs.waiting, nil
	} else {
		over = over || refused && cs.closing && cs.One
		cs.failing = true
	}
	if !over {
		cs.waiting = append(cs.waiting, ch)
	}
	cs.planProbe()
	cs.mu.Unlock()
	if answered && err != nil && cs.Warn != nil {
		cs.Warn(err)
	}
	if over {
		cs.work.Leave()
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
			cs.work.Leave()
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

// Idle reports whether no chore waits and no probe is under way.
func (cs *Chores) Idle() bool {
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
	err := cs.work.Wait(ctx)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.dropped = true
	if cs.probe != nil && cs.probe.Stop() { // the stopped timer will not end the waiting chores, so they are ended here
		for range cs.waiting {
			cs.work.Leave()
		}
		cs.waiting, cs.probing = nil, false
	}
	return err
}
