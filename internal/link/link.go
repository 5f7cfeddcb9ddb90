package link

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
)

// Client has the methods of a client that a link needs. A *redis.Client is a Client.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// pipeliner is a Client that can send several commands at once, on one connection to each node.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

const (
	// promptWithin is the longest time that an answer may take if the next single call is to be
	// direct.
	promptWithin = 20 * time.Millisecond
	// directFor is the longest time-out of a direct call, and flightFor is the shortest
	// time-out of a flight. All calls that begin in one window (50 ms) end together. So the
	// time-out of a direct call may be up to 50 ms shorter, and that of a flight up to 50 ms
	// longer.
	directFor = 200 * time.Millisecond
	flightFor = time.Second
	// mostDirect is the largest number of direct calls that are under way together. If there are
	// more callers, flights cost less than a connection for each caller.
	mostDirect = 8
	// probationAnswers is how many answers must come within promptWithin, after a direct call
	// without an answer, until there are direct calls again. Each such call costs a connection,
	// and a node that is slow, or a process that has little CPU time, is prompt now and then.
	probationAnswers = 32
	// mostHung is the largest number of hung flights.
	mostHung = 64
	// mostListed is the largest number of calls that wait to be sent.
	mostListed = 1 << 16
)

// link makes all calls to one node through one client.
type link struct {
	owner   *Links
	client  Client
	pipe    pipeliner // nil: each flight has only one call
	bounded bool      // the client ends a call with its context, so callers may make direct calls
	most    int       // the largest number of flights that may hang
	chores  calls.Chores

	mu        sync.Mutex
	plain     lane    // lane of the calls that need no acknowledgement
	acked     lane    // lane of the calls that replicas must acknowledge
	directs   windows // the contexts of direct calls
	direct    int     // number of direct calls under way
	crowd     int     // number of calls in the last flight that has landed
	prompt    bool    // the last answer came within promptWithin, and no flight hangs
	probation int     // how many answers must be prompt until the next direct call
	hung      int     // number of flights that were given up and have not returned
	forgotten bool    // the link was forgotten; a later call uses a new link
	adding    int     // how many calls of addChore are under way
	trips     trips

	failure  atomic.Pointer[error] // why the last call has no reply; nil: it has one
	separate atomic.Int32          // the number of further flights in which each call is made by itself: see Together
}

func newLink(owner *Links, c Client) *link {
	l := &link{owner: owner, client: c, most: mostHung}
	// Only a client of exactly this type is pipelined. The package's comment gives the reason: a
	// client may have its own Process.
	if own, ok := c.(*redis.Client); ok {
		options := own.Options()
		l.pipe, l.bounded = own, bounded(options)
		if options.PoolSize > 0 {
			l.most = max(min(mostHung, options.PoolSize/2), 1) // the user's calls need the other half of the pool
		}
	}
	l.chores = calls.Chores{Warn: owner.options.Warn, One: owner.options.OfQuorum}
	l.directs.life = directFor
	l.plain = lane{link: l, most: 16, usual: 1, pipe: l.pipe}
	l.plain.windows = windows{life: flightFor + windowLength, onEnd: l.plain.giveUp}
	if l.pipe == nil {
		l.plain.usual = math.MaxInt
	}
	if owner.options.Replicas > 0 {
		pipe, _ := c.(pipeliner) // the client has a Pipeline, because the constructor has checked this for WithReplicaAck
		l.acked = lane{link: l, acked: true, most: 16, usual: 8, pipe: pipe}
		l.acked.windows = windows{life: owner.options.Within + flightFor + windowLength, onEnd: l.acked.giveUp}
	}
	return l
}

