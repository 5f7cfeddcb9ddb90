package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Inspect runs sem_inspect.lua for the key, and returns the Info in its answer.
func (s semaphore) Inspect(ctx context.Context, key string) (store.Info, error) {
	found, err := s.inspect(ctx, key)
	return found.info, err
}

// permitInfo has the result of sem_inspect.lua: the holder in L, and the permits with their tokens.
type permitInfo struct {
	info   store.Info
	holder LeaseText
	tokens []string // the tokens of info.Permits
}

func (s semaphore) inspect(ctx context.Context, key string) (f permitInfo, err error) {
	v, err := semInspectScript.Run(ctx, s.single.Client, []string{key, QueueKey(key), PermitsKey(key), UsesKey(key)})
	if err != nil {
		return permitInfo{}, err
	}
	r := Reply{v}
	now, left, waiters := r.Time(), r.Duration(), int(r.Integer())
	count, limit := int(r.Integer()), int(r.Integer())
	for range count {
		token, left := r.Word(), r.Duration()
		use, ok := r.countedPart()
		p, readable := permitOf(use)
		if !ok || !readable {
			return permitInfo{}, Unreadable("inspect")
		}
		_ = r.Word() // skips the space after the use
		p.Left, p.Kept = left, strings.HasPrefix(token, KeptToken+"-")
		if at := time.UnixMicro(int64(p.Fence)); !at.After(now) {
			p.Since = at
		}
		f.info.Permits, f.tokens = append(f.info.Permits, p), append(f.tokens, token)
		f.info.Used += p.Weight
	}
	permits, used := f.info.Permits, f.info.Used
	info, text, err := infoOf(now, left, waiters, r.Rest)
	if err != nil {
		return permitInfo{}, err
	}
	f.info = info
	f.info.Permits, f.info.Used = permits, used
	if info.Held {
		h, ours := ParseLease(text)
		Describe(&f.info, h, ours)
		f.holder = h
	}
	if len(permits) > 0 {
		p := permits[0]
		f.info.Held, f.info.Limit = true, limit
		if f.holder.Token == "" || f.holder.Token == PermitsToken {
			f.info.Left, f.info.Metadata, f.info.Since, f.info.Kept = p.Left, p.Metadata, p.Since, p.Kept
		}
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

// Revoke looks up the permit with the given fence, and revokes the permit. If a Locker without
// permits has handed the whole key to one holder, Revoke revokes this holder, as the Store without
// permits does.
func (s semaphore) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	f, err := s.inspect(ctx, key)
	if err != nil {
		return store.Grant{}, err
	}
	for i, p := range f.info.Permits {
		if p.Fence != fence {
			continue
		}
		v, err := semBreakScript.Run(ctx, s.single.Client,
			[]string{key, QueueKey(key), CounterKey(key), PermitsKey(key), UsesKey(key), TombstoneKey(key, f.tokens[i])},
			f.tokens[i], strconv.FormatUint(fence, 10), "revoked:"+reason, Millis(noteTTL(store.Info{Kept: p.Kept, Left: p.Left})))
		if err != nil {
			return store.Grant{}, err
		}
		if v == "1" {
			return store.Grant{State: store.Released}, nil
		}
	}
	if len(f.info.Permits) > 0 || f.holder.Token == PermitsToken {
		return store.Grant{State: store.NotOurs}, nil
	}
	return s.single.Revoke(ctx, key, fence, reason)
}

// RaiseFence runs raise_fence.lua, which raises the key's fence counter to at least atLeast.
func (s semaphore) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	return s.single.RaiseFence(ctx, key, atLeast)
}

// CheckServer looks at the client's options and at the server, or at every master of the cluster.
func (s semaphore) CheckServer(ctx context.Context) []store.Warning {
	if s.cluster != nil {
		return s.singleKeySteps().CheckServer(ctx)
	}
	return s.single.CheckServer(ctx)
}
