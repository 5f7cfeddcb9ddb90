package locker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// unansweredFor bounds how long a first acquire is repeated when the server gives no answer about the lock.
const unansweredFor = time.Second

// acquisition is one call of Acquire. It waits among the callers of this process first (see cohort), and at the server
// when it leads them or shares nothing with them. Each question to the Store is raced against the end of the caller's
// context, of the wait, and of the Locker. What may come first, and what is done:
//
//	granted        a lease, unless the caller is gone or the grant came too late: then it is given back
//	busy           in the server's queue until told, or a pause; then again with the same token
//	refused        returned when permanent; otherwise again, for at most min(Wait, 1 s) while no holder was seen
//	unclear        again with the same token, which finds the grant if there was one; the same bound
//	ctx, Wait or Close end first   the call is abandoned: the token leaves the queue and is undone in the background, so
//	               that a late execution takes nothing, and a grant that crossed it goes to the next
type acquisition struct {
	engine   *Engine
	rule     Rule
	adaptive bool            // the Engine chose the TTL
	caller   context.Context // as the caller gave it: the lease's contexts descend from it
	ctx      context.Context // the same with the Observer's additions, for the calls
	began    time.Time
	expiry   <-chan time.Time // rule.Wait is over
	meta     string

	cohort *cohort   // nil: shares nothing
	turn   chan turn // ends the wait in the cohort; made when it begins

	token    string
	asked    bool      // token was sent
	unclear  bool      // an acquire of token is unanswered
	first    time.Time // when token was first sent; zero when events were lost since
	sent     time.Time // when token was last sent
	queues   bool      // token may wait in the server's queue
	inbox    string    // where its grant is told; "": nowhere
	box      mailbox   // what was told
	expected bool      // the post knows token
	clock    anchor

	calls     int
	busySince time.Time // zero: no holder was seen
	holder    Holder
	place     int
	deaf      bool
	hears     bool  // the last answer was busy, so news of the key matter
	failure   error // of the last call that gave no answer
	admitted  bool  // counted as a waiter
	expects   time.Duration
	rechecks  int
	polled    bool // the last question followed a pause of the Backoff
	pauses    func() (time.Duration, bool)
	stop      func() // ends pauses
}

// question is an acquire that is under way.
type question interface {
	heard() <-chan struct{} // signalled when the answer is there
	answer() (Grant, error) // after that, once
	abandon()               // instead of answer: nobody waits for it any more
}

// errWaitOver ends a wait whose Rule.Wait has passed; giveUp turns it into what the caller sees.
var errWaitOver = errors.New("the wait is over")

func (a *acquisition) run() (*Lease, error) {
	if err := a.caller.Err(); err != nil {
		return nil, a.fail(err, 0)
	}
	if a.engine.isClosing() {
		return nil, a.fail(ErrClosed, 0)
	}
	if a.rule.Mode == Shared {
		return nil, a.fail(fmt.Errorf("%w: Mode Shared needs a Locker with readers", ErrUnsupported), 0)
	}
	if a.rule.Wait > 0 {
		timer := a.engine.timers.start(a.rule.Wait)
		defer a.engine.timers.stop(timer)
		a.expiry = timer.C
	}
	if f := a.engine.cfg.metadata; f != nil {
		a.meta = f(a.ctx)
		a.meta = a.meta[:min(len(a.meta), maxMetadataBytes)]
	}
	a.token = rand.Text()
	defer a.close()
	if t, ok := a.engine.cohorts.share(a.rule, a.adaptive); ok {
		return a.among(t)
	}
	return a.lead(nil)
}

// close ends what the wait has set up.
func (a *acquisition) close() {
	if a.admitted {
		a.engine.waiters.dismiss(a.key())
	}
	if a.stop != nil {
		a.stop()
	}
}

