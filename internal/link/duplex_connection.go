package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// refresh gives up a connection that is too old, or that the server has closed while no answer was
// expected. It is called before calls are written.
func (d *duplex) refresh(w *wire) {
	if w.head < len(w.slots) || w.reading {
		return
	}
	now := time.Now()
	rest := now.Sub(w.used)
	if d.life > 0 && now.Sub(w.born) > d.life || d.idle > 0 && rest > d.idle {
		d.giveUp(w, net.ErrClosed)
		return
	}
	if rest < checkAfter {
		return
	}
	w.reading = true
	var err error
	d.unlocked(func() {
		_ = w.net.SetReadDeadline(now.Add(checkFor)) // if this fails, the read fails too
		err = w.fill()
		_ = w.net.SetReadDeadline(time.Time{})
	})
	w.reading = false
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		d.giveUp(w, err)
	}
}

// replace makes the next calls use another connection. The answers that w expects are still read.
func (d *duplex) replace(w *wire) {
	if w == d.wire {
		d.wire = nil
		d.former = append(d.former, w)
		d.failed = time.Now()
		d.pauses++
	}
}

// retire closes w if it was replaced and expects no answer any more.
func (d *duplex) retire(w *wire) {
	if w != d.wire && !w.ended && w.head == len(w.slots) && !w.writing {
		d.giveUp(w, net.ErrClosed)
	}
}

// giveUp ends the connection w. The calls on it are unclear. The caller holds link.mu.
func (d *duplex) giveUp(w *wire, err error) {
	if w.ended {
		return
	}
	w.ended = true
	expected := slices.Clone(w.slots[w.head:])
	w.slots, w.head = nil, 0
	d.former = slices.DeleteFunc(d.former, func(other *wire) bool { return other == w })
	if w == d.wire {
		d.wire = nil
		if len(expected) > 0 {
			d.failed = time.Now()
			d.pauses++
			d.link.prompt = false
		}
	}
	d.link.owner.Pool.Do(func() {
		w.hangUp()
		if len(expected) > 0 {
			d.link.owner.reloadState()
		}
		for _, s := range expected {
			s.drop(err)
		}
	})
	d.kick()
}

// look gives up each connection whose oldest answer is overdue. It runs while answers are expected.
func (d *duplex) look() {
	d.link.mu.Lock()
	defer d.link.mu.Unlock()
	if d.armed = false; d.wire == nil && len(d.former) == 0 {
		return
	}
	now, limit := time.Now(), flightFor
	if trip := d.link.trips.shortest(); trip > 0 {
		limit = min(max(4*trip, longestSilence), flightFor)
	}
	for _, w := range append(slices.Clone(d.former), d.wire) {
		if w == nil {
			continue
		}
		if w.head == len(w.slots) {
			w.overdue = false
			continue
		}
		// After a pause of this process, the answer may have come already. The reader reads it
		// before the next look.
		age := now.Sub(w.slots[w.head].sent)
		if age >= limit && w.overdue {
			d.giveUp(w, ErrNoAnswer)
			continue
		}
		w.overdue, d.armed = age >= limit-watchEvery, true
		d.appoint(w)
	}
	if d.armed {
		d.watch.Reset(watchEvery)
	}
}

// connect makes a connection, after a pause if the last one was useless. If that fails, it refuses
// the listed calls.
func (d *duplex) connect() {
	l := d.link
	l.mu.Lock()
	pause := time.Duration(0)
	if d.pauses > 0 {
		pause = min(firstPause<<min(d.pauses-1, 10), longestPause)
		pause = pause/2 + rand.N(pause/2) - time.Since(d.failed)
	}
	l.mu.Unlock()
	if pause > 0 {
		timer := time.NewTimer(pause)
		<-timer.C
	}
	ctx, cancel := context.WithTimeout(context.Background(), flightFor)
	defer cancel()
	c, hangUp, err := d.dial(ctx)
	l.mu.Lock()
	d.dialing = false
	if err == nil {
		now := time.Now()
		d.wire = &wire{net: c, hangUp: hangUp, born: now, used: now, marked: rand.Uint32(), in: make([]byte, 0, 4096)}
		d.kick()
		l.mu.Unlock()
		return
	}
	if errors.Is(err, errNoEcho) {
		d.off.Store(true)
		refused := l.beginFlights()
		l.mu.Unlock()
		for _, c := range refused {
			c.refuse(ErrHangs)
		}
		return
	}
	if !errors.Is(err, redis.ErrClosed) { // a closed client stays closed, so nothing is spared by a pause
		d.pauses++
		d.failed = time.Now()
	}
	l.prompt = false
	var refused []*Call
	for class, q := range l.plain.queues {
		refused = append(refused, q...)
		l.plain.queues[class] = nil
	}
	l.plain.n = 0
	l.mu.Unlock()
	l.owner.reloadState()
	for _, c := range refused {
		if g := c.group(); g != nil {
			(&slot{call: c}).drop(notConnected{err})
		}
		c.refuse(notConnected{err})
	}
}

// notConnected is the error of a call for which there was no connection, with its cause.
type notConnected struct{ cause error }

func (e notConnected) Error() string {
	return "no connection; the call was not sent: " + e.cause.Error()
}

func (e notConnected) Unwrap() []error { return []error{ErrNotConnected, e.cause} }