// CallsByGoroutine reports whether the calls of a client need another goroutine only because the
// client's options set no time-out.
func CallsByGoroutine(c Client) bool {
	switch c := c.(type) { // only the exact type: see the package's comment, on clients with their own Process
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

// bounded reports whether the client itself ends a call at its time-out. A client turns a time-out
// of -2 in its options into -1, and then sets no deadlines at all.
func bounded(o *redis.Options) bool {
	if o.ContextTimeoutEnabled {
		return o.ReadTimeout != -1 && o.WriteTimeout != -1
	}
	short := func(d time.Duration) bool { return d > 0 && d <= directFor }
	return short(o.ReadTimeout) && short(o.WriteTimeout)
}

// lane returns the link's lane for the call c.
func (l *link) lane(c *Call) *lane {
	if c.Acked {
		return &l.acked
	}
	return &l.plain
}

// enlist adds c to the list for the next flight, which usually begins at once.
func (l *link) enlist(c *Call) {
	if err := l.list(c); err == errForgotten {
		l.owner.linkTo(l.client.(*redis.Client)).enlist(c)
	} else if err != nil {
		c.refuse(err)
	}
}

// errForgotten is the error of a link that was forgotten just before it was used.
var errForgotten = errors.New("the link is gone")

func (l *link) list(c *Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.forgotten:
		return errForgotten
	case l.hung >= l.most:
		return ErrHangs
	}
	lane := l.lane(c)
	if lane.n >= mostListed {
		return ErrHangs
	}
	lane.queues[c.Class] = append(lane.queues[c.Class], c)
	if lane.n++; lane.flying < lane.usual {
		lane.begin(time.Now())
	} else {
		lane.scheduleExtra(lane.oldestTime().Add(promptWithin))
	}
	return nil
}

// tryDirect makes the call on the caller's goroutine, if the client ends the call at its time-out
// and few calls are under way. The result is false when the call needs a flight.
func (l *link) tryDirect(c *Call) bool {
	if !l.bounded || c.Acked || c.asking || c.Class == Undo {
		return false
	}
	l.mu.Lock()
	if !l.prompt || l.probation > 0 || l.forgotten || l.direct >= mostDirect || l.crowd > mostDirect || l.plain.n > 0 || l.plain.flying > 0 {
		l.mu.Unlock()
		return false
	}
	l.direct++
	w := l.directs.windowAt(c.sent)
	l.mu.Unlock()
	if !c.markUnderWay() { // cannot happen, because no other goroutine could have changed the call's fate
		panic("latchkit: a call was sent twice")
	}
	gotReply := false
	defer func() { // deferred, because a hook may panic
		l.mu.Lock()
		l.direct--
		l.recordTrip(time.Since(c.sent), gotReply)
		if !gotReply {
			l.probation = probationAnswers
		}
		l.mu.Unlock()
	}()
	ctx := w.withValues(c.values)
	text, err := l.sendOne(ctx, c, false)
	if c.lacksScript(err) {
		text, err = l.sendOne(ctx, c, true)
	}
	if gotReply = isReply(err); !gotReply {
		l.owner.reloadState()
	}
	if !l.owner.redirect(c, err) {
		c.end(text, err)
	}
	return true
}

// sendOne sends the call c by itself, and returns the reply. With inFull, the call carries the
// script's text.
func (l *link) sendOne(ctx context.Context, c *Call, inFull bool) (string, error) {
	cmd := c.command(ctx, inFull)
	text, err := resultOf(cmd, l.client.Process(ctx, cmd))
	note(&l.failure, err)
	return text, err
}

// note keeps err in failure until a server replies. The end of a call's time does not say why there
// was no reply.
func note(failure *atomic.Pointer[error], err error) {
	if isReply(err) {
		if failure.Load() != nil {
			failure.Store(nil)
		}
	} else if !errors.Is(err, context.DeadlineExceeded) {
		failure.Store(&err)
	}
}

// recordTrip records the duration of a round trip, took, and whether the node has replied. The
// caller holds l.mu.
func (l *link) recordTrip(took time.Duration, gotReply bool) {
	if l.prompt = gotReply && took < promptWithin && l.hung == 0; l.prompt && l.probation > 0 {
		l.probation--
	}
	if gotReply && l.pipe != nil {
		l.trips.recordTrip(took)
		// If a round trip takes almost no time, one flight at a time is best. Otherwise several
		// flights are under way together.
		l.plain.usual = int(min(max(l.trips.shortest()/(100*time.Microsecond), 1), 8))
	}
}

// forget marks the link as forgotten if it is idle, and reports whether it was idle. A caller that
// still has a forgotten link must get a new link to the node.
func (l *link) forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgotten = l.forgotten || l.direct == 0 && l.hung == 0 && l.adding == 0 &&
		l.plain.idle() && l.acked.idle() && l.chores.Idle()
	return l.forgotten
}

// addChore adds ch to the chores of the link. It returns false when the link was forgotten.
func (l *link) addChore(ch calls.Chore) bool {
	l.mu.Lock()
	if l.forgotten {
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

// stopTimers stops the timers of the link's lanes, and replaces the present window of direct calls.
func (l *link) stopTimers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plain.stopTimers()
	l.acked.stopTimers()
	l.directs.replacePresent()
}

// trips has the duration of the shortest of the last 256 to 511 round trips.
type trips struct {
	n            int
	now, earlier time.Duration // shortest round trips; 0: none
}

func (t *trips) recordTrip(took time.Duration) {
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