// among waits with the callers of this process that want the key on the same terms.
func (a *acquisition) among(t terms) (*Lease, error) {
	for inFront := false; ; inFront = true {
		leads, ok := a.engine.cohorts.join(a, t, inFront)
		if !ok {
			return nil, a.fail(ErrTooManyWaiters, a.retryAfter())
		}
		var asked question
		if !leads {
			if a.engine.cfg.queue {
				a.engine.post.warm(a.key())
			}
			turn, err := a.turnComes()
			switch {
			case err != nil:
				return nil, err
			case turn.err != nil:
				return nil, turn.err
			case turn.hold != nil:
				if l := a.takeOver(turn); l != nil {
					return l, nil
				}
				if a.engine.isClosing() {
					return nil, a.fail(ErrClosed, 0)
				}
				continue // it was lost on the way here
			}
			if turn.seen && a.busySince.IsZero() {
				a.busySince = a.began
			}
			if turn.asked != nil {
				asked = turn.asked
			}
		}
		lease, err := a.lead(asked)
		if err != nil {
			a.engine.cohorts.abdicate(a, err)
		}
		return lease, err
	}
}

// turnComes waits in the cohort.
func (a *acquisition) turnComes() (turn, error) {
	var reason error
	select {
	case t := <-a.turn:
		return t, nil
	case <-a.caller.Done():
		reason = a.caller.Err()
	case <-a.expiry:
		reason = errWaitOver
	case <-a.engine.closing:
		reason = ErrClosed
	}
	if !a.engine.cohorts.leave(a) {
		a.passUp(<-a.turn)
	}
	return turn{}, a.giveUp(reason)
}

// takeOver makes a Lease of a hold that another caller gave up. It is nil when the hold was lost in between, or the Engine
// is closing.
func (a *acquisition) takeOver(t turn) *Lease {
	a.busySince = a.began
	l := new(Lease)
	l.init(a, t.hold, t.fence)
	if a.engine.keeper.attach(t.hold, l) {
		return l
	}
	if a.engine.isClosing() {
		l.tell(ErrClosed)
		a.passUp(t)
	} else {
		l.tell(ErrLost)
	}
	return nil
}

// passUp does with a turn what must be done when nobody is there to take it.
func (a *acquisition) passUp(t turn) {
	a.busySince = a.began
	switch {
	case t.err != nil:
	case t.hold != nil:
		passed, next := a.engine.cohorts.release(t.hold)
		if !passed {
			t.hold.drop()
		}
		if next != nil {
			next.turn <- turn{seen: true}
		}
	default:
		if t.asked != nil {
			a.unclear = true
			a.forgetToken()
		}
		a.engine.cohorts.abdicate(a, nil)
	}
}

// lead asks the Store until it has a lease or a reason to stop; asked is a question that is under way already.
func (a *acquisition) lead(asked question) (lease *Lease, err error) {
	if asked != nil {
		lease, err = a.await(asked)
	} else {
		a.enqueue()
		lease, err = a.ask()
	}
	for lease == nil && err == nil {
		lease, err = a.wait()
	}
	if lease == nil {
		a.forgetToken()
	}
	return lease, err
}

// ask asks the Store once. Neither a lease nor an error means: again.
func (a *acquisition) ask() (*Lease, error) {
	a.calls++
	a.sent = a.began
	if a.calls > 1 || a.turn != nil { // it has waited
		a.sent = time.Now()
	}
	if !a.asked {
		a.asked, a.first = true, a.sent
	}
	return a.await(a.engine.calls.begin(a.ctx, Store.Acquire, a.claim()))
}

func (a *acquisition) await(q question) (*Lease, error) {
	a.hears = false
	var reason error
	select {
	case <-q.heard():
		g, err := q.answer()
		if err == errNotQueued {
			return a.ask()
		}
		if err != nil {
			return nil, a.failed(err)
		}
		return a.answered(g)
	case <-a.caller.Done():
		reason = a.caller.Err()
	case <-a.expiry:
		reason = errWaitOver
	case <-a.engine.closing:
		reason = ErrClosed
	}
	q.abandon()
	a.unclear = true
	return nil, a.giveUp(reason)
}

// claim is what is asked of the Store. What the queue knows of a token never changes during its life, because the queue
// finds it by all of that.
func (a *acquisition) claim() Claim {
	c := Claim{
		Key: a.key(), Owner: a.token, Mode: a.rule.Mode, TTL: a.rule.lease(), Block: 1,
		Metadata: a.meta, Once: a.rule.Once,
	}
	if a.cohort != nil {
		c.Block = a.engine.cfg.handoffs
	}
	if a.queues {
		c.Queue, c.Inbox, c.Hand = true, a.inbox, c.TTL
		if a.engine.cfg.renewal && (a.rule.AtMost == 0 || a.rule.AtMost > c.TTL) {
			c.Hand = min(c.TTL, longestHand)
		}
	}
	return c
}

