package redisstore

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

var _ store.Joiner = Single{}

// Delegate runs delegate.lua, which stores the delegation p with the lease of c.
func (s Single) Delegate(ctx context.Context, c store.Claim, p store.Delegation, within time.Duration) (store.Grant, error) {
	v, err := delegateScript.Run(ctx, s.Client, []string{c.Key, JoinsKey(c.Key)},
		c.Owner, digestOf(p), strconv.FormatUint(p.Fence, 10), int64(p.Depth), Millis(within))
	if err != nil {
		return store.Grant{}, err
	}
	return joinGrant(v, "delegate")
}

// Join runs join.lua for the claim c, and returns the grant in its answer.
func (s Single) Join(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.join(c).ask(ctx, s.Client)
}

// BeginJoin begins a Join of c, and does not wait for the answer, which the function onAnswer
// receives.
func (s Single) BeginJoin(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	q := s.join(c)
	q.OnAnswer = func(*link.Call) { onAnswer(q.Answer()) }
	s.links.Put(ctx, &q.Call)
}

func (s Single) join(c store.Claim) *question {
	p := c.Delegation
	q := releaseQuestion(joinScript, joinScript.Words([]string{c.Key, JoinsKey(c.Key)},
		c.Owner, digestOf(*p), Millis(c.TTL), strconv.FormatUint(p.Hold, 10), strconv.FormatUint(p.Fence, 10), int64(p.Depth)))
	q.read = func(_ *question, text string) (store.Grant, error) { return joinGrant(text, "join") }
	return q
}

// Leave runs leave.lua for the claim c, and returns the grant in its answer.
func (s Single) Leave(ctx context.Context, c store.Claim) (store.Grant, error) {
	v, err := leaveScript.Run(ctx, s.Client, []string{c.Key, JoinsKey(c.Key)}, c.Owner)
	if err != nil {
		return store.Grant{}, err
	}
	return joinGrant(v, "leave")
}

// digestOf returns the SHA-256 of the secret of p, in the form that scripts use.
func digestOf(p store.Delegation) string {
	if p.Secret == [32]byte{} {
		return ""
	}
	return hex.EncodeToString(p.Secret[:])
}

func joinGrant(text, step string) (store.Grant, error) {
	r := Reply{text}
	state := r.Word()
	g := store.Grant{At: r.Time()}
	switch state {
	case "granted":
		g.State, g.FenceCount = store.Granted, 1
		if r.Rest != "" {
			g.Left = r.Duration()
			fence, err := strconv.ParseUint(r.Word(), 10, 64)
			if err != nil || g.Left < 0 {
				return store.Grant{}, Unreadable(step)
			}
			g.Fence = fence
		}
	case "released":
		g.State = store.Released
	case "not-ours":
		g.State = store.NotOurs
	default:
		return store.Grant{}, Unreadable(step)
	}
	return g, nil
}
