package link

import (
	"context"
	"time"
)

// queue has the calls that wait for a batch, and the batches under way. The link's mutex guards all
// fields.
type queue struct {
	link  *link
	pipe  pipeliner     // nil: each batch has only one call
	acked bool          // each batch ends with a WAIT
	limit time.Duration // after which a batch is given up

	waiting [classes][]*Call
	n       int      // number of calls in waiting
	running []*batch // the batches under way, also those that were given up
	active  int      // the number of batches under way, or about to take calls, that were not given up
	usual   int      // a new batch begins at once while fewer batches than this are active

	short, long contexts // of batches without and with a patient call

	timer *time.Timer // calls look while batches are under way
	armed bool
}

func (q *queue) init(l *link, acked bool, pipe pipeliner, limit time.Duration, usual int) {
	*q = queue{link: l, acked: acked, pipe: pipe, limit: limit, usual: usual}
	q.short.life, q.long.life = limit+connectFor, max(limit, mostPatience)+connectFor
}

// add appends c to the calls that wait, and begins a batch if few are active.
func (q *queue) add(c *Call) {
	q.waiting[c.Class] = append(q.waiting[c.Class], c)
	q.n++
	if q.active < q.usual {
		q.begin()
	}
}

// begin begins a batch of the given calls, which are under way, and then of the calls that wait.
func (q *queue) begin(calls ...*Call) {
	b := &batch{queue: q, calls: calls}
	if q.active++; len(calls) > 0 {
		b.start(time.Now())
	}
	q.link.owner.Pool.Do(b.Run)
}

// take removes the calls of the next batch from the queue, appends them to into, and returns the
// result. It takes the calls of the most urgent class first, and in each class the oldest call
// first. It takes at most half of the calls that wait or are under way, so that the server has work
// while the callers of the other half run.
//
// A server executes all commands that it has received from one connection before it looks at the
// next connection: five renewals of 100 leases each would delay all other calls for a millisecond or
// two. So at most one large call is in a batch, and one more for each millisecond of a round trip.
func (q *queue) take(into []*Call) []*Call {
	all := q.n
	for _, b := range q.running {
		all += len(b.calls)
	}
	most, room := min(max((all+1)/2, fewest), mostCalls), mostBytes
	if q.pipe == nil {
		most = 1
	}
	large, mostLarge := 0, 1+int(q.link.trip/time.Millisecond)
	reserved := min(undoCalls, len(q.waiting[Undo]), most-1)
	for class := range q.waiting {
		if class == int(Undo) {
			reserved = 0
		}
		all, n := q.waiting[class], 0
		for n < len(all) && len(into) < most-reserved && (room > 0 || len(into) == 0) {
			c := all[n]
			size := sizeOf(c.Words)
			if size > largeCall && large >= mostLarge {
				break
			}
			n++
			if c.markUnderWay() { // false: the caller has left
				into = append(into, c)
				if room -= size; size > largeCall {
					large++
				}
			}
		}
		q.drop(class, n)
	}
	return into
}

// drop removes the first n calls of a class.
func (q *queue) drop(class, n int) {
	all := q.waiting[class]
	rest := copy(all, all[n:])
	clear(all[rest:])
	q.waiting[class] = all[:rest]
	q.n -= n
}

// watch calls look soon. It is called when a batch begins.
func (q *queue) watch() {
	if q.armed {
		return
	}
	q.armed = true
	if q.timer == nil {
		q.timer = time.AfterFunc(lookEvery, q.look)
	} else {
		q.timer.Reset(lookEvery)
	}
}