func (a *acquisition) answered(g Grant) (*Lease, error) {
	if a.polled {
		a.polled = false
		a.engine.times.polled(a.rule.Name, g.State == Granted)
	}
	if g.State != Granted && g.State != Busy {
		a.undo() // an earlier call of this token may still run
	}
	switch g.State {
	case Granted:
		return a.take(g, a.sent, 0)
	case Busy:
		a.busy(g)
		if a.rule.Wait == NoWait {
			return nil, a.giveUp(errWaitOver)
		}
		return nil, nil
	case Done:
		return nil, a.fail(ErrDone, 0)
	case Revoked: // between a grant whose answer was lost and this repetition
		return nil, a.fail(revokedBecause(g.Reason), 0)
	default: // Undone is only answered to tokens that were given up
		return nil, a.fail(fmt.Errorf("%w: unexpected answer %q to an acquire", ErrUnavailable, g.State), 0)
	}
}

// busy remembers what the answer says of the holder and of the queue.
func (a *acquisition) busy(g Grant) {
	a.holder, a.place, a.deaf, a.hears = g.Holder, g.Place, g.Deaf, true
	a.clock = anchor{local: a.sent, server: g.At}
	if a.busySince.IsZero() {
		a.busySince = a.sent
		if d, ok := a.engine.times.expect(a.rule.Name); ok {
			a.expects = d * time.Duration(max(a.place, 1))
		}
	}
	if a.cohort != nil {
		a.engine.cohorts.busy(a)
	}
	if a.deaf {
		a.engine.post.deaf(a.inbox)
	}
}

// take makes the lease, counting its deadline from since: no later than the grant. handed is how long the server keeps it
// when the grant was told by message, 0 when it was the answer. Grant and the end of the caller may come together: then
// the lock is given back.
func (a *acquisition) take(g Grant, since time.Time, handed time.Duration) (*Lease, error) {
	e := a.engine
	ttl := a.rule.lease()
	life := ttl
	if handed > 0 {
		life = handed
	}
	deadline := since.Add(life - drift(life))
	gone := a.caller.Err()
	if gone == nil && time.Now().Before(deadline) {
		f := new(first)
		f.hold = hold{
			engine: e, key: a.key(), mode: a.rule.Mode, token: a.token, metadata: a.meta, fence: g.Fence, block: g.Block,
			ttl: ttl, since: since, granted: time.Now(), atLeast: a.rule.AtLeast, unclear: a.unclear, posted: a.expected, cohort: a.cohort,
			renewal: renewal{each: ttl, longest: ttl, deadline: deadline, handed: handed, adaptive: a.adaptive},
		}
		if a.rule.AtMost != 0 {
			f.hold.until = since.Add(a.rule.AtMost)
		}
		f.lease.init(a, &f.hold, g.Fence)
		if a.expected {
			e.post.ignore(a.token)
		}
		if a.cohort != nil {
			e.cohorts.granted(&f.hold) // before the keeper can find it lost, and tell the cohort so
		}
		if e.keeper.add(&f.hold, &f.lease) {
			return &f.lease, nil
		}
		gone = ErrClosed
		f.lease.tell(ErrClosed)
	}
	a.giveBack()
	if gone != nil {
		return nil, a.fail(gone, 0)
	}
	a.renewToken() // one token is one hold, and this one's time is over
	return nil, a.unanswered(fmt.Errorf("the answer took longer than the lease of %v lives; raise the TTL", ttl))
}

// failed handles an error of the Store.
func (a *acquisition) failed(err error) error {
	var no *Refusal
	switch {
	case !errors.As(err, &no):
		a.unclear = true
	case !no.Temporary:
		a.undo()
		return a.fail(unavailable(err), 0)
	}
	return a.unanswered(err)
}

// unanswered lets a waiter that has seen a holder go on, and bounds the repetitions of one that has not.
func (a *acquisition) unanswered(err error) error {
	a.failure = err
	if a.busySince.IsZero() && a.overdue() || a.rule.Wait == NoWait {
		a.undo()
		return a.fail(unavailable(err), 0)
	}
	return nil
}

