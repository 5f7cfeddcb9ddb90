package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// batch has the claims that one script renews.
type batch struct {
	kind   kind // the kind of the Store
	handed bool // the leases came by hand-off, and this call confirms them
	all    []*store.Claim
	places []int // the places of the batch's claims in the renewal
}

// mostInPart is the largest number of leases that one call renews. A longer script would delay the
// server's other clients.
const mostInPart = 32

// batches divides the claims cs into batches: where there are several shards by their slots, and
// everywhere by whether the claim's lease came by hand-off. Readers learn through their inboxes
// that a writer waits, so batches marks these inboxes as used.
func (s *Store) batches(cs []*store.Claim) (all []*batch) {
	type group struct {
		handed bool
		slot   uint16
	}
	open := make(map[group]*batch)
	for i, c := range cs {
		g := group{handed: c.ByHandoff}
		if s.cluster != nil || s.sharded.Load() {
			g.slot = SlotOf(c.Key)
		}
		if s.kind == withReaders && s.inbox != nil && c.Mode == store.Shared && c.Inbox != "" {
			s.inbox.markUsed(c.Key)
		}
		b := open[g]
		if b == nil || len(b.places) == mostInPart {
			b = &batch{kind: s.kind, handed: g.handed, all: cs, places: make([]int, 0, min(len(cs)-i, mostInPart))}
			open[g], all = b, append(all, b)
		}
		b.places = append(b.places, i)
	}
	return all
}

// patience returns for how long the answer to a renewal is of use. A renewal is sent when a third of
// the TTL is over, and then again and again, at most eight times without an answer, so each of them
// may take half of the TTL. A late answer may save a lease at a slow server.
func (b *batch) patience() time.Duration {
	shortest := b.all[b.places[0]].TTL
	for _, i := range b.places {
		shortest = min(shortest, b.all[i].TTL)
	}
	return shortest / 2
}

// call returns the call that renews the batch. It runs renew.lua, or confirm.lua for leases that
// came by hand-off, and for readers and permits. With readers, confirm.lua is for writers too,
// because one batch has the claims of both.
func (b *batch) call(s *Store) *link.Call {
	script, companions := confirmScript, []func(string) string{QueueKey} // the keys beside each lease
	switch {
	case b.kind == withReaders:
		companions = append(companions, ReadersKey)
	case b.kind == withPermits:
		companions = append(companions, PermitsKey, UsesKey)
	case !b.handed:
		script, companions = renewScript, nil
	}
	first, keys := b.all[b.places[0]].Key, len(b.places)*(1+len(companions))
	words := append(make([]any, 0, 3+keys+2*len(b.places)), "evalsha", script.sha, keys)
	for _, i := range b.places {
		words = append(words, &b.all[i].Key) // a pointer, so that nothing is copied: see WordsIn of link.Script
		for _, name := range companions {
			words = append(words, new(name(b.all[i].Key)))
		}
	}
	words[3] = first
	var ttl *int64 // most leases have the TTL of the lease before them
	for _, i := range b.places {
		c := b.all[i]
		owner := &c.Owner
		if b.kind == withReaders {
			owner = new(ReaderEntry(*c) + "|" + strconv.FormatUint(c.Fence, 10))
		}
		if ms := Millis(c.TTL); ttl == nil || *ttl != ms {
			ttl = new(ms)
		}
		words = append(words, owner, ttl)
	}
	return &link.Call{Script: script.Script, Words: words, Key: first, Class: script.class, Acked: s.acks.required()}
}

// fill puts the answer to the batch's call, text or err, into the grants of the batch.
func (b *batch) fill(grants []store.Grant, call *link.Call, text string, err error, acks Acks) {
	var short error
	if call.Acked && err == nil {
		short = acks.checkCount(call.Acks())
	}
	r := Reply{text}
	at := r.Time()
	for n := range grants {
		switch {
		case err != nil:
			grants[n] = store.Grant{Err: Refused(err)}
		case len(r.Rest) != len(grants):
			grants[n] = store.Grant{Err: Unreadable("renew")}
		case r.Rest[n] == '0':
			grants[n] = store.Grant{State: store.NotOurs, At: at}
		case short != nil:
			grants[n] = store.Grant{Err: short}
		default:
			grants[n] = store.Grant{State: store.Granted, At: at, Writer: r.Rest[n] == '2'}
		}
	}
}

