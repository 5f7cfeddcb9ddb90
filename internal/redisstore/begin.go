package redisstore

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// question is one call that makes a step of the Store, together with the call's answer.
type question struct {
	link.Call
	room  link.Room
	read  func(q *question, text string) (store.Grant, error)
	acks  Acks
	block int // the number of fences that an acquire asks for
}

// Answered is signalled when the answer has arrived.
func (q *question) Answered() <-chan struct{} { return q.Done() }

// Answer returns the server's answer.
func (q *question) Answer() (store.Grant, error) { return q.grant(q.Take()) }

// Abandon stops waiting for the call.
func (q *question) Abandon() (sent bool) { return q.Leave() }

// grant reads an answer. An answer without the required acknowledgements does not count.
func (q *question) grant(text string, err error) (store.Grant, error) {
	if err != nil {
		return store.Grant{}, Refused(err)
	}
	g, err := q.read(q, text)
	if err == nil && q.Acked && g.State == store.Granted {
		if short := q.acks.short(q.Acks()); short != nil {
			return store.Grant{}, short
		}
	}
	return g, err
}

// ask makes the call and waits for its answer.
func (q *question) ask(ctx context.Context, to link.Sender) (store.Grant, error) {
	return q.grant(to.Do(ctx, &q.Call))
}

// begin makes the call. The answer may arrive before begin returns.
func (s Single) begin(ctx context.Context, q *question) calls.Question {
	s.links.Send(ctx, &q.Call)
	return q
}

// BeginAcquire does the work of Acquire for a caller that may leave before the answer arrives.
func (s Single) BeginAcquire(ctx context.Context, c store.Claim) calls.Question {
	return s.begin(ctx, s.acquire(c))
}

// BeginRelease does the work of Release for a caller that may leave before the answer arrives.
func (s Single) BeginRelease(ctx context.Context, c store.Claim) calls.Question {
	return s.begin(ctx, s.release(c))
}

// Prompt reports whether the last answers of the key's server came soon after their requests.
func (s Single) Prompt(key string) bool { return s.links.Prompt(key) }

// ReleaseBeside makes a release for which no caller waits.
func (s Single) ReleaseBeside(ctx context.Context, c store.Claim, when calls.When, answered func(store.Grant, error)) (recall func() bool) {
	q := s.release(c)
	q.OnAnswer = func(*link.Call) { answered(q.Answer()) }
	return s.beside(ctx, q, when)
}

// beside makes a call for which no caller waits.
func (s Single) beside(ctx context.Context, q *question, when calls.When) (recall func() bool) {
	switch when {
	case calls.AtOnce:
		s.links.Send(ctx, &q.Call)
	case calls.Soon:
		s.links.Put(ctx, &q.Call)
	default:
		s.links.PutOff(ctx, &q.Call)
	}
	return q.Recall
}

// BeginRenew does the work of Renew. The answers of each call are reported when they arrive.
func (s Single) BeginRenew(ctx context.Context, cs []store.Claim, answered func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for _, b := range inParts(Batches(cs, anywhere)) {
		s.beginRenewal(ctx, b, grants, answered, func() { s.lookUp(ctx, b, grants) })
	}
}

// Undo repeats a release until it is confirmed.
func (s Single) Undo(ch calls.Chore) {
	s.undo(ch, func(c store.Claim, answered func(store.Grant, error)) { s.sendUndo(s.release(c), answered) })
}

func (s Single) undo(ch calls.Chore, release func(store.Claim, func(store.Grant, error))) {
	s.links.Chore(ch.Claim.Key, calls.Attempts(ch, release))
}

// sendUndo sends an undo. The function answered receives the answer.
func (s Single) sendUndo(q *question, answered func(store.Grant, error)) {
	q.Class = link.Undo
	q.OnAnswer = func(*link.Call) { answered(q.Answer()) }
	s.links.Put(context.Background(), &q.Call)
}

// mostInPart is the largest number of leases that one call renews. A longer script would delay the
// server's other clients.
const mostInPart = 32

// inParts divides batches that are too long for one call.
func inParts(all []*Batch) []*Batch {
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

// beginRenewal sends one batch. If an answer shows that leases are not ours, or that their slot
// moves, further calls are needed. A separate goroutine makes these calls and then reports the
// answer. All other answers are reported at once.
func (s Single) beginRenewal(ctx context.Context, b *Batch, grants []store.Grant, answered func([]int, []store.Grant), complete func()) {
	call := b.call().link()
	call.Acked = s.acks.asked()
	call.OnAnswer = func(call *link.Call) {
		text, err := call.Answer()
		b.answered(call, text, err, s.acks, grants)
		if !b.incomplete(grants) {
			answered(b.Places, grants)
			return
		}
		s.renewals.Go(func() {
			complete()
			answered(b.Places, grants)
		})
	}
	s.renewals.Put(ctx, call)
}

// answered puts the answer to the call of a batch into the grants.
func (b *Batch) answered(call *link.Call, text string, err error, acks Acks, grants []store.Grant) {
	if err != nil {
		b.Fail(grants, Refused(err))
		return
	}
	var short error
	if call.Acked {
		short = acks.short(call.Acks())
	}
	b.Fill(grants, text, short)
}

// incomplete reports whether further calls are needed.
func (b *Batch) incomplete(grants []store.Grant) bool {
	for _, i := range b.Places {
		if grants[i].State == store.NotOurs || movesSlots(grants[i].Err) {
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
	err := s.links.Close(ctx)
	if s.renewals == s.links {
		return err
	}
	if closed := s.renewals.Close(ctx); err == nil {
		err = closed
	}
	return err
}

// steps is a question that takes several calls.
type steps struct {
	first *link.Call
	done  chan struct{}
	grant store.Grant
	err   error
}

func newSteps() *steps { return &steps{done: make(chan struct{}, 1)} }

// finish sets the answer.
func (s *steps) finish(g store.Grant, err error) {
	s.grant, s.err = g, err
	s.done <- struct{}{}
}

// Answered is signalled when the answer has arrived.
func (s *steps) Answered() <-chan struct{} { return s.done }

// Answer returns the result.
func (s *steps) Answer() (store.Grant, error) { return s.grant, s.err }

// Abandon stops waiting for the calls.
func (s *steps) Abandon() (sent bool) { return s.first.Leave() }

// soon returns a context for the calls that complete an answer. These calls must have their replies
// within a second, so the context ends then.
func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}