// look is called again and again while batches are under way. It gives up batches that take too
// long, and while all batches are slow, it begins one more for the calls that wait.
func (q *queue) look() {
	l, now := q.link, time.Now()
	var ended, refused []*Call
	l.mu.Lock()
	before, youngest := l.hung, mostPatience
	for _, b := range q.running {
		age := now.Sub(b.began)
		youngest = min(youngest, age)
		ended = append(ended, q.lookAt(b, age)...)
	}
	if l.hung > before {
		l.prompt = false
		refused = l.makeRoom()
	}
	if q.pipe != nil && q.active < mostActive && q.n > 0 && youngest >= promptWithin {
		q.begin()
	}
	noAnswer, hangs := l.unanswered(ErrNoAnswer), l.unanswered(ErrHangs)
	if q.armed = len(q.running) > 0; q.armed {
		q.timer.Reset(lookEvery)
	}
	l.mu.Unlock()
	if len(ended) > 0 {
		l.owner.reloadState()
	}
	for _, c := range ended {
		c.end("", noAnswer)
	}
	for _, c := range refused {
		c.refuse(hangs)
	}
}

// lookAt looks at the batch b, which has been under way for the time age. It returns the calls
// whose time is over.
func (q *queue) lookAt(b *batch, age time.Duration) (ended []*Call) {
	if !b.givenUp && age >= q.limit {
		b.givenUp = true
		q.active--
		q.link.hung++
	}
	if !b.givenUp && !q.acked && age >= time.Duration(b.copies+1)*askAgainAfter {
		b.copies++
		q.askAgain(b)
	}
	if !b.givenUp || b.ended {
		return nil
	}
	b.ended = true
	for _, c := range b.calls {
		if age >= min(c.Patience, mostPatience) {
			ended = append(ended, c)
		} else {
			b.ended = false
		}
	}
	return ended
}

// askAgain sends the calls of b that may be sent twice over other connections, because the
// connection of b may be dead: a firewall drops connections that were idle without a word. The
// first answer counts. Each copy is a batch of its own, so that one more dead connection does not
// stop them all. While calls wait, or nearly all of the client's pool is in use, the node or this process
// is overloaded, and copies would add to that.
func (q *queue) askAgain(b *batch) {
	for _, c := range b.calls {
		if c.Repeatable == nil || q.n > 0 || q.active >= min(2*q.link.most-2, mostActive) {
			continue
		}
		c.doubled.Store(true)
		if c.fate.Load() != underWay { // it has just been answered
			continue
		}
		twin := &Call{Script: c.Script, Words: c.Words, Key: c.Key, Class: c.Class, values: c.values, sent: c.sent}
		twin.fate.Store(underWay)
		twin.Receiver = OnAnswer(func(twin *Call) {
			// An error of the copy does not show what becomes of the first call.
			if twin.err == nil && c.Repeatable(twin.text) {
				c.end(twin.text, nil)
			}
		})
		q.begin(twin)
	}
}

// stop stops the timer, and ends the contexts that no batch uses.
func (q *queue) stop() {
	if q.timer != nil {
		q.timer.Stop()
	}
	q.armed = false
	q.short.close()
	q.long.close()
}

// contexts makes contexts that end after a time, and thereby dials and waits for a connection. If
// the client's options allow it, their deadline also ends reads and writes. Batches that begin
// within 50 ms share a context, so that one timer serves them all. The link's mutex guards all
// fields.
type contexts struct {
	life    time.Duration
	present *sharedContext
}

type sharedContext struct {
	context.Context
	cancel context.CancelFunc
	owner  *contexts
	began  time.Time
	users  int
}

// join returns the context of a batch that begins at the time now. The batch leaves it at its end.
func (cs *contexts) join(now time.Time) *sharedContext {
	if s := cs.present; s != nil && now.Sub(s.began) < sharedFor {
		s.users++
		return s
	}
	cs.close()
	s := &sharedContext{owner: cs, began: now, users: 1}
	s.Context, s.cancel = context.WithDeadline(context.Background(), now.Add(cs.life))
	cs.present = s
	return s
}

// close makes the next batch begin another context.
func (cs *contexts) close() {
	if s := cs.present; s != nil && s.users == 0 {
		s.cancel()
	}
	cs.present = nil
}

func (s *sharedContext) leave() {
	if s.users--; s.users == 0 && s.owner.present != s {
		s.cancel()
	}
}

// valuedContext is a context that ends with one context and also has the values of another context.
type valuedContext struct {
	context.Context
	values context.Context
}

// Value first asks the embedded context, because a derived context finds its parent by Value.
func (v *valuedContext) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}