// Renew does the work of BeginRenew, and waits for all answers.
func (s *Store) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	parts := make(chan []int, len(cs))
	claims := make([]*store.Claim, len(cs))
	for i := range cs {
		claims[i] = &cs[i]
	}
	s.BeginRenew(ctx, claims, func(places []int, answers []store.Grant) {
		for n, i := range places {
			grants[i] = answers[n]
		}
		parts <- places
	})
	for left := len(cs); left > 0; {
		select {
		case places := <-parts:
			left -= len(places)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if len(grants) > 0 && !slices.ContainsFunc(grants, func(g store.Grant) bool { return g.Err == nil }) {
		return nil, grants[0].Err
	}
	return grants, nil
}

// renew sends the batch b, waits for the answer, and puts it into grants.
func (s *Store) renew(ctx context.Context, b *batch, grants []store.Grant) {
	call := b.call(s)
	text, err := s.links.Do(ctx, call)
	b.fill(grants, call, text, err, s.acks)
}

// complete renews leases again, one after the other: those of one owner whose slot moves, and those
// that were refused because the batch has keys of several slots. Only this refusal shows that the
// server is a proxy before several shards; the next renewals then have a batch for each slot. After
// that, complete finds out which of the lost leases were revoked. It reads only the notes for owners
// that do not hold their leases any more. After a restart of the server without data, a process
// loses all its leases at once, so complete reads all their notes at the same time.
func (s *Store) complete(ctx context.Context, b *batch, grants []store.Grant) {
	for n, i := range b.places {
		one := &batch{kind: b.kind, handed: b.handed, all: b.all, places: []int{i}}
		switch err := grants[n].Err; {
		case slotMoves(err):
			s.renewMoving(ctx, one, b.all[i], grants[n:n+1])
		case b.crossesSlots(err):
			s.sharded.Store(true)
			s.renew(ctx, one, grants[n:n+1])
		}
	}
	var work sync.WaitGroup
	for n, i := range b.places {
		if grants[n].State != store.NotOurs {
			continue
		}
		work.Go(func() {
			if reason, ok := s.Revoked(ctx, *b.all[i]); ok {
				grants[n].State, grants[n].Reason = store.Revoked, reason
			}
		})
	}
	work.Wait()
}

// crossesSlots reports whether err shows that the batch was refused because its keys lie in several
// slots.
func (b *batch) crossesSlots(err error) bool {
	var reply redis.Error
	return len(b.places) > 1 && errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "CROSSSLOT")
}

// renewMoving renews the lease of c, the only one of the batch b, while its slot moves, in steps of
// one key each. A reader's part or a permit has several keys, so its renewal waits until the slot has
// moved.
func (s *Store) renewMoving(ctx context.Context, b *batch, c *store.Claim, grants []store.Grant) {
	if s.kind == withPermits || c.Fence != 0 {
		return
	}
	b.kind, b.handed = forOne, false
	s.renew(ctx, b, grants)
	if g := &grants[0]; g.State == store.Granted && c.ByHandoff {
		// The owner's entry leaves the queue. This step is safe, because no other token gets the
		// key while the owner holds the lease.
		if _, err := runCommand(ctx, s.links, link.Renewal, "zremrangebyscore", QueueKey(c.Key), "-inf", "(0"); err != nil {
			*g = store.Grant{Err: Refused(err)} // not confirmed; the lease is renewed again later
		}
	}
}

// Revoked reads the note that break.lua leaves for the owner of c. It returns the reason of the
// revocation, and whether there is a note. If the note cannot be read, the lease counts as lost
// without a reason. Revoked uses GETEX, because a client may send read commands to a replica, which
// may lag.
func (s *Store) Revoked(ctx context.Context, c store.Claim) (reason string, ok bool) {
	reason, ok = s.readNote(ctx, TombstoneKey(c.Key, c.Owner))
	if !ok && c.Fence != 0 {
		return s.readNote(ctx, PhaseNoteKey(c.Key, c.Fence))
	}
	return reason, ok
}

func (s *Store) readNote(ctx context.Context, note string) (reason string, ok bool) {
	v, err := runCommand(ctx, s.links, link.Renewal, "getex", note)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(v, "revoked:")
}
