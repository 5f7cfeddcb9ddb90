package link

import (
	"context"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// duplex sends the calls of a link over one connection, which it writes and reads by itself. A call
// is written when it is ready, and never waits for the answer to another call.
//
// Two roles exist for each connection, and at most one goroutine has each role:
//
//	writer   writes all listed calls. The caller that finds no writer becomes the writer, so calls
//	         gather while a write is in the kernel. After its second write, it hands the role on.
//	reader   reads answers, and gives them to their calls. The caller that finds no reader reads
//	         until it has its own answer, and hands the role on if other answers are expected:
//	         to a caller that sleeps until its answer comes, if there are few callers.
//
// A goroutine of Links.Pool takes a role that no caller can take: for calls whose callers do not
// wait, and from callers that hand a role on. So a few callers write and read by themselves. While
// answers are expected, there is always a reader, or a writer that will read. While calls are
// listed and can be written, there is always a writer, or a goroutine that will write.
//
// Behind each call, an ECHO with a marker is written, which the server repeats behind the answer:
// see slot.next. An answer without its marker ends the connection, and so does an answer that does
// not come within the limit: all calls on it are unclear, and later calls use another connection.
// All fields are guarded by link.mu.
type duplex struct {
	link *link
	dial func(context.Context) (net.Conn, func(), error) // makes a connection, and a function that closes it
	life time.Duration                                   // a connection that is older is replaced; 0: never
	idle time.Duration                                   // so is one that was idle for longer; 0: never

	wire    *wire   // the connection for the next calls; nil: there is none
	former  []*wire // connections that get no more calls, but still expect answers
	dialing bool
	kicked  bool // a goroutine is about to write
	pauses  int  // how many connections in a row were useless
	failed  time.Time
	off     atomic.Bool // the server does not repeat markers, so all calls go through the client

	beds  sync.Pool   // the channels of callers that sleep
	watch *time.Timer // looks for answers that do not come
	armed bool
}

const (
	// mostExpected and mostBytesExpected bound the calls under way on a connection. A server makes
	// that many calls in less than a tenth of longestSilence.
	mostExpected      = 1024
	mostBytesExpected = 256 << 10
	// longestSilence is how long an answer of a near server may take. For a server that is farther
	// away, it is four round trips, but at most flightFor. The watch looks every watchEvery.
	longestSilence = 200 * time.Millisecond
	watchEvery     = 50 * time.Millisecond
	// yieldFrom is the number of calls from which on the writer lets other callers run before it
	// writes, so that their calls are in the same write.
	yieldFrom = 16
	// fewExpected is the largest number of expected answers with which a caller sleeps in send, and
	// may become the reader. With more answers, a goroutine of the pool changes less often.
	fewExpected = 2
	// checkAfter is the age of the last answer after which a connection may have ended unnoticed.
	checkAfter = time.Second
	checkFor   = 100 * time.Microsecond
	// firstPause and longestPause bound the pause after a connection was useless.
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

func newDuplex(l *link, node *redis.Client) *duplex {
	o := node.Options()
	d := &duplex{link: l, life: o.ConnMaxLifetime, idle: o.ConnMaxIdleTime}
	d.dial = func(ctx context.Context) (net.Conn, func(), error) { return l.owner.options.Tap.connect(ctx, node) }
	return d
}

// send lists c, writes it if nobody writes, and reads its answer if nobody reads. It returns after
// at most 250 ms. If the answer has not come by then, another goroutine reads it. The result is
// false when the link was forgotten or refuses the call.
func (d *duplex) send(c *Call) bool {
	l := d.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forgotten || d.off.Load() || l.plain.n >= mostListed {
		return false
	}
	l.plain.queues[c.Class] = append(l.plain.queues[c.Class], c)
	l.plain.n++
	w := d.wire
	// At a node that is not prompt, a write may block for longer than the caller may.
	if w == nil || !l.prompt || w.writing {
		d.kick()
		return true
	}
	d.write(2)
	switch {
	case w != d.wire || c.fate.Load() != underWay || w.head == len(w.slots):
	case !w.reading:
		w.reading = true
		d.read(w, c)
	case len(w.slots)-w.head <= fewExpected:
		d.sleep(c)
	}
	d.expect(w)
	return true
}

// sleep waits until c, which is under way, has its answer, ends or is listed again. A caller that
// sleeps may be given the role of the reader. The caller holds link.mu.
func (d *duplex) sleep(c *Call) {
	bed, ok := d.beds.Get().(*chan struct{})
	if !ok {
		bed = new(chan struct{})
		*bed = make(chan struct{}, 1)
	}
	c.bed.Store(bed)
	for c.reads == nil && c.bed.Load() == bed && c.fate.Load() == underWay {
		d.unlocked(func() { <-*bed })
	}
	c.bed.CompareAndSwap(bed, nil)
	d.beds.Put(bed) // a late wake is harmless, because who sleeps looks again
	if w := c.reads; w != nil {
		c.reads = nil
		d.read(w, c)
	}
}

// kick makes a goroutine write the listed calls, if nobody writes. The caller holds link.mu.
func (d *duplex) kick() {
	if d.kicked || d.dialing || d.wire != nil && (d.wire.writing || d.wire.full()) || d.link.plain.n == 0 {
		return
	}
	if d.kicked = true; d.wire == nil {
		d.kicked, d.dialing = false, true
		d.link.owner.Pool.Do(d.connect)
		return
	}
	d.link.owner.Pool.Start(d)
}

// Run writes the listed calls, and reads until no answer is expected. It makes duplex a Job.
func (d *duplex) Run() {
	l := d.link
	l.mu.Lock()
	defer l.mu.Unlock()
	d.kicked = false
	w := d.wire
	if w == nil {
		d.kick()
		return
	}
	if !w.writing {
		d.write(1 << 30)
	}
	if !w.ended && !w.reading && w.head < len(w.slots) {
		w.reading = true
		d.read(w, nil)
	}
}

// expect makes sure that w has a reader if answers are expected. A caller that is writing becomes
// the reader after its write, because a write is short; if it blocks, the watch calls appoint. The
// caller holds link.mu.
func (d *duplex) expect(w *wire) {
	if !w.writing {
		d.appoint(w)
	}
}

// appoint gives w a reader if answers are expected and nobody reads. The caller holds link.mu.
func (d *duplex) appoint(w *wire) {
	if w.ended || w.reading || w.head == len(w.slots) {
		return
	}
	w.reading = true
	if len(w.slots)-w.head <= fewExpected {
		if c := w.sleeper(); c != nil {
			c.reads = w
			wake(c.bed.Load())
			return
		}
	}
	d.link.owner.Pool.Do(func() {
		d.link.mu.Lock()
		defer d.link.mu.Unlock()
		d.read(w, nil)
	})
}

// write writes the listed calls, until there are none or it has written as often as most says. The
// caller holds link.mu, which write unlocks while it writes, and there is a connection without a
// writer.
func (d *duplex) write(most int) {
	l, w := d.link, d.wire
	w.writing = true
	over := false
	defer func() {
		if w.writing = false; !over { // a panic: what was written may be half a command
			d.giveUp(w, ErrNoAnswer)
		}
		d.retire(w)
		d.kick()
	}()
	d.refresh(w)
	for n := 0; n < most && !w.ended && w == d.wire; n++ {
		if len(w.slots)-w.head+l.plain.n >= yieldFrom {
			d.unlocked(runtime.Gosched) // callers that have just got their answers list their next calls
		}
		w.blocked = false // a call that was listed since then may be small
		if w.ended || l.plain.n == 0 || w.full() {
			break
		}
		if n > 0 {
			d.appoint(w) // what was written before is answered meanwhile
		}
		d.encode(w)
		if len(w.out) == 0 { // all calls were left, or a large call waits for the answer to another
			w.blocked = l.plain.n > 0 && w.large > 0
			break
		}
		var err error
		if d.unlocked(func() { _, err = w.net.Write(w.out) }); err != nil {
			d.giveUp(w, err)
		}
	}
	over = true
}

// unlocked calls f without link.mu, which the caller holds again when unlocked returns or panics.
func (d *duplex) unlocked(f func()) {
	d.link.mu.Unlock()
	defer d.link.mu.Lock()
	f()
}

// encode takes listed calls, and puts them into the buffer of the writer and into the slots of w.
func (d *duplex) encode(w *wire) {
	l := d.link
	w.batch, w.out = l.plain.takeBatch(w.batch[:0], w.large), w.out[:0]
	if w.head == len(w.slots) {
		w.slots, w.head = w.slots[:0], 0
	} else if w.head >= mostExpected {
		n := copy(w.slots, w.slots[w.head:])
		clear(w.slots[n:])
		w.slots, w.head = w.slots[:n], 0
	}
	batch := w.batch
	if !l.prompt && l.owner.cluster != nil {
		// The slots of a node that does not answer may have moved.
		d.unlocked(func() { batch = l.owner.reroute(batch, l) })
		if w.ended { // meanwhile; what is in its slots from now on, nobody would end
			for _, c := range batch {
				if c.markRelisted() {
					l.plain.queues[c.Class] = append(l.plain.queues[c.Class], c)
					l.plain.n++
				}
			}
			clear(w.batch)
			return
		}
	}
	calls, _ := l.gather(batch)
	now := time.Now()
	for _, c := range calls {
		w.marked++
		s := slot{call: c, sent: now, size: len(w.out), marker: w.marked, large: sizeOf(c.Words) > largeCall, asking: c.asking}
		if c.asking {
			w.out = append(w.out, "*1\r\n$6\r\nasking\r\n"...)
		}
		w.out = appendMarker(appendCommand(w.out, w.words(c)), s.marker)
		s.size = len(w.out) - s.size
		if w.bytes += s.size; s.large {
			w.large++
		}
		w.slots = append(w.slots, s)
	}
	clear(w.batch)
	if len(calls) > 0 && !d.armed {
		d.armed = true
		if d.watch == nil {
			d.watch = time.AfterFunc(watchEvery, d.look)
		} else {
			d.watch.Reset(watchEvery)
		}
	}
}

// read reads answers until the call own has its answer, or until no answer is expected if own is
// nil. The caller holds link.mu, which read unlocks while it reads and delivers.
func (d *duplex) read(w *wire, own *Call) {
	l, over := d.link, false
	defer func() {
		if !over { // a receiver has panicked
			w.reading = false
			d.giveUp(w, ErrNoAnswer)
		}
	}()
	for !over {
		var err error
		d.unlocked(func() { err = w.fill() })
		now := time.Now()
		if err == nil && !w.ended {
			err = w.parse()
		}
		if n := len(w.done); n > 0 && !w.ended {
			w.used, d.pauses = now, 0
			l.recordTrip(now.Sub(w.done[n-1].sent), true)
		}
		answers := w.done
		w.done = nil
		if err != nil {
			d.giveUp(w, err)
		}
		if over = w.ended || w.head == len(w.slots); !over && own != nil {
			over = now.Sub(own.sent) > longestSilence || own.fate.Load() != underWay || slices.ContainsFunc(answers, func(e ended) bool { return e.isFor(own) })
		}
		if over {
			w.reading = false
			d.expect(w)
		}
		d.kick() // w may have been full
		d.unlocked(func() { d.settle(w, answers) })
		if !w.reading || !over {
			w.done = answers[:0]
		}
		d.retire(w)
	}
}

// settle gives each answer to its call. A call whose script the node does not have, or that was
// left out of a group, is listed again.
func (d *duplex) settle(w *wire, answers []ended) {
	l, n := d.link, 0
	defer func() {
		for _, e := range answers[n:] { // a receiver has panicked
			e.drop(ErrNoAnswer)
		}
	}()
	for n < len(answers) {
		e := answers[n]
		n++
		switch c := e.call; {
		case c.lacksScript(e.err) && c.unknown < 2:
			c.unknown++
			d.again(c)
		case c.group() != nil:
			c.end(e.text, e.err)
			for _, left := range l.leftOutOf([]*group{c.group()}) {
				left.apart = true
				d.again(left)
			}
		case !l.owner.redirect(c, e.err):
			if redis.IsReadOnlyError(e.err) {
				l.mu.Lock()
				d.replace(w)
				l.mu.Unlock()
			}
			c.end(e.text, e.err)
		}
	}
	clear(answers)
}

// again lists a call that the node has provably not executed.
func (d *duplex) again(c *Call) {
	if c.markRelisted() {
		d.link.enlist(c)
	}
}

// isIdle reports whether no answer is expected, and no connection is being made.
func (d *duplex) isIdle() bool {
	return !d.dialing && !d.kicked && len(d.former) == 0 && (d.wire == nil || d.wire.head == len(d.wire.slots) && !d.wire.writing)
}

// close closes the connections, and stops the watch. A later call makes a new connection.
func (d *duplex) close() {
	l := d.link
	l.mu.Lock()
	var idle *wire
	if w := d.wire; w != nil && w.head == len(w.slots) && !w.writing && !w.reading {
		d.wire, w.ended, idle = nil, true, w
	}
	for _, w := range append(slices.Clone(d.former), d.wire) {
		if w != nil {
			d.giveUp(w, net.ErrClosed)
		}
	}
	if d.armed = false; d.watch != nil {
		d.watch.Stop()
	}
	l.mu.Unlock()
	if idle != nil {
		idle.hangUp() // Close has waited for all goroutines, so none of them does this
	}
}
