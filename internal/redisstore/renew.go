package redisstore

import (
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// Batch has the claims that one script renews.
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

// firstClaim returns the first claim of the batch.
func (b *Batch) firstClaim() *store.Claim { return &b.all[b.Places[0]] }

// Batches divides the claims cs into batches: by the result of the function group for the claim's
// key, and by whether the claim's lease came by hand-off.
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

// Fill puts text, the answer to the batch's call, into the grants of the batch. The parameter short
// is the reason why the answer does not count for leases that their owners still hold; nil: the
// answer counts.
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

// sameGroup returns the same group for all keys, because one server has all of them.
func sameGroup(string) uint16 { return 0 }

// Renew runs renew.lua for all claims in one call. For leases that came by hand-off, it runs
// confirm.lua in another call.
func (s Single) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	for _, b := range Batches(cs, sameGroup) {
		s.renew(ctx, b, grants)
	}
	return s.Renewed(ctx, cs, grants)
}

// renew sends the batch b, waits for the answer, and puts it into grants.
func (s Single) renew(ctx context.Context, b *Batch, grants []store.Grant) {
	call := b.call().link()
	call.Acked = s.acks.required()
	text, err := s.Client.Do(ctx, call)
	b.fillAnswer(call, text, err, s.acks, grants)
}

// Renewed completes grants, the answers to a renewal of cs. For each lease that its owner does
// not hold any more, Renewed looks up once whether the lease was revoked.
func (s Single) Renewed(ctx context.Context, cs []store.Claim, grants []store.Grant) ([]store.Grant, error) {
	all := &Batch{all: cs}
	for i := range cs {
		all.Places = append(all.Places, i)
	}
	s.lookUp(ctx, all, grants)
	return errorOfAll(grants)
}

// errorOfAll returns the grants and no error if at least one grant has an answer. If all grants
// have errors, it returns the first of these errors.
func errorOfAll(grants []store.Grant) ([]store.Grant, error) {
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

// lookUp finds out which leases of the batch were revoked, and records this in grants. It reads
// only the notes for owners that do not hold their leases any more. After a restart of the
// server without data, a process loses all its leases at once, so lookUp reads all their notes
// at the same time.
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

// Revoked reads the note that break.lua leaves for the owner of c. It returns the reason of the
// revocation, and whether there is a note. If the note cannot be read, the lease counts as lost
// without a reason. Revoked uses GETEX, because a client may send read commands to a replica, which
// may lag.
func (s Single) Revoked(ctx context.Context, c store.Claim) (reason string, ok bool) {
	reason, ok = s.readNote(ctx, TombstoneKey(c.Key, c.Owner))
	if !ok && c.Fence != 0 {
		return s.readNote(ctx, PhaseNoteKey(c.Key, c.Fence))
	}
	return reason, ok
}

func (s Single) readNote(ctx context.Context, note string) (reason string, ok bool) {
	v, err := runCommand(ctx, s.Client, link.Renewal, "getex", note)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(v, "revoked:")
}
