package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Inspect runs inspect.lua. Inspect takes the time Since from the fence. If the counter was not
// ahead of the clock at the grant, the fence is the server's clock in µs at that time.
func (s Single) Inspect(ctx context.Context, key string) (store.Info, error) {
	info, _, err := s.inspect(ctx, key)
	return info, err
}

func (s Single) inspect(ctx context.Context, key string) (info store.Info, holder LeaseText, err error) {
	info, text, err := s.Read(ctx, key)
	if err != nil || !info.Held {
		return info, LeaseText{}, err
	}
	h, ours := ParseLease(text)
	Describe(&info, h, ours)
	return info, h, nil
}

// Read runs inspect.lua. The results are the value of the key, and how long the key lasts. For now,
// the returned Since is the server's present time, and Describe replaces it.
func (s Single) Read(ctx context.Context, key string) (info store.Info, text string, err error) {
	v, err := inspectScript.Run(ctx, s.Client, []string{key, QueueKey(key)})
	if err != nil {
		return store.Info{}, "", err
	}
	r := Reply{v}
	now, left, waiters := r.Time(), r.Duration(), int(r.Integer())
	return infoOf(now, left, waiters, r.Rest)
}

// infoOf returns the Info of a key, without parsing lease, the value of L. Describe then adds the
// contents of this value.
func infoOf(now time.Time, remaining time.Duration, waiters int, lease string) (store.Info, string, error) {
	if now.Equal(time.UnixMicro(0)) {
		return store.Info{}, "", Unreadable("inspect")
	}
	if remaining == noKey {
		return store.Info{Waiters: waiters}, "", nil
	}
	return store.Info{Held: true, Left: remaining, Waiters: waiters, Since: now}, lease, nil
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

// Revoke looks up the holder. If the holder's lease has the given fence, Revoke revokes the lease.
// Revoke takes two steps, because the name of the note contains the holder's token, and a script
// must get the names of all its keys. The second step changes nothing if the holder has changed.
func (s Single) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	info, holder, err := s.inspect(ctx, key)
	if err != nil {
		return store.Grant{}, err
	}
	if there, err := revocable(info, holder, fence); !there {
		return store.Grant{State: store.NotOurs}, err
	}
	note := noteTTL(info)
	if info.Mode == store.Shared {
		note = 0 // 0: no note with the holder's token, because readers look for the note of their phase
	}
	v, err := breakScript.Run(ctx, s.Client,
		[]string{key, QueueKey(key), CounterKey(key), TombstoneKey(key, holder.Token)},
		holder.textPrefix(), "revoked:"+reason, Millis(note))
	if err != nil {
		return store.Grant{}, err
	}
	if v != "1" {
		return store.Grant{State: store.NotOurs}, nil
	}
	return store.Grant{State: store.Released}, nil
}

// textPrefix returns the beginning of the lease's text: its token and its fence. All kept keys have
// the same token, and all phases of readers have the same token, so only the fence distinguishes
// such leases.
func (l LeaseText) textPrefix() string { return fmt.Sprintf("%s:%d:", l.Token, l.Fence) }

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

// noteTTL returns how long the note for a revoked holder must exist. The parameter info describes
// the key before the revocation.
func noteTTL(info store.Info) time.Duration {
	if info.Kept {
		return 0 // a kept key has no holder that reads the note
	}
	return max(info.Left, time.Minute)
}

// largestFence is the largest fence to which RaiseFence raises a counter. This limit leaves room
// below 2^53, where Lua's numbers stop being exact. A clock in µs reaches this number in the year
// 2255.
const largestFence = 1<<53 - 1<<32

// RaiseFence runs raise_fence.lua, which raises the key's fence counter to at least atLeast.
func (s Single) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	if atLeast > largestFence {
		return &store.Refusal{Err: fmt.Errorf("%w: the largest possible fence is %d", store.ErrUnsupported, uint64(largestFence))}
	}
	_, err := raiseFenceScript.Run(ctx, s.Client, []string{CounterKey(key)}, strconv.FormatUint(atLeast, 10))
	return err
}
