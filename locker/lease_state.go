package locker

import (
	"context"
	"sync"
	"time"
)

// leaseState is what changes of a Lease. Usually the hold and the contexts end together. While the
// Engine is closing, the contexts end before the hold. The release follows, also after a loss.
type leaseState struct {
	// mu guards all other fields except notified, began and released. released is written by the
	// first Release only, and read after releaseEnded.
	mu       sync.Mutex
	notified sync.Once // ensures that the Observer is notified of the hold's end only once

	// The small fields stay together, because many leases are held at once.
	mode         Mode // the Rule's Mode; Shared after a Downgrade
	awaits       bool // AwaitRelease was called
	releasing    bool // Release was called
	releaseEnded bool // Release has returned its result

	began   time.Time                 // when the Lease got the hold
	endErr  error                     // nil while held; then ErrReleased, or how the lease was lost
	lasted  time.Duration             // how long the Lease was held: from began until endErr was set
	cause   error                     // nil until the contexts end
	cancels []context.CancelCauseFunc // the cancel functions of the contexts derived from this lease
	own     context.Context           // the context that the first call of Context made

	released error         // what Release returned
	waiters  chan struct{} // closed when Release has returned; made by a concurrent Release
}

// sharedContext returns the context for all calls of Context, or nil if there is none yet.
func (s *leaseState) sharedContext() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// shareContext returns the context for all calls of Context: the first one that was made.
func (s *leaseState) shareContext(made context.Context) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		s.own = made
	}
	return s.own
}

// derive returns a context like parent that ends with the lease.
func (s *leaseState) derive(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	s.onEnd(cancel)
	return ctx
}

// onEnd calls f with the cause when the contexts end, or at once if they have ended.
func (s *leaseState) onEnd(f func(cause error)) {
	s.mu.Lock()
	if s.cause == nil {
		s.cancels = append(s.cancels, f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f(s.cause)
}

// end ends the hold and the contexts for the given reason. The first call decides the reason and
// returns true; later calls return false.
func (s *leaseState) end(reason error) bool {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return false
	}
	s.endErr, s.lasted = reason, time.Since(s.began)
	s.mu.Unlock()
	s.cancel(reason)
	return true
}

// cancel ends the contexts with the given cause. Only the cause of the first call counts.
func (s *leaseState) cancel(cause error) {
	s.mu.Lock()
	if s.cause != nil {
		s.mu.Unlock()
		return
	}
	s.cause = cause
	cancels := s.cancels
	s.cancels = nil
	s.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// contextCause returns why the contexts have ended: how the hold ended, or ErrClosed. It returns
// nil while the contexts have not ended.
func (s *leaseState) contextCause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// endError returns how the hold ended, or nil if the hold is still held.
func (s *leaseState) endError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr
}

// endTime returns when the hold ended, or the zero time if the hold is still held.
func (s *leaseState) endTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		return time.Time{}
	}
	return s.began.Add(s.lasted)
}

// beginRelease returns true for the first call. Each later call waits until the release has ended,
// and returns false.
func (s *leaseState) beginRelease() bool {
	s.mu.Lock()
	if !s.releasing {
		s.releasing = true
		s.mu.Unlock()
		return true
	}
	if s.releaseEnded {
		s.mu.Unlock()
		return false
	}
	if s.waiters == nil {
		s.waiters = make(chan struct{})
	}
	ended := s.waiters
	s.mu.Unlock()
	<-ended // the first call ends after releaseWithin at the latest
	return false
}

func (s *leaseState) endRelease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseEnded = true
	if s.waiters != nil {
		close(s.waiters)
	}
}
