package locker

import "time"

// unnotifiedRenewals is the longest time between two renewals if the readers cannot receive
// messages about a waiting writer.
const unnotifiedRenewals = time.Second

// isSound reports whether h may be handed over or shared.
func (k *keeper) isSound(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.isSoundLocked()
}

// removeUser removes l from the Leases that use h. If others stay, one of them takes the place of
// the first user, whose events are those of the hold.
func (k *keeper) removeUser(h *hold, l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(h.renewal.sharers, l)
	if h.renewal.lease == l {
		h.renewal.lease = nil
		for h.renewal.lease = range h.renewal.sharers {
			break
		}
		delete(h.renewal.sharers, h.renewal.lease)
	}
}

// renewReaders makes the renewals of readers due now: of the readers that receive their events
// at inbox, and of all readers if inbox is "".
func (k *keeper) renewReaders(inbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var readers []*hold
	for h := range k.due.holds() {
		if h.claim.Mode == Shared && !h.renewal.final && (inbox == "" || h.claim.Inbox == inbox) {
			readers = append(readers, h)
		}
	}
	for _, h := range readers {
		h.renewal.renewAt = instantOf(time.Now())
		k.reschedule(h)
	}
}
