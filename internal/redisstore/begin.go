package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

var _ calls.Steps = (*Store)(nil)

// question is one call that makes a step of the Store, together with the Future of the step. Call
// is the way to the node, Future is the caller's side: Begin makes each refer to the other.
type question struct {
	link.Call
	calls.Future
	room   link.Room
	store  *Store
	silent *Script // the same script without messages, while it may be needed; nil: there is none
	frees  string  // the token of a release that changes only the key, if the key may be moving; see freeAlone
}

// Receive delivers the answer of the call, or makes further calls if the slot moves, or if the
// server refuses the text of the script.
func (q *question) Receive(*link.Call) {
	text, err := q.Call.Answer()
	g, err := q.readGrant(&q.Call, text, err)
	if !q.needsMore(err) {
		q.Deliver(g, err)
		return
	}
	q.store.links.Pool.Do(func() {
		ctx, cancel := completionContext(q.Values())
		defer cancel()
		q.Deliver(q.more(ctx, err))
	})
}

// needsMore reports whether the answer err has more to follow, by the function more.
func (q *question) needsMore(err error) bool {
	return q.frees != "" && slotMoves(err) || q.silent != nil && refusesText(err)
}

// more makes the step in another way.
func (q *question) more(ctx context.Context, err error) (store.Grant, error) {
	if slotMoves(err) {
		return q.freeAlone(ctx, err)
	}
	return q.askSilently(ctx, err)
}

// readGrant returns the grant that the answer text to the call c contains, or the error. An answer
// without the required acknowledgements gives an error.
func (q *question) readGrant(c *link.Call, text string, err error) (store.Grant, error) {
	if err != nil {
		return store.Grant{}, Refused(err)
	}
	g, ok := grantOf(text)
	if !ok {
		return store.Grant{}, Unreadable("an acquire or a release")
	}
	g.Doubled = c.Doubled()
	if q.Acked && g.State == store.Granted {
		if short := q.store.acks.checkCount(c.Acks()); short != nil {
			return store.Grant{}, short
		}
	}
	return g, nil
}

// Acquire asks once for a lease, for a reader's part or for a permit, and waits for the answer.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	return await(ctx, s.begin(ctx, calls.Acquire, c, nil, false))
}

// Release frees a lease, ends a reader's part, or gives back the units of a permit. It sends the
// release once, and waits for the answer.
func (s *Store) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return await(ctx, s.begin(ctx, calls.Release, c, nil, false))
}

// await waits for the answer to f, or until ctx ends.
func await(ctx context.Context, f *calls.Future) (store.Grant, error) {
	select {
	case <-f.Answered():
		return f.Answer()
	case <-ctx.Done():
		if !f.Abandon() {
			return store.Grant{}, Refused(link.ErrLeft)
		}
		return store.Grant{}, ctx.Err()
	}
}

// Begin begins a step. The answer may arrive before Begin returns.
func (s *Store) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	return s.begin(ctx, step, c, onAnswer, step != calls.Undo)
}

// begin does the work of Begin. The parameter again is true if the call may be sent once more when
// it has no answer.
func (s *Store) begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error), again bool) *calls.Future {
	var q *question
	repeatable := wasReleased
	if step != calls.Acquire {
		q = s.releaseQuestion(c)
	} else if asks, err := s.acquireQuestion(c); err != nil {
		return calls.Settled(store.Grant{}, err, onAnswer)
	} else {
		q, repeatable = asks, func(string) bool { return true } // a token that holds the key gets the same grant again
	}
	if again {
		q.Repeatable = repeatable
	}
	q.choose()
	q.Receiver = q
	q.Init(&s.links.Pool, &q.Call, onAnswer)
	if step == calls.Undo {
		q.Class = link.Undo
		s.links.Put(ctx, &q.Call)
	} else {
		s.links.Send(ctx, &q.Call)
	}
	return &q.Future
}

// Repeat repeats the attempt of ch until the key's server has answered it.
func (s *Store) Repeat(ch calls.Chore) { s.links.Repeat(ch) }

// BeginRenew does the work of Renew, and gives the answers of each call to onAnswer when they
// arrive. If an answer shows that leases do not belong to their owners any more, or that their slot
// moves, or that a batch has several slots, further calls are needed. A separate goroutine makes
// these calls before it calls onAnswer.
func (s *Store) BeginRenew(ctx context.Context, cs []*store.Claim, onAnswer func([]int, []store.Grant)) {
	for _, b := range s.batches(cs) {
		call := b.call(s)
		call.Patience = b.patience()
		call.Receiver = link.OnAnswer(func(call *link.Call) {
			memory := s.answers.Get().(*[mostInPart]store.Grant)
			grants := memory[:len(b.places)]
			text, err := call.Answer()
			b.fill(grants, call, text, err, s.acks)
			if !slices.ContainsFunc(grants, func(g store.Grant) bool { return g.State != store.Granted }) {
				onAnswer(b.places, grants)
				s.answers.Put(memory)
				return
			}
			s.links.Pool.Do(func() {
				s.complete(ctx, b, grants)
				onAnswer(b.places, grants)
			})
		})
		s.links.Put(ctx, call)
	}
}

// Close waits until unclear calls are undone and no call is under way, or until ctx ends.
func (s *Store) Close(ctx context.Context) error { return s.links.Close(ctx) }

// completionContext returns a context, with the values of ctx, for the calls that complete an
// answer. The context ends after a second, because these calls must have their replies within a
// second.
func completionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}
