package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Inspect runs inspect.lua. Inspect takes the time Since from the fence. If the counter was not
// ahead of the clock at the grant, the fence is the server's clock in µs at that time.
func (s *Store) Inspect(ctx context.Context, key string) (store.Info, error) {
	f, err := s.inspect(ctx, key)
	return f.info, err
}

// found has the result of inspect.lua.
type found struct {
	info   store.Info
	text   string    // the value of L
	holder LeaseText // the contents of text
	tokens []string  // the tokens of info.Permits
}

func (s *Store) inspect(ctx context.Context, key string) (found, error) {
	f, err := s.read(ctx, key)
	if err != nil {
		return found{}, err
	}
	if f.info.Held {
		var ours bool
		f.holder, ours = ParseLease(f.text)
		Describe(&f.info, f.holder, ours)
	}
	if len(f.tokens) > 0 {
		f.info.Held = true
		if p := f.info.Permits[0]; f.holder.Token == "" || f.holder.Token == PermitsToken {
			f.info.Left, f.info.Metadata, f.info.Since, f.info.Kept = p.Left, p.Metadata, p.Since, p.Kept
		}
	}
	return f, nil
}

// Read runs inspect.lua. The results are the value of the key, and how long the key lasts. For now,
// the returned Since is the server's present time, and Describe replaces it.
func (s *Store) Read(ctx context.Context, key string) (info store.Info, text string, err error) {
	f, err := s.read(ctx, key)
	return f.info, f.text, err
}

func (s *Store) read(ctx context.Context, key string) (f found, err error) {
	keys := []string{key, QueueKey(key)}
	switch s.kind {
	case forOne: // no other keys
	case withReaders:
		keys = append(keys, ReadersKey(key))
	case withPermits:
		keys = append(keys, PermitsKey(key), UsesKey(key))
	}
	v, err := inspectScript.Run(ctx, s.links, keys)
	if err != nil {
		return found{}, err
	}
	r := Reply{v}
	now, left := r.Time(), r.Duration()
	f.info.Waiters = int(r.Integer())
	count, limit := int(r.Integer()), int(r.Integer())
	known := make(processes)
	for range count {
		left := r.Duration()
		member, ok := r.countedPart()
		_ = r.Word() // skips the space after the member
		owner, rest, _ := strings.Cut(member, "|")
		if s.kind == withReaders {
			f.info.Reading = append(f.info.Reading, store.Reader{Left: left, Process: known.number(rest)})
		} else {
			p, readable := permitOf(rest)
			p.Left, p.Kept = left, strings.HasPrefix(owner, KeptToken+"-")
			if at := time.UnixMicro(int64(p.Fence)); !at.After(now) {
				p.Since = at
			}
			f.info.Permits, f.tokens, f.info.Limit = append(f.info.Permits, p), append(f.tokens, owner), limit
			f.info.Used += p.Weight
			ok = ok && readable
		}
		if !ok {
			return found{}, Unreadable("inspect")
		}
	}
	if now.Equal(time.UnixMicro(0)) {
		return found{}, Unreadable("inspect")
	}
	f.info.Readers = len(f.info.Reading)
	if left != noKey {
		f.info.Held, f.info.Left, f.info.Since, f.text = true, left, now, r.Rest
	}
	return f, nil
}

// permitOf parses use, the value of a permit in U. It returns false if the value has another form.
func permitOf(use string) (p store.Permit, ok bool) {
	parts := strings.SplitN(use, "|", 7)
	if len(parts) != 7 {
		return p, false
	}
	var errs [3]error
	p.Fence, errs[0] = strconv.ParseUint(parts[0], 10, 64)
	p.Weight, errs[1] = strconv.Atoi(parts[2])
	p.Limit, errs[2] = strconv.Atoi(parts[3])
	p.Metadata = parts[6]
	return p, !slices.ContainsFunc(errs[:], func(err error) bool { return err != nil })
}

