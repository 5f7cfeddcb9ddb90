package link

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
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

// wire is one connection. The mutex link.mu guards the other fields
// than the memory of the writer and of the reader.
type wire struct {
	net    net.Conn
	hangUp func() // closes the connection

	slots   []slot // the expected answers, from head on
	head    int
	marked  uint32 // the marker of the last call
	bytes   int    // the size of the calls whose answers are expected
	large   int    // how many of these calls are large
	writing bool
	reading bool
	blocked bool // no listed call can be written before an answer comes: see lane.takeBatch
	ended   bool // the connection was given up
	overdue bool // in the last look, the oldest answer was overdue, or nearly
	born    time.Time
	used    time.Time // when the last answer came
	texts   map[*Script]bool

	// The writer's memory.
	batch []*Call
	out   []byte

	// The reader's memory.
	in   []byte // the part from 'from' on is not parsed yet
	from int
	done []ended
}

// slot is the place of an expected answer.
type slot struct {
	call   *Call
	sent   time.Time
	size   int
	marker uint32 // comes behind the answer
	asking bool   // the answer to ASKING comes first
}

// ended is an answer and its slot.
type ended struct {
	slot
	reply
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
		d.sleep(w, c)
	}
	d.expect(w)
	return true
}

// sleep waits until c, which is under way on w, has its answer, ends or is listed again. A caller
// that sleeps may be given the role of the reader. The caller holds link.mu.
func (d *duplex) sleep(w *wire, c *Call) {
	bed, ok := d.beds.Get().(*chan struct{})
	if !ok {
		bed = new(chan struct{})
		*bed = make(chan struct{}, 1)
	}
	c.bed.Store(bed)
	for !c.reads && c.bed.Load() == bed && c.fate.Load() == underWay {
		d.unlocked(func() { <-*bed })
	}
	c.bed.CompareAndSwap(bed, nil)
	d.beds.Put(bed) // a late wake is harmless, because who sleeps looks again
	if c.reads {
		c.reads = false
		d.read(w, c)
	}
}

// sleeper returns the newest call on w whose caller sleeps, or nil.
func (w *wire) sleeper() *Call {
	for i := len(w.slots) - 1; i >= w.head; i-- {
		c := w.slots[i].call
		if c.bed.Load() != nil {
			return c
		}
		if g := c.group(); g != nil {
			for _, c := range g.members {
				if c.bed.Load() != nil {
					return c
				}
			}
		}
	}
	return nil
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
			c.reads = true
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

// full reports whether so many answers are expected that no call may be written.
func (w *wire) full() bool {
	return w.blocked || len(w.slots)-w.head >= mostExpected || w.bytes >= mostBytesExpected
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
		if w.ended || l.plain.n+len(l.plain.later) == 0 || w.full() {
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
	}
	calls, _ := l.gather(batch)
	now := time.Now()
	for _, c := range calls {
		w.marked++
		s := slot{call: c, sent: now, size: len(w.out), marker: w.marked, asking: c.asking}
		if c.asking {
			w.out = append(w.out, "*1\r\n$6\r\nasking\r\n"...)
		}
		w.out = appendMarker(appendCommand(w.out, w.words(c)), s.marker)
		s.size = len(w.out) - s.size
		if w.bytes += s.size; s.size > largeCall {
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

// words returns the words of c. A script that the node did not have is sent with its text: once on
// each connection, because the calls behind it can then name it, and again for a call that was
// unlucky twice.
func (w *wire) words(c *Call) []any {
	words := c.Words
	if c.make != nil {
		words = c.make()
	}
	if c.unknown == 0 || c.unknown == 1 && w.texts[c.Script] {
		return words
	}
	if w.texts == nil {
		w.texts = make(map[*Script]bool)
	}
	w.texts[c.Script] = true
	words = slices.Clone(words)
	words[0], words[1] = "eval", c.Script.text
	return words
}

// fill reads once from the connection. Only the reader calls it.
func (w *wire) fill() error {
	if w.from > 0 {
		n := copy(w.in, w.in[w.from:])
		w.in, w.from = w.in[:n], 0
	}
	if cap(w.in)-len(w.in) < 512 {
		w.in = slices.Grow(w.in, max(4096, cap(w.in)))
	}
	n, err := w.net.Read(w.in[len(w.in):cap(w.in)])
	w.in = w.in[:len(w.in)+n]
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// parse takes the complete answers out of the memory of the reader, into w.done. The caller holds
// link.mu.
func (w *wire) parse() error {
	w.done = w.done[:0]
	for w.head < len(w.slots) {
		s := &w.slots[w.head]
		r, size, err := s.next(w.in[w.from:])
		if size == 0 || err != nil {
			return err
		}
		w.from += size
		w.head++
		w.blocked = false
		if w.bytes -= s.size; s.size > largeCall {
			w.large--
		}
		w.done = append(w.done, ended{*s, r})
		*s = slot{}
	}
	_, size, err := parseAnswer(w.in[w.from:])
	if size > 0 {
		err = errProtocol // an answer that no call expects
	}
	return err
}

// next returns the answer of the slot, and its size in b together with its marker. The size is 0
// while they are incomplete. Without the marker, an answer is not known to be that of the slot: a
// proxy may have dropped a reply, or passed one on twice. If the server refuses everything, for
// example because a script runs for too long, the refusal of the call has the refusal of the marker
// behind it.
func (s *slot) next(b []byte) (r reply, size int, err error) {
	answers := 1
	if s.asking {
		answers = 2
	}
	for range answers {
		var n int
		if r, n, err = parseAnswer(b[size:]); n == 0 || err != nil {
			return r, 0, err
		}
		size += n
	}
	var room [markerReply]byte
	want := appendMarkerReply(room[:0], s.marker)
	if text := want[4 : len(want)-2]; r.text == string(text) {
		return r, 0, errUnmatched
	}
	if bytes.HasPrefix(b[size:], want) {
		return r, size + len(want), nil
	}
	marker, n, err := parseAnswer(b[size:])
	switch {
	case n == 0 || err != nil:
		return r, 0, err
	case marker.text == string(want[4:len(want)-2]): // behind a push
	case marker.err == nil || r.err == nil || codeOf(marker.err) != codeOf(r.err):
		return r, 0, errUnmatched
	}
	return r, size + n, nil
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

// drop ends the calls of a slot without an answer.
func (s *slot) drop(err error) {
	if g := s.call.group(); g != nil {
		for _, c := range g.members {
			c.end("", err)
		}
		return
	}
	s.call.end("", err)
}

// isFor reports whether the slot is that of c, or of a group to which c belongs.
func (s *slot) isFor(c *Call) bool {
	g := s.call.group()
	return s.call == c || g != nil && slices.Contains(g.members, c)
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
		if w == nil || w.head == len(w.slots) {
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
	l.plain.listLater()
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
