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

// Answer returns the grant in the server's answer, or the error. Answer may be called after a
// receive from Answered.
func (q *question) Answer() (store.Grant, error) { return q.readGrant(q.Take()) }

// Abandon gives up the call. The result sent reports whether the call may have been sent.
func (q *question) Abandon() (sent bool) { return q.Leave() }

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
	return q.readGrant(sender.Do(ctx, &q.Call))
}

// begin sends the call of q, and returns q. The answer may arrive before begin returns.
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
func (s Single) ReleaseBeside(ctx context.Context, c store.Claim, when calls.When, onAnswer func(store.Grant, error)) (recall func() bool) {
	q := s.release(c)
	q.OnAnswer = func(*link.Call) { onAnswer(q.Answer()) }
	return s.sendBeside(ctx, q, when)
}

// sendBeside sends the call of q, for which no caller waits, at the time that when determines. The
// returned function recall takes the call back if it was not sent yet.
func (s Single) sendBeside(ctx context.Context, q *question, when calls.When) (recall func() bool) {
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

// BeginRenew does the work of Renew, and gives the answers of each call to onAnswer when they
// arrive.
func (s Single) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for _, b := range splitBatches(Batches(cs, sameGroup)) {
		s.beginRenewal(ctx, b, grants, onAnswer, func() { s.lookUp(ctx, b, grants) })
	}
}

// Undo repeats a release until it is confirmed.
func (s Single) Undo(ch calls.Chore) {
	s.undo(ch, func(c store.Claim, onAnswer func(store.Grant, error)) { s.sendUndo(s.release(c), onAnswer) })
}

func (s Single) undo(ch calls.Chore, release func(store.Claim, func(store.Grant, error))) {
	s.links.Chore(ch.Claim.Key, calls.Attempts(ch, release))
}

// sendUndo sends the undo q. The function onAnswer receives the answer.
func (s Single) sendUndo(q *question, onAnswer func(store.Grant, error)) {
	q.Class = link.Undo
	q.OnAnswer = func(*link.Call) { onAnswer(q.Answer()) }
	s.links.Put(context.Background(), &q.Call)
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
	call.OnAnswer = func(call *link.Call) {
		text, err := call.Answer()
		b.fillAnswer(call, text, err, s.acks, grants)
		if !b.needsMoreCalls(grants) {
			onAnswer(b.Places, grants)
			return
		}
		s.links.Go(func() {
			complete()
			onAnswer(b.Places, grants)
		})
	}
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

// multiQuestion is a Question that several calls answer.
type multiQuestion struct {
	first *link.Call
	done  chan struct{}
	grant store.Grant
	err   error
}

func newMultiQuestion() *multiQuestion { return &multiQuestion{done: make(chan struct{}, 1)} }

// finish sets the answer, and signals Answered.
func (s *multiQuestion) finish(g store.Grant, err error) {
	s.grant, s.err = g, err
	s.done <- struct{}{}
}

// Answered is signalled when the answer has arrived.
func (s *multiQuestion) Answered() <-chan struct{} { return s.done }

// Answer returns the answer that finish has set.
func (s *multiQuestion) Answer() (store.Grant, error) { return s.grant, s.err }

// Abandon gives up the calls. The result sent reports whether the first call may have been sent.
func (s *multiQuestion) Abandon() (sent bool) { return s.first.Leave() }

// completionContext returns a context, with the values of ctx, for the calls that complete an
// answer. The context ends after a second, because these calls must have their replies within a
// second.
func completionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}
