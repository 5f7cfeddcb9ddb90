package redisstore

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// releaseQuestion returns a release of c that was not sent yet. No replica needs to acknowledge a
// release. While the slot of c moves, only a lease of one owner is released: see freeAlone. All else
// waits until the slot has moved.
func (s *Store) releaseQuestion(c store.Claim) *question {
	if s.kind == withPermits && c.Queue {
		c = withLimit(c)
	}
	queue, tombstone := queueAndTombstone(c.Key, c.Owner)
	entry, done := "", ""
	mark := time.Duration(0) // how long the done mark lasts
	if c.Complete {
		mark = c.OnceFor
	}
	if c.Queue {
		entry = QueueEntry(c)
	}
	if mark > 0 {
		done = DoneKey(c.Key)
	}
	switch s.kind {
	case forOne: // below
	case withReaders:
		phase := tombstone
		if c.Fence != 0 {
			phase = PhaseNoteKey(c.Key, c.Fence)
		}
		q := s.newQuestion(rwReleaseScript, c.Key)
		q.Words = rwReleaseScript.Words(
			[]string{c.Key, queue, CounterKey(c.Key), ReadersKey(c.Key), tombstone, DoneKey(c.Key), phase},
			c.Owner, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(mark), entry, ReaderEntry(c), traceSuffix(c))
		return q
	case withPermits:
		q := s.movable(semReleaseScript, c)
		q.Words = semReleaseScript.shortWords(&q.room,
			[]string{c.Key, queue, CounterKey(c.Key), PermitsKey(c.Key), UsesKey(c.Key), tombstone, done},
			c.Owner, entry, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(mark))
		return q
	}
	q := s.movable(releaseScript, c)
	q.Words = releaseScript.shortWords(&q.room,
		[]string{c.Key, queue, CounterKey(c.Key), tombstone, done},
		c.Owner, entry, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(mark))
	if c.KeepFor <= 0 && c.TombstoneTTL <= 0 && mark <= 0 {
		q.Together = releasesTogether
	}
	return q
}

// traceSuffix returns the text that the next holder gets about the release of c: "|" and the
// traceparent of c, or "" if c has no traceparent.
func traceSuffix(c store.Claim) string {
	if trace, _ := store.Signature(c.Metadata); trace != "" {
		return "|" + trace
	}
	return ""
}

// wasReleased reports whether text answers a release that has freed something. If one of two
// releases has not, the other one may have.
func wasReleased(text string) bool { return strings.HasPrefix(text, "released") }

// movable returns a release of c without words.
func (s *Store) movable(script Script, c store.Claim) *question {
	q := s.newQuestion(script, c.Key)
	if s.cluster != nil && c.KeepFor <= 0 && c.TombstoneTTL <= 0 && !c.Complete {
		q.frees = c.Owner
	}
	return q
}

// freeAlone makes a release that was refused with the error moves, because the slot moves, in steps
// of one key each. It serves no waiter: while the slot moves, the server refuses all
// acquires, and after that, the waiters find the key free when they ask again.
func (q *question) freeAlone(ctx context.Context, moves error) (store.Grant, error) {
	freed, err := freeScript.Run(ctx, q.store.links, []string{q.Key}, q.frees)
	if err != nil || freed != "1" {
		return store.Grant{}, cmp.Or(err, moves) // without an answer, the key may be free
	}
	// If the lease came by hand-off, its entry is still in the queue.
	_, _ = runCommand(ctx, q.store.links, link.Release, "zremrangebyscore", QueueKey(q.Key), "-inf", "(0")
	return store.Grant{State: store.Released}, nil
}
