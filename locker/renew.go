package locker

import (
	"context"
	"iter"
	"strings"
)

// batch is those claims of a renewal that go out in one script.
type batch struct {
	handed  bool // they were handed over, and this confirms them
	readers bool // the Store has readers
	all     []Claim
	places  []int // of those in the batch
}

// claims are those of the batch, in order.
func (b *batch) claims() iter.Seq[*Claim] {
	return func(yield func(*Claim) bool) {
		for _, i := range b.places {
			if !yield(&b.all[i]) {
				return
			}
		}
	}
}

// first is one of them.
func (b *batch) first() *Claim { return &b.all[b.places[0]] }

// batches sorts claims by what they have in common: whether they were handed over, and their group.
func batches(cs []Claim, group func(key string) uint16) []*batch {
	type kind struct {
		handed bool
		group  uint16
	}
	var all []*batch
	known := make(map[kind]*batch)
	for i := range cs {
		k := kind{cs[i].Handed, group(cs[i].Key)}
		b := known[k]
		if b == nil {
			b = &batch{handed: k.handed, all: cs}
			known[k], all = b, append(all, b)
		}
		b.places = append(b.places, i)
	}
	return all
}

// call is the script that renews the batch: renew.lua, or confirm.lua for those that were handed over.
func (b *batch) call() *call {
	if b.readers {
		return b.readersCall()
	}
	if b.handed {
		return b.confirmation()
	}
	keys := make([]string, 0, len(b.places))
	args := make([]any, 0, 2*len(b.places))
	for c := range b.claims() {
		keys = append(keys, c.Key)
		args = append(args, c.Owner, millis(c.TTL))
	}
	return renewScript.call(keys, args...)
}

func (b *batch) confirmation() *call {
	keys := make([]string, 0, 2*len(b.places))
	args := make([]any, 0, 2*len(b.places))
	for c := range b.claims() {
		keys = append(keys, c.Key, queueOf(c.Key))
		args = append(args, c.Owner, millis(c.TTL))
	}
	return confirmScript.call(keys, args...)
}

// fill puts an answer into the grants of the batch. short is why it does not count for those that are still ours, if so.
func (b *batch) fill(grants []Grant, text string, short error) {
	r := reply{text}
	at := r.time()
	for n, i := range b.places {
		switch {
		case len(r.rest) != len(b.places):
			grants[i] = Grant{Err: odd("renew")}
		case r.rest[n] == '0':
			grants[i] = Grant{State: NotOurs, At: at}
		case short != nil:
			grants[i] = Grant{Err: short}
		default:
			grants[i] = Grant{State: Granted, At: at, Writer: r.rest[n] == '2'}
		}
	}
}

// fail says of all of the batch why there is no answer.
func (b *batch) fail(grants []Grant, err error) {
	for _, i := range b.places {
		grants[i] = Grant{Err: err}
	}
}

// Renew runs renew.lua for all claims in one call, and confirm.lua in another one for those that were handed over, if
// there are any.
func (s single) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	grants := make([]Grant, len(cs))
	for _, b := range batches(cs, func(string) uint16 { return 0 }) {
		s.renew(ctx, b, grants)
	}
	return s.renewed(ctx, cs, grants)
}

// renew sends one batch.
func (s single) renew(ctx context.Context, b *batch, grants []Grant) {
	to, w := s.renewals, (*witness)(nil)
	if s.acks.asked {
		w = s.acks.witness(s.renewals, b.first().Key)
		to = w
	}
	text, err := b.call().run(ctx, to)
	if err != nil {
		b.fail(grants, err)
		return
	}
	var short error
	if w != nil {
		short = w.short
	}
	b.fill(grants, text, short)
}

// renewed completes the answers: whoever is not ours is looked up once, for it may have been revoked. When there is no answer at
// all, the reason is the answer.
func (s single) renewed(ctx context.Context, cs []Claim, grants []Grant) ([]Grant, error) {
	answered := false
	for i := range grants {
		answered = answered || grants[i].Err == nil
		if grants[i].State == NotOurs {
			if reason, ok := s.revoked(ctx, cs[i]); ok {
				grants[i].State, grants[i].Reason = Revoked, reason
			}
		}
	}
	if !answered {
		return nil, grants[0].Err
	}
	return grants, nil
}

// revoked reads the note that break.lua leaves. When it cannot be read the lease is lost all the same. GETEX, because a
// client may send what only reads to a replica, which may lag.
func (s single) revoked(ctx context.Context, c Claim) (reason string, ok bool) {
	reason, ok = s.noted(ctx, tombstoneOf(c.Key, c.Owner))
	if !ok && c.Fence != 0 {
		return s.noted(ctx, noteOf(c.Key, c.Fence))
	}
	return reason, ok
}

func (s single) noted(ctx context.Context, note string) (reason string, ok bool) {
	v, err := do(ctx, s.renewals, "getex", note)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(v, "revoked:")
}
