package link

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is the least that a link asks of a client: a *redis.Client is one.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// pipeliner is a Client that can send several commands at once, on one connection to each node.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

const (
	// promptWithin is how soon an answer must come for the next lone call to be made directly.
	promptWithin = 20 * time.Millisecond
	// directFor bounds a direct call, flightFor a flight. Calls of one slot end together, so the
	// shortest ends 50 ms earlier.
	directFor = 200 * time.Millisecond
	flightFor = time.Second
	// mostHung bounds the flights that hang.
	mostHung = 64
)

// link is all calls to one node through one client.
type link struct {
	owner   *Links
	client  Client
	pipe    pipeliner // nil: flights of one call each
	bounded bool      // the client ends a call with its context, so callers may make it themselves
	most    int       // flights that may hang
	chores  Chores

	mu      sync.Mutex
	plain   lane  // calls
	acked   lane  // calls that replicas must acknowledge
	directs slots // of direct calls
	direct  bool  // a direct call is under way
	prompt  bool  // the last answer came soon, and nothing hangs
	hung    int   // flights that were given up and have not returned
	gone    bool  // its node has left the Cluster; another link is there if it comes back
	adding  int   // chores that are being handed over
	trips   trips
}

func newLink(owner *Links, c Client) *link {
	l := &link{owner: owner, client: c, most: mostHung}
	if own, ok := c.(*redis.Client); ok { // by exact type: see the package's comment
		options := own.Options()
		l.pipe, l.bounded = own, bounded(options)
		if options.PoolSize > 0 {
			l.most = max(min(mostHung, options.PoolSize/2), 1) // the pool is the user's
		}
	}
	l.chores = Chores{Warn: owner.options.Warn, One: owner.options.One}
	l.directs.life = directFor
	l.plain = lane{link: l, most: 16, usual: 1, pipe: l.pipe}
	l.plain.slots = slots{life: flightFor + every, over: l.plain.giveUp}
	if l.pipe == nil {
		l.plain.usual = math.MaxInt
	}
	if owner.options.Replicas > 0 {
		pipe, _ := c.(pipeliner) // asked for with WithReplicaAck: the constructor has seen to it
		l.acked = lane{link: l, acked: true, most: 16, usual: 8, pipe: pipe}
		l.acked.slots = slots{life: owner.options.Within + flightFor + every, over: l.acked.giveUp}
	}
	return l
}

// CallsByGoroutine reports whether calls through a client change goroutines only because its
// options do not bound them.
func CallsByGoroutine(c Client) bool {
	switch c := c.(type) { // by exact type: see the package's comment
	case *redis.Client:
		return !bounded(c.Options())
	case *redis.ClusterClient:
		o := c.Options()
		return !bounded(&redis.Options{
			ContextTimeoutEnabled: o.ContextTimeoutEnabled, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		})
	}
	return false
}

// bounded says whether the client itself ends a call in time. -1 is what a client makes of -2: it
// sets no deadlines at all.
func bounded(o *redis.Options) bool {
	if o.ContextTimeoutEnabled {
		return o.ReadTimeout != -1 && o.WriteTimeout != -1
	}
	short := func(d time.Duration) bool { return d > 0 && d <= directFor }
	return short(o.ReadTimeout) && short(o.WriteTimeout)
}

// lane is where a call waits.
func (l *link) lane(c *Call) *lane {
	if c.Acked {
		return &l.acked
	}
	return &l.plain
}

// put makes a listed call wait for the next flight, which mostly begins at once.
func (l *link) put(c *Call) {
	if err := l.list(c); err == errGone {
		l.owner.to(l.client.(*redis.Client)).put(c) //nolint:forcetypeassert // only nodes of a Cluster leave
	} else if err != nil {
		c.refuse(err)
	}
}

// errGone: the link was forgotten while somebody was about to use it.
var errGone = errors.New("the link is gone")

