package link

import "time"

const (
	mostCalls = 128      // the largest number of calls in a flight
	mostBytes = 32 << 10 // the approximate largest size of a flight in bytes
	largeCall = 2 << 10  // the approximate size in bytes of a renewal of 50 leases
	undoCalls = 16       // the number of calls in each flight that are reserved for undos
	// laterFor is how long a call for which no caller waits is put off, so that it can travel with
	// a flight or a direct call.
	laterFor = time.Millisecond
)

// lane is a list of calls, and the flights that take these calls. The link's mutex guards all
// fields.
type lane struct {
	link  *link
	pipe  pipeliner // nil: each flight has only one call
	acked bool      // each flight ends with a WAIT
	slots slots

	queues [classes][]*Call
	n      int     // number of calls in all queues
	later  []*Call // calls for which no caller waits: they travel with other calls
	flying int     // number of flights under way that do not hang
	usual  int     // a new flight begins at once while fewer flights than this are under way
	most   int     // while flights are slow, new flights begin until this many are under way

	timer *time.Timer // starts the next flight while other flights are slow
	armed bool

	delay   *time.Timer // starts a flight for the calls in the field later
	delayed bool
}

// begin starts one flight with the listed calls, if there are any.
func (l *lane) begin(now time.Time) {
	f := &flight{lane: l}
	if f.fill(now) {
		l.link.owner.Pool.Start(f)
	}
}

// scheduleExtra sets a timer for the time startAt. If calls are still listed at that time, the
// flights under way are slow, and startExtra starts one more flight.
func (l *lane) scheduleExtra(startAt time.Time) {
	if l.armed || l.n == 0 || l.pipe == nil {
		return
	}
	l.armed = true
	if d := time.Until(startAt); l.timer == nil {
		l.timer = time.AfterFunc(d, l.startExtra)
	} else {
		l.timer.Reset(d)
	}
}

func (l *lane) startExtra() {
	k := l.link
	k.mu.Lock()
	defer k.mu.Unlock()
	l.armed = false
	if l.n == 0 {
		return
	}
	now := time.Now()
	next := l.oldestTime().Add(promptWithin)
	if !now.Before(next) {
		if l.flying < l.most {
			l.begin(now)
		}
		next = now.Add(promptWithin)
	}
	l.scheduleExtra(next)
}

// putOff adds c to l.later, so that c travels with other calls. If no other call is sent within
// laterFor, a flight begins for c.
func (l *lane) putOff(c *Call) {
	l.later = append(l.later, c)
	if l.delayed {
		return
	}
	l.delayed = true
	if l.delay == nil {
		l.delay = time.AfterFunc(laterFor, l.sendLater)
	} else {
		l.delay.Reset(laterFor)
	}
}

// sendLater begins a flight for the calls in l.later, which have waited for laterFor.
func (l *lane) sendLater() {
	k := l.link
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.delayed = len(l.later) > 0; !l.delayed {
		return
	}
	now := time.Now()
	if rest := laterFor - now.Sub(l.later[0].sent); rest > 0 {
		l.delay.Reset(rest)
		return
	}
	l.delayed = false
	l.listLater()
	if l.flying < l.usual {
		l.begin(now)
	} else {
		l.scheduleExtra(l.oldestTime().Add(promptWithin))
	}
}

// listLater moves the calls in l.later into the list.
func (l *lane) listLater() {
	if len(l.later) == 0 {
		return
	}
	l.queues[Release] = append(l.queues[Release], l.later...)
	l.n += len(l.later)
	clear(l.later)
	l.later = l.later[:0]
}

// takeLater removes from l.later the calls that travel with a direct call, and returns them.
func (l *lane) takeLater() []*Call {
	if len(l.later) == 0 {
		return nil
	}
	n := min(len(l.later), mostCalls-1)
	calls := make([]*Call, 0, n+1)
	for _, c := range l.later[:n] {
		if c.markUnderWay() { // false: the call was recalled
			calls = append(calls, c)
		}
	}
	rest := copy(l.later, l.later[n:])
	clear(l.later[rest:])
	l.later = l.later[:rest]
	return calls
}

// oldestTime returns the time at which the oldest listed call was listed.
func (l *lane) oldestTime() time.Time {
	var first time.Time
	for _, q := range l.queues {
		if len(q) > 0 && (first.IsZero() || q[0].sent.Before(first)) {
			first = q[0].sent
		}
	}
	return first
}

// takeBatch removes the calls of the next flight from the list, appends them to the slice into, and
// returns the result. It takes the calls of the most urgent class first, and in each class the
// oldest call first. A server executes all commands that it has received from one connection before
// it looks at the next connection. So a flight to a near server has at most one large call. A
// flight of five renewals of 100 leases each would delay all other clients for a millisecond or
// two.
func (l *lane) takeBatch(into []*Call) []*Call {
	l.listLater()
	most, room := mostCalls, mostBytes
	if l.pipe == nil {
		most = 1
	}
	near, large := l.link.trips.shortest() < time.Millisecond, false
	reserved := min(undoCalls, len(l.queues[Undo]), most-1)
	for class := range l.queues {
		if class == int(Undo) {
			reserved = 0
		}
		q, n := l.queues[class], 0
		for n < len(q) && len(into) < most-reserved && (room > 0 || len(into) == 0) {
			c := q[n]
			size := sizeOf(c.Words)
			if size > largeCall {
				if near && large {
					break
				}
				large = true
			}
			n++
			if c.markUnderWay() { // false: the caller has left
				into = append(into, c)
				room -= size
			}
		}
		l.n -= n
		rest := copy(q, q[n:])
		clear(q[rest:])
		l.queues[class] = q[:rest]
	}
	return into
}

// giveUp gives up the flights of a slot that has ended. The goroutine of such a flight still waits
// until the client returns.
func (l *lane) giveUp(s *slot) {
	k := l.link
	k.mu.Lock()
	lost := s.flights
	s.flights = nil
	calls := make([][]*Call, len(lost))
	for i, f := range lost {
		f.givenUp, calls[i] = true, f.calls
	}
	l.flying -= len(lost)
	k.hung += len(lost)
	if len(lost) > 0 {
		k.prompt = false
	}
	refused := k.beginFlights()
	k.mu.Unlock()
	if len(lost) > 0 {
		k.owner.reloadState()
	}
	for _, cs := range calls {
		for _, c := range cs {
			c.answer("", ErrNoAnswer)
		}
	}
	for _, c := range refused {
		c.refuse(ErrHangs)
	}
}

// beginFlights begins the flights that may begin now. When too many flights hang, no call can be
// sent. In this state, beginFlights returns the listed calls, which must be refused.
func (l *link) beginFlights() (refused []*Call) {
	now := time.Now()
	for _, lane := range []*lane{&l.plain, &l.acked} {
		if l.hung >= l.most {
			lane.listLater()
			for class, q := range lane.queues {
				refused = append(refused, q...)
				lane.queues[class] = nil
			}
			lane.n = 0
		}
		for lane.n > 0 && lane.flying < lane.usual {
			lane.begin(now)
		}
	}
	return refused
}

func (l *lane) idle() bool { return l.n == 0 && len(l.later) == 0 && l.flying == 0 }

func (l *lane) stopTimers() {
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.delay != nil {
		l.delay.Stop()
	}
	l.slots.replacePresent()
}
