package redisstore

import (
	"context"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// Release frees a lease, ends a reader's part, or gives back the units of a permit.
func (s *Store) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.releaseQuestion(c).ask(ctx, s.links)
}

// releaseQuestion returns a release of c that was not sent yet. No replica needs to acknowledge a
// release. With readers, a release waits until the slot has moved.
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
		q := s.newQuestion(rwReleaseScript, c.Key, readRelease)
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

// readRelease returns the grant that text, the answer to a release, contains.
func readRelease(_ *question, text string) (store.Grant, error) {
	if text == "released" {
		return store.Grant{State: store.Released}, nil
	}
	g, ok := grantOf(text)
	if !ok {
		return store.Grant{}, Unreadable("release")
	}
	return g, nil
}

// movable returns a release of c without words, which releaseAlone makes if the slot moves. If the
// release also sets the done mark, it must wait until the slot has moved, because both changes must
// happen together.
func (s *Store) movable(script Script, c store.Claim) *question {
	q := s.newQuestion(script, c.Key, readRelease)
	if s.cluster != nil && (!c.Complete || c.OnceFor <= 0) {
		claim := c // only this copy is on the heap
		q.alone = func(ctx context.Context) (store.Grant, error) { return s.releaseAlone(ctx, claim) }
	}
	return q
}

// releaseAlone makes a release in steps of one key each. A step does no harm even if no other step
// follows it, and each step may be repeated. The tombstone comes first, so that no late acquire
// takes the key that a later step frees. No step serves the waiters, who find the key free when
// they ask again.
func (s *Store) releaseAlone(ctx context.Context, c store.Claim) (store.Grant, error) {
	tombstone := TombstoneKey(c.Key, c.Owner)
	if c.TombstoneTTL > 0 {
		if _, err := undoneScript.Run(ctx, s.links, []string{tombstone}, Millis(c.TombstoneTTL)); err != nil {
			return store.Grant{}, err
		}
	}
	if c.Queue {
		if s.kind == withPermits {
			c = withLimit(c)
		}
		if _, err := runCommand(ctx, s.links, link.Release, "zrem", QueueKey(c.Key), QueueEntry(c)); err != nil {
			return store.Grant{}, Refused(err)
		}
	}
	freed, err := freeScript.Run(ctx, s.links, []string{c.Key}, c.Owner, Millis(c.KeepFor))
	if err != nil {
		return store.Grant{}, err
	}
	if freed == "1" {
		return store.Grant{State: store.Released}, nil
	}
	if reason, ok := s.readNote(ctx, tombstone); ok {
		return store.Grant{State: store.Revoked, Reason: reason}, nil
	}
	if s.kind != withPermits {
		return store.Grant{State: store.NotOurs}, nil
	}
	return s.endPermit(ctx, c)
}

// endPermit makes the permit of c run out now, or after KeepFor, in steps of one key each. The
// permit stays in P, because P and U must have the same size. A later script takes it back.
func (s *Store) endPermit(ctx context.Context, c store.Claim) (store.Grant, error) {
	if _, err := partScript.Run(ctx, s.links, []string{UsesKey(c.Key)}, c.Owner, int64(0), "end"); err != nil {
		return store.Grant{}, err
	}
	ended, err := partScript.Run(ctx, s.links, []string{PermitsKey(c.Key)}, c.Owner, Millis(c.KeepFor), "end")
	if err != nil {
		return store.Grant{}, err
	}
	if ended == "1" {
		return store.Grant{State: store.Released}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}