// putOff makes a listed call wait for others to travel with.
func (l *link) putOff(c *Call) {
	l.mu.Lock()
	if l.prompt && !l.gone {
		l.lane(c).putOff(c)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.put(c)
}

// isPrompt reports whether the last answer came soon, and nothing hangs.
func (l *link) isPrompt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.prompt && !l.gone
}

func (l *link) list(c *Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gone:
		return errGone
	case l.hung >= l.most:
		return ErrHangs
	}
	lane := l.lane(c)
	lane.queues[c.Class] = append(lane.queues[c.Class], c)
	if lane.n++; lane.flying < lane.usual {
		lane.begin(time.Now())
	} else {
		lane.goRound(lane.oldest().Add(promptWithin))
	}
	return nil
}

// tryDirect makes the call on the caller's goroutine, if the client bounds it and the call would be
// alone. It is false when the call must go by flight.
func (l *link) tryDirect(c *Call) bool {
	if !l.bounded || c.Acked || c.asking || c.Class == Undo {
		return false
	}
	l.mu.Lock()
	if !l.prompt || l.gone || l.direct || l.plain.n > 0 || l.plain.flying > 0 {
		l.mu.Unlock()
		return false
	}
	l.direct = true
	slot := l.directs.at(c.sent)
	along := l.plain.along()
	l.mu.Unlock()
	if !c.take() { // only the caller could have left, and it is here
		panic("latchkit: a call was sent twice")
	}
	heard := false
	defer func() { // also when a hook panics
		for _, other := range along {
			other.answer("", ErrNoAnswer)
		}
		l.mu.Lock()
		l.direct = false
		l.note(time.Since(c.sent), heard)
		l.mu.Unlock()
	}()
	if len(along) > 0 {
		f := flight{lane: &l.plain, calls: append(along, c), ctx: slot}
		if heard, _ = f.send(); !heard {
			l.owner.doubt()
		}
		return true
	}
	ctx := slot.with(c.values)
	text, err := l.process(ctx, c, false)
	if c.unknown(err) {
		text, err = l.process(ctx, c, true)
	}
	if heard = replied(err); !heard {
		l.owner.doubt()
	}
	if !l.owner.redirect(c, err) {
		c.answer(text, err)
	}
	return true
}

// process sends one call by itself.
func (l *link) process(ctx context.Context, c *Call, inFull bool) (string, error) {
	cmd := c.command(ctx, inFull)
	return result(cmd, l.client.Process(ctx, cmd))
}

// note remembers how long an answer took; l.mu is held.
func (l *link) note(took time.Duration, heard bool) {
	l.prompt = heard && took < promptWithin && l.hung == 0
	if heard && l.pipe != nil {
		l.trips.note(took)
		// One flight at a time is right only where the wire costs nothing.
		l.plain.usual = int(min(max(l.trips.shortest()/(100*time.Microsecond), 1), 8))
	}
}

// forget ends a link at which nothing is left. Whoever has found it before is sent to its
// successor.
func (l *link) forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = l.gone || !l.direct && l.hung == 0 && l.adding == 0 &&
		l.plain.idle() && l.acked.idle() && l.chores.idle()
	return l.gone
}

// add hands a chore over. It is false when the link is gone.
func (l *link) add(ch Chore) bool {
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return false
	}
	l.adding++
	l.mu.Unlock()
	l.chores.Add(ch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adding--
	return true
}

// end stops the timers of a link.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plain.end()
	l.acked.end()
	l.directs.leave()
}

// trips knows the shortest of the last round trips: of 256 at least, and 511 at most.
type trips struct {
	n            int
	now, earlier time.Duration // shortest; 0: none
}

func (t *trips) note(took time.Duration) {
	took = max(took, 1)
	if t.now == 0 || took < t.now {
		t.now = took
	}
	if t.n++; t.n == 256 {
		t.n, t.earlier, t.now = 0, t.now, 0
	}
}

func (t *trips) shortest() time.Duration {
	if t.now == 0 || t.earlier != 0 && t.earlier < t.now {
		return t.earlier
	}
	return t.now
}
