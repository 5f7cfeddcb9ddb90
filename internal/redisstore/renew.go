package redisstore

import (
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// Batch is the claims that one script renews.
type Batch struct {
	handed  bool // the leases came by hand-off, and this call confirms them
	readers bool // the Store has readers
	permits bool // the Store has permits
	all     []store.Claim
	Places  []int // the places of the batch's claims in the renewal
}

// Claims returns the claims of the batch, in order.
func (b *Batch) Claims() iter.Seq[*store.Claim] {
	return func(yield func(*store.Claim) bool) {
		for _, i := range b.Places {
			if !yield(&b.all[i]) {
				return
			}
		}
	}
}

// first returns the first claim of the batch.
func (b *Batch) first() *store.Claim { return &b.all[b.Places[0]] }

// Batches divides claims by the group of their key, and by whether their leases came by hand-off.
func Batches(cs []store.Claim, group func(key string) uint16) []*Batch {
	type kind struct {
		handed bool
		group  uint16
	}
	var all []*Batch
	known := make(map[kind]*Batch)
	for i := range cs {
		k := kind{cs[i].ByHandoff, group(cs[i].Key)}
		b := known[k]
		if b == nil {
			b = &Batch{handed: k.handed, all: cs}
			known[k], all = b, append(all, b)
		}
		b.Places = append(b.Places, i)
	}
	return all
}

// call returns the call that renews the batch. It runs renew.lua, or confirm.lua for leases that
// came by hand-off.
func (b *Batch) call() *Call {
	switch {
	case b.permits:
		return b.permitsCall()
	case b.readers:
		return b.readersCall()
	}
	if b.handed {
		return b.confirmation()
	}
	n := len(b.Places)
	w := renewScript.Writer(n, n, n)
	for c := range b.Claims() {
		w.Text(c.Key)
	}
	for c := range b.Claims() {
		w.Text(c.Owner)
		w.Number(Millis(c.TTL))
	}
	return &Call{script: renewScript, Words: w.Words()}
}

func (b *Batch) confirmation() *Call {
	keys := make([]string, 0, 2*len(b.Places))
	args := make([]any, 0, 2*len(b.Places))
	for c := range b.Claims() {
		keys = append(keys, c.Key, QueueKey(c.Key))
		args = append(args, c.Owner, Millis(c.TTL))
	}
	return confirmScript.Call(keys, args...)
}

// Fill puts an answer into the grants of the batch. The parameter short is the reason why the
// answer does not count for leases that are still ours; nil: the answer counts.
func (b *Batch) Fill(grants []store.Grant, text string, short error) {
	r := Reply{text}
	at := r.Time()
	for n, i := range b.Places {
		switch {
		case len(r.Rest) != len(b.Places):
			grants[i] = store.Grant{Err: Unreadable("renew")}
		case r.Rest[n] == '0':
			grants[i] = store.Grant{State: store.NotOurs, At: at}
		case short != nil:
			grants[i] = store.Grant{Err: short}
		default:
			grants[i] = store.Grant{State: store.Granted, At: at, Writer: r.Rest[n] == '2'}
		}
	}
}

// Fail sets err as the error of each grant of the batch, because the call has no answer.
func (b *Batch) Fail(grants []store.Grant, err error) {
	for _, i := range b.Places {
		grants[i] = store.Grant{Err: err}
	}
}

// anywhere puts all keys of one server into the same group.
func anywhere(string) uint16 { return 0 }

// Renew runs renew.lua for all claims in one call. For leases that came by hand-off, it runs
// confirm.lua in another call.
func (s Single) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	for _, b := range Batches(cs, anywhere) {
		s.renew(ctx, b, grants)
	}
	return s.Renewed(ctx, cs, grants)
}

// renew sends one batch.
func (s Single) renew(ctx context.Context, b *Batch, grants []store.Grant) {
	call := b.call().link()
	call.Acked = s.acks.asked()
	text, err := s.Renewals.Do(ctx, call)
	b.answered(call, text, err, s.acks, grants)
}

// Renewed completes the answers: it looks up once each lease that is not ours, because it may have
// been revoked.
func (s Single) Renewed(ctx context.Context, cs []store.Claim, grants []store.Grant) ([]store.Grant, error) {
	all := &Batch{all: cs}
	for i := range cs {
		all.Places = append(all.Places, i)
	}
	s.lookUp(ctx, all, grants)
	return answers(grants)
}

// answers returns the grants. If no grant has an answer, it returns the reason as the error.
func answers(grants []store.Grant) ([]store.Grant, error) {
	for _, g := range grants {
		if g.Err == nil {
			return grants, nil
		}
	}
	if len(grants) == 0 {
		return grants, nil
	}
	return nil, grants[0].Err
}

// lookUp finds out whether leases that are not ours were revoked. After a restart of the server
// without data, a process loses all its leases at once, so lookUp reads all their notes at the same
// time.
func (s Single) lookUp(ctx context.Context, b *Batch, grants []store.Grant) {
	var work sync.WaitGroup
	for _, i := range b.Places {
		if grants[i].State != store.NotOurs {
			continue
		}
		work.Go(func() {
			if reason, ok := s.Revoked(ctx, b.all[i]); ok {
				grants[i].State, grants[i].Reason = store.Revoked, reason
			}
		})
	}
	work.Wait()
}

// Revoked reads the note that break.lua leaves. If the note cannot be read, the lease counts as
// lost without a reason. Revoked uses GETEX, because a client may send read commands to a replica,
// which may lag.
func (s Single) Revoked(ctx context.Context, c store.Claim) (reason string, ok bool) {
	reason, ok = s.noted(ctx, TombstoneKey(c.Key, c.Owner))
	if !ok && c.Fence != 0 {
		return s.noted(ctx, PhaseNoteKey(c.Key, c.Fence))
	}
	return reason, ok
}

func (s Single) noted(ctx context.Context, note string) (reason string, ok bool) {
	v, err := do(ctx, s.Renewals, link.Renewal, "getex", note)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(v, "revoked:")
}