// Describe adds the contents of the lease h to i. The parameter ours is false if a program other
// than latchkit wrote the lease.
func Describe(i *store.Info, h LeaseText, ours bool) {
	i.Foreign, i.Fence, i.Metadata, i.Kept = !ours, h.Fence, h.Metadata, h.Token == KeptToken
	if h.Token == SharedToken {
		i.Mode = store.Shared
	}
	now := i.Since
	i.Since = time.Time{}
	if at := time.UnixMicro(int64(h.Fence)); ours && !at.After(now) {
		i.Since = at
	}
}

// Revoke looks up the permit or the holder with the given fence, and revokes the permit or the
// lease. All readers of a phase are revoked together, because they share one fence. Revoke takes
// two steps, because the name of the note contains the holder's token or the fence of the phase,
// and a script must get the names of all its keys. The second step changes nothing if the holder
// has changed.
func (s *Store) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	f, err := s.inspect(ctx, key)
	if err != nil {
		return store.Grant{}, err
	}
	keys := []string{key, QueueKey(key), CounterKey(key), ReadersKey(key)}
	holder, note := f.holder, ""
	i := slices.IndexFunc(f.info.Permits, func(p store.Permit) bool { return p.Fence == fence })
	switch {
	case i >= 0:
		p := f.info.Permits[i]
		holder, f.info.Kept, f.info.Left = LeaseText{Token: f.tokens[i], Fence: fence}, p.Kept, p.Left
		keys = append(keys[:3], PermitsKey(key), UsesKey(key))
	case len(f.tokens) > 0, s.kind == withPermits && holder.Token == PermitsToken:
		return store.Grant{State: store.NotOurs}, nil
	default:
		if there, err := revocable(f.info, holder, fence); !there {
			return store.Grant{State: store.NotOurs}, err
		}
	}
	note = TombstoneKey(key, holder.Token)
	if i < 0 && f.info.Mode == store.Shared {
		note = PhaseNoteKey(key, holder.Fence)
	}
	noteTTL := max(f.info.Left, time.Minute)
	if f.info.Kept {
		noteTTL = 0 // a kept key has no holder that reads the note
	}
	// Only the fence distinguishes the leases of all kept keys, and of all phases.
	text := fmt.Sprintf("%s:%d:", holder.Token, holder.Fence)
	v, err := s.run(ctx, breakScript, append(keys, note), text, "revoked:"+reason, Millis(noteTTL))
	if err != nil {
		return store.Grant{}, err
	}
	if v != "1" {
		return store.Grant{State: store.NotOurs}, nil
	}
	return store.Grant{State: store.Released}, nil
}

// revocable reports whether a holder with the given fence holds the key. The error is the reason
// why the present holder cannot be revoked.
func revocable(info store.Info, holder LeaseText, fence uint64) (bool, error) {
	switch {
	case holder.Token == PermitsToken:
		return false, &store.Refusal{Err: fmt.Errorf("%w: permits of a semaphore are held; revoke one of them with a Locker of NewSemaphore", store.ErrUnsupported)}
	case info.Foreign:
		return false, &store.Refusal{Err: fmt.Errorf("%w: another library or program holds the key and has no fence; delete the key by hand if you must end that lock", store.ErrUnsupported)}
	}
	return info.Held && fence >= holder.Fence && fence-holder.Fence < uint64(max(holder.Block, 1)), nil
}

// largestFence is the largest fence to which RaiseFence raises a counter. This limit leaves room
// below 2^53, where Lua's numbers stop being exact. A clock in µs reaches this number in the year
// 2255.
const largestFence = 1<<53 - 1<<32

// RaiseFence runs raise_fence.lua, which raises the key's fence counter to at least atLeast.
func (s *Store) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	if atLeast > largestFence {
		return &store.Refusal{Err: fmt.Errorf("%w: the largest possible fence is %d", store.ErrUnsupported, uint64(largestFence))}
	}
	_, err := raiseFenceScript.Run(ctx, s.links, []string{CounterKey(key)}, strconv.FormatUint(atLeast, 10))
	return err
}
