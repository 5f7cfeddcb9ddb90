package redisstore

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

var _, _, _, _ calls.Steps = Single{}, Cluster{}, readWrite{}, semaphore{}

// question is one call that makes a step of the Store, together with the Future of the step.
type question struct {
	link.Call
	calls.Future
	room  link.Room
	read  func(q *question, text string) (store.Grant, error)
	acks  Acks
	block int // the number of fences that an acquire asks for

	links *link.Links
	// alone makes the step in steps of one key each, because the slot of the key moves; nil: a step
	// that is refused because its slot moves is over.
	alone func(ctx context.Context) (store.Grant, error)
}

// Receive delivers the answer of the call, or makes further calls if the slot moves.
func (q *question) Receive(*link.Call) {
	g, err := q.readGrant(q.Call.Answer())
	if q.alone == nil || !slotMoves(err) {
		q.Deliver(g, err)
		return
	}
	q.links.Pool.Do(func() {
		ctx, cancel := completionContext(q.Values())
		defer cancel()
		q.Deliver(q.alone(ctx))
	})
}

// readGrant returns the grant that the answer text contains, or the error. An answer without the
// required acknowledgements gives an error.
func (q *question) readGrant(text string, err error) (store.Grant, error) {
	if err != nil {
		return store.Grant{}, Refused(err)
	}
	g, err := q.read(q, text)
	if err == nil && q.Acked && g.State == store.Granted {
		if short := q.acks.checkCount(q.Acks()); short != nil {
			return store.Grant{}, short
		}
	}
	return g, err
}

// ask sends the call by sender, waits for the answer, and returns it.
func (q *question) ask(ctx context.Context, sender link.Sender) (store.Grant, error) {
	g, err := q.readGrant(sender.Do(ctx, &q.Call))
	if q.alone != nil && slotMoves(err) {
		return q.alone(ctx)
	}
	return g, err
}

// begin sends the call of q, which makes the given step. The answer may arrive before begin
// returns.
func (s Single) begin(ctx context.Context, step calls.Step, q *question, onAnswer func(store.Grant, error)) *calls.Future {
	q.links, q.Receiver = s.links, q
	q.Init(&s.links.Pool, &q.Call, onAnswer)
	switch step {
	case calls.Undo:
		q.Class = link.Undo
		s.links.Put(ctx, &q.Call)
	case calls.ReleaseSoon:
		s.links.Put(ctx, &q.Call)
	case calls.ReleaseLater:
		s.links.PutOff(ctx, &q.Call)
	default:
		s.links.Send(ctx, &q.Call)
	}
	return &q.Future
}

// Begin begins a step.
func (s Single) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire {
		return s.begin(ctx, step, s.acquire(c), onAnswer)
	}
	return s.begin(ctx, step, s.release(c), onAnswer)
}

// Prompt reports whether the last answers of the key's server came soon after their requests.
func (s Single) Prompt(key string) bool { return s.links.Prompt(key) }

// Repeat repeats the attempt of ch until the key's server has answered it.
func (s Single) Repeat(ch calls.Chore) { s.links.Repeat(ch) }

// BeginRenew does the work of Renew, and gives the answers of each call to onAnswer when they
// arrive.
func (s Single) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for _, b := range splitBatches(Batches(cs, sameGroup)) {
		s.beginRenewal(ctx, b, grants, onAnswer, func() { s.lookUp(ctx, b, grants) })
	}
}

// mostInPart is the largest number of leases that one call renews. A longer script would delay the
// server's other clients.
const mostInPart = 32

// splitBatches returns all batches, and divides each batch that is too long for one call.
func splitBatches(all []*Batch) []*Batch {
	var parts []*Batch
	for _, b := range all {
		for len(b.Places) > mostInPart {
			part := *b
			part.Places, b.Places = b.Places[:mostInPart], b.Places[mostInPart:]
			parts = append(parts, &part)
		}
		parts = append(parts, b)
	}
	return parts
}

// beginRenewal sends the batch b, puts the answers into grants, and then calls onAnswer. If an
// answer shows that leases do not belong to their owners any more, or that their slot moves,
// further calls are needed. A separate goroutine makes these calls by the function complete
// before it calls onAnswer.
func (s Single) beginRenewal(ctx context.Context, b *Batch, grants []store.Grant, onAnswer func([]int, []store.Grant), complete func()) {
	call := b.call().link()
	call.Acked = s.acks.required()
	call.Receiver = link.OnAnswer(func(call *link.Call) {
		text, err := call.Answer()
		b.fillAnswer(call, text, err, s.acks, grants)
		if !b.needsMoreCalls(grants) {
			onAnswer(b.Places, grants)
			return
		}
		s.links.Pool.Do(func() {
			complete()
			onAnswer(b.Places, grants)
		})
	})
	s.links.Put(ctx, call)
}

// fillAnswer puts the answer to the batch's call, text or err, into the grants.
func (b *Batch) fillAnswer(call *link.Call, text string, err error, acks Acks, grants []store.Grant) {
	if err != nil {
		b.Fail(grants, Refused(err))
		return
	}
	var short error
	if call.Acked {
		short = acks.checkCount(call.Acks())
	}
	b.Fill(grants, text, short)
}

// needsMoreCalls reports whether a grant of the batch shows that further calls are needed.
func (b *Batch) needsMoreCalls(grants []store.Grant) bool {
	for _, i := range b.Places {
		if grants[i].State == store.NotOurs || slotMoves(grants[i].Err) {
			return true
		}
	}
	return false
}

// Close waits until unclear calls are undone and no call is under way, or until ctx ends.
func (s Single) Close(ctx context.Context) error {
	if s.links == nil {
		return nil
	}
	return s.links.Close(ctx)
}

// completionContext returns a context, with the values of ctx, for the calls that complete an
// answer. The context ends after a second, because these calls must have their replies within a
// second.
func completionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}
