package locker

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"
)

var _ Joiner = single{}

// Delegate runs delegate.lua.
func (s single) Delegate(ctx context.Context, c Claim, p Pass, within time.Duration) (Grant, error) {
	v, err := delegateScript.run(ctx, s.client, []string{c.Key, joinsOf(c.Key)},
		c.Owner, p.digest(), strconv.FormatUint(p.Fence, 10), int64(p.Depth), millis(within))
	if err != nil {
		return Grant{}, err
	}
	return joinGrant(v, "delegate")
}

// Join runs join.lua.
func (s single) Join(ctx context.Context, c Claim) (Grant, error) {
	p := c.Pass
	v, err := joinScript.run(ctx, s.client, []string{c.Key, joinsOf(c.Key)},
		c.Owner, p.digest(), millis(c.TTL), strconv.FormatUint(p.Hold, 10), strconv.FormatUint(p.Fence, 10), int64(p.Depth))
	if err != nil {
		return Grant{}, err
	}
	return joinGrant(v, "join")
}

// Leave runs leave.lua.
func (s single) Leave(ctx context.Context, c Claim) (Grant, error) {
	v, err := leaveScript.run(ctx, s.client, []string{c.Key, joinsOf(c.Key)}, c.Owner)
	if err != nil {
		return Grant{}, err
	}
	return joinGrant(v, "leave")
}

// digest is the SHA-256 of the secret as scripts are told it.
func (p Pass) digest() string {
	if p.Secret == [32]byte{} {
		return ""
	}
	return hex.EncodeToString(p.Secret[:])
}

func joinGrant(text, step string) (Grant, error) {
	r := reply{text}
	state := r.word()
	g := Grant{At: r.time()}
	switch state {
	case "granted":
		g.State, g.Block = Granted, 1
		if r.rest != "" {
			g.Left = r.duration()
			fence, err := strconv.ParseUint(r.word(), 10, 64)
			if err != nil || g.Left < 0 {
				return Grant{}, odd(step)
			}
			g.Fence = fence
		}
	case "released":
		g.State = Released
	case "not-ours":
		g.State = NotOurs
	default:
		return Grant{}, odd(step)
	}
	return g, nil
}