// overdue: so long must nobody wait for a first answer.
func (a *acquisition) overdue() bool {
	bound := unansweredFor
	if a.rule.Wait != 0 {
		bound = min(bound, max(a.rule.Wait, 0))
	}
	return time.Since(a.began) >= bound
}

// unheard: the acquire has failed because the server cannot be asked.
func (a *acquisition) unheard(err error) bool {
	return a.busySince.IsZero() && errors.Is(err, ErrUnavailable)
}

// giveUp ends the wait for reason, undoes what is unclear, and says all that is true: the reason, and whether a holder
// was seen or the server was never heard of.
func (a *acquisition) giveUp(reason error) error {
	a.undo()
	seen := !a.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return a.fail(ErrClosed, 0)
	case seen && reason == errWaitOver && !a.hears && a.failure != nil: // what the holder does now, nobody knows
		return a.fail(unavailable(a.failure), 0)
	case seen && reason == errWaitOver:
		return a.fail(ErrBusy, a.retryAfter())
	case seen:
		return a.fail(fmt.Errorf("%w: %w", reason, ErrBusy), a.retryAfter())
	case reason == errWaitOver && a.failure != nil:
		return a.fail(unavailable(a.failure), 0)
	case reason == errWaitOver:
		return a.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, a.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded) && a.calls > 0:
		return a.fail(fmt.Errorf("%w: %w: no answer in time", reason, ErrUnavailable), 0)
	}
	return a.fail(reason, 0)
}

// giveBack releases what the token holds, or takes it out of the queue.
func (a *acquisition) giveBack() {
	claim := a.claim()
	claim.Undo = undoFor(a.unclear, claim.TTL)
	lives := max(claim.TTL, claim.Undo)
	if claim.Queue {
		lives = max(lives, time.Minute) // the server forgets a queue that nobody asks about
	}
	a.engine.cleaner.add(chore{claim: claim, useless: time.Now().Add(lives)})
}

// undo makes sure that the token takes nothing any more: neither by an unanswered acquire nor from the queue.
func (a *acquisition) undo() {
	if a.unclear || a.queues && a.asked {
		a.giveBack()
		a.unclear, a.asked = false, false
	}
}

// renewToken goes on with another token.
func (a *acquisition) renewToken() {
	a.forgetToken()
	a.token, a.asked, a.unclear, a.clock = rand.Text(), false, false, anchor{}
	a.enqueue()
}

// sees remembers who holds the key for which the caller waits in this process.
func (a *acquisition) sees(h Holder) {
	a.busySince, a.holder, a.hears = a.began, h, true
}

// admit counts the caller as a waiter, unless too many wait already.
func (a *acquisition) admit() bool {
	a.admitted = a.admitted || a.engine.waiters.admit(a.key(), a.engine.cfg.maxWaiters)
	return a.admitted
}

// retryAfter is what the holder has left if it dies now, or what those ahead need if they need as long as others did.
func (a *acquisition) retryAfter() time.Duration {
	after := a.holder.Left
	if after < 0 {
		after = a.rule.TTL
	}
	if d, ok := a.engine.times.expect(a.rule.Name); ok {
		after = min(after, d*time.Duration(max(a.place, 1)))
	}
	return max(after, time.Millisecond)
}

func (a *acquisition) key() string { return a.engine.cfg.prefix + a.rule.Key }

func (a *acquisition) fail(err error, retryAfter time.Duration) error {
	return &Error{Op: OpAcquire, Key: a.rule.Key, RetryAfter: retryAfter, Err: err}
}

// outcome tells the Observer how the acquire ended.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: a.calls, HolderMetadata: a.holder.Metadata,
		TTL: a.rule.lease(), Expected: a.expects,
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !a.busySince.IsZero() {
		o.Waited = time.Since(a.busySince)
	}
	if o.Result == ResultBusy && a.rule.Wait != NoWait {
		o.Result = ResultTimeout
	}
	return o
}

// undoFor is how long a tombstone must stand: 0 when every acquire of the token was answered, otherwise longer than any
// late execution could matter.
func undoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// unavailable wraps an error of a Store in the sentinel, unless it has a more telling one already.
func unavailable(err error) error {
	for _, known := range []error{ErrUnavailable, ErrInvalidKey, ErrUnsupported} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func revokedBecause(reason string) error {
	if reason == "" {
		return ErrRevoked
	}
	return fmt.Errorf("%w: %s", ErrRevoked, reason)
}
