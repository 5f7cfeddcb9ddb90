package redisstore

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// acquireQuestion returns an acquire of c that was not sent yet.
func (s *Store) acquireQuestion(c store.Claim) (*question, error) {
	if s.kind == withPermits {
		if c = withLimit(c); c.Weight > c.Limit {
			return nil, &store.Refusal{Err: fmt.Errorf("%w: %d units can never be free, because the limit is %d; lower the Weight or raise the Limit", store.ErrUnsupported, c.Weight, c.Limit)}
		}
	}
	waits, done, once := "", "", ""
	if c.Queue {
		waits = waiterPart(c)
	}
	if c.OnceFor > 0 {
		done, once = DoneKey(c.Key), "1"
	}
	block := max(c.FenceCount, 1)
	if c.Lone {
		block = 1
	}
	queue, tombstone := queueAndTombstone(c.Key, c.Owner)
	switch s.kind {
	case forOne: // below
	case withReaders:
		reader := "0"
		if c.Mode == store.Shared {
			reader = "1"
		}
		q := s.question(rwAcquireScript, c.Key)
		q.Words = rwAcquireScript.Words(
			[]string{c.Key, queue, CounterKey(c.Key), ReadersKey(c.Key), tombstone, DoneKey(c.Key)},
			c.Owner, Millis(c.TTL), int64(block), AsksOnce(c), c.Metadata, waits, ReaderEntry(c), reader)
		return q, nil
	case withPermits:
		q := s.question(semAcquireScript, c.Key)
		q.Words = semAcquireScript.shortWords(&q.room,
			[]string{c.Key, queue, CounterKey(c.Key), PermitsKey(c.Key), UsesKey(c.Key), tombstone, done},
			c.Owner, Millis(c.TTL), int64(block), int64(c.Weight), int64(c.Limit), waits, c.Metadata, once)
		return q, nil
	}
	q := s.question(acquireScript, c.Key)
	if block == 1 && once == "" {
		block, q.Together = 0, acquiresTogether // the script reserves one fence if it is given no number
	}
	q.Words = acquireScript.shortWords(&q.room,
		[]string{c.Key, queue, CounterKey(c.Key), tombstone, done},
		c.Owner, Millis(c.TTL), c.Metadata, waits, int64(block), once)
	return q, nil
}

// withLimit returns c with a Limit and a Weight, because the scripts of permits need both.
func withLimit(c store.Claim) store.Claim {
	c.Limit, c.Weight = max(c.Limit, 1), max(c.Weight, 1)
	return c
}

// question returns a question without words, which calls a script for the key. The script grants a
// lease. If replicas must acknowledge the lease, the call waits for them.
func (s *Store) question(script Script, key string) *question {
	q := s.newQuestion(script, key)
	q.Acked = s.acks.required()
	return q
}

func (s *Store) newQuestion(script Script, key string) *question {
	q := &question{store: s, silent: script.silent}
	q.Copy = q.room.Copy[:0]
	q.Script, q.Class, q.Key = script.Script, script.class, key
	return q
}

// grantOf returns the grant that text, the answer to an acquire or a release, contains. It returns
// false if text has another form.
func grantOf(text string) (g store.Grant, ok bool) {
	r := Reply{text}
	if text != "" && text[0] <= '9' { // the key was free, and one fence was asked for
		at, fence := r.Integer(), r.Integer()
		return store.Grant{State: store.Granted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: 1}, at > 0 && fence > 0
	}
	state := r.Word()
	if state == "released" {
		return store.Grant{State: store.Released}, true
	}
	g.At = r.Time()
	switch state {
	case "granted", "entered":
		_ = r.Word() // the PTTL, which is not needed, because the local clock counts the time that is left
		if state == "entered" {
			g.Writer = r.Word() == "1"
		}
		h, ok := ParseLease(r.Rest)
		g.State, g.Fence, g.FenceCount = store.Granted, h.Fence, h.Block
		return g, ok
	case "busy":
		left := r.Duration()
		g.State, g.Place, g.NotListening = store.Busy, int(r.Integer()), r.Word() == "0"
		g.Holder = holderOf(r.Rest, left)
	case "undone":
		g.State = store.Undone
	case "revoked":
		g.State, g.Reason = store.Revoked, r.Rest
	case "done":
		g.State = store.Done
	case "not-ours":
		g.State = store.NotOurs
	}
	return g, g.State != 0
}

// waiterPart returns the middle part of the entry of c in the queue. This part describes how the
// claim waits. In the entry, the token comes before this part, and the metadata after it.
func waiterPart(c store.Claim) string {
	return cmp.Or(c.Inbox, "-") + "|" + strconv.FormatInt(max(Millis(c.HandoffTTL), 1), 10) + "|" + modeOf(c) +
		"|" + strconv.Itoa(max(c.FenceCount, 1)) + "|" + AsksOnce(c)
}

// modeOf returns the mode in the queue entry of c: 0 for a claim that wants the key alone, 1 for a
// reader, w/n for w of n units.
func modeOf(c store.Claim) string {
	if c.Limit > 0 {
		return strconv.Itoa(max(c.Weight, 1)) + "/" + strconv.Itoa(c.Limit)
	}
	return strconv.Itoa(int(c.Mode))
}

// QueueEntry returns the entry of the claim c in the queue:
// token|inbox|hand-ms|mode|block|once|metadata. The entry must not change while the token lives.
func QueueEntry(c store.Claim) string { return c.Owner + "|" + waiterPart(c) + "|" + c.Metadata }

// AsksOnce returns "1" when the claim c asks whether its work is done already, otherwise "0".
func AsksOnce(c store.Claim) string {
	if c.OnceFor > 0 {
		return "1"
	}
	return "0"
}

// ReaderEntry returns the entry of the claim c in R. The entry must not change while the token
// lives.
func ReaderEntry(c store.Claim) string { return c.Owner + "|" + cmp.Or(c.Inbox, "-") }
