package calls

import (
	"context"
	"errors"
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
	probing bool          // the goroutine of probe runs
	closing bool          // Stop has begun
	dropped bool          // no more attempts are made
	hurry   chan struct{} // closed when closing becomes true; nil: nobody probes or closes yet
	end     chan struct{} // closed when dropped becomes true; nil as hurry
}

// Add adds a chore. A chore that comes after Stop is tried once. If this attempt fails, the
// chore's lease expires by its TTL.
func (cs *Chores) Add(ch Chore) {
	cs.mu.Lock()
	dropped, waits := cs.dropped, cs.probing && !cs.dropped
	if !dropped {
		cs.work.Enter()
	}
	if waits {
		cs.waiting = append(cs.waiting, ch)
	}
	cs.mu.Unlock()
	switch {
	case dropped:
		ch.Try(ch.At(time.Now()), func(store.Grant, error) {})
	case !waits:
		cs.try(ch)
	}
}

// try makes one attempt at ch, because the node answers.
func (cs *Chores) try(ch Chore) {
	ch.Try(ch.At(time.Now()), func(_ store.Grant, err error) {
		if cs.record(ch, err) {
			return
		}
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if len(cs.waiting) > 0 && !cs.probing {
			cs.probing = true
			cs.makeSignals()
			go cs.probe(cs.hurry, cs.end)
		}
	})
}

// record acts on the end of an attempt, and reports whether the node has answered. The table shows
// what err means:
//
//	nil                     answered: the chore is done
//	a Refusal               the node refuses for good: the chore is over
//	a temporary Refusal,    the node refused or was not reached: it has executed nothing
//	or one until a repair
//	any other error         it is unknown whether the node has executed the attempt
func (cs *Chores) record(ch Chore, err error) (answered bool) {
	no, refused := errors.AsType[*store.Refusal](err)
	answered = err == nil || refused && !no.Temporary && !no.UntilRepaired
	if answered && err != nil && cs.Warn != nil {
		cs.Warn(err)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if answered || cs.dropped || !time.Now().Before(ch.Useless) || refused && cs.closing && cs.One {
		cs.work.Leave()
	} else {
		cs.waiting = append(cs.waiting, ch)
	}
	return answered
}

// probe tries the first chore that waits, until the node answers or no chore waits.
func (cs *Chores) probe(hurry, end <-chan struct{}) {
	for pause := range BetweenRepeats {
		select {
		case <-time.After(pause):
		case <-hurry:
			select {
			case <-time.After(min(pause, firstPause)):
			case <-end:
			}
		}
		ch, ok := cs.first()
		if !ok {
			return
		}
		answer := make(chan bool, 1)
		ch.Try(ch.At(time.Now()), func(_ store.Grant, err error) { answer <- cs.record(ch, err) })
		select {
		case ok = <-answer:
		case <-end:
			return
		}
		if ok {
			break
		}
	}
	cs.mu.Lock()
	freed := cs.waiting
	cs.waiting, cs.probing = nil, false
	cs.mu.Unlock()
	for _, ch := range freed {
		cs.try(ch)
	}
}

// makeSignals makes the channels of probe. The caller holds cs.mu.
func (cs *Chores) makeSignals() {
	if cs.hurry == nil {
		cs.hurry, cs.end = make(chan struct{}), make(chan struct{})
	}
}

// first takes the first of the chores that wait and are not useless. If there is none, the caller
// must not probe any more.
func (cs *Chores) first() (ch Chore, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for now := time.Now(); len(cs.waiting) > 0; cs.work.Leave() {
		if ch, cs.waiting = cs.waiting[0], cs.waiting[1:]; !cs.dropped && now.Before(ch.Useless) {
			return ch, true
		}
	}
	cs.waiting, cs.probing = nil, false
	return ch, false
}

// Idle reports whether no chore waits and no probe is under way.
func (cs *Chores) Idle() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return !cs.probing
}

// Stop waits until all chores have ended, or until ctx ends. At the end, Stop drops the remaining
// chores.
func (cs *Chores) Stop(ctx context.Context) error {
	cs.mu.Lock()
	if !cs.closing {
		cs.closing = true
		cs.makeSignals()
		close(cs.hurry)
	}
	cs.mu.Unlock()
	err := cs.work.Wait(ctx)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.dropped {
		cs.dropped = true
		close(cs.end)
	}
	for range cs.waiting {
		cs.work.Leave()
	}
	cs.waiting = nil
	return err
}
