package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewSingle returns a Locker on one Redis server (6.2 or newer), also one that Sentinel picks. A lock is
// one string key, prefix+key, so other libraries that SET NX the same key exclude it and are excluded.
//
// Nothing is sent before the first lock. c must outlive the Locker.
func NewSingle(c Client, opts ...Option) (*Engine, error) {
	if isNil(c) {
		return nil, errors.New("latchkit: NewSingle: the client is nil; give a *redis.Client or another go-redis v9 client")
	}
	switch c.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return nil, fmt.Errorf("latchkit: NewSingle: %T spreads keys over several servers, and leases are renewed together; give a client of one server", c)
	}
	return New(newSingle(c), opts...)
}

// single is the Store of one server: each step a script, sent once.
type single struct {
	client Client
	steps  Client // of acquires and releases; another way to the same server with WithAutoPipeline
}

func newSingle(c Client) single { return single{client: c, steps: c} }

var _ interface {
	Store
	Inspector
	Breaker
	Fencer
	Examiner
} = single{}

// Acquire runs acquire.lua.
func (s single) Acquire(ctx context.Context, c Claim) (Grant, error) {
	counts := "0"
	if c.Once > 0 {
		counts = "1"
	}
	v, err := acquireScript.run(ctx, s.steps,
		[]string{c.Key, counterOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key)},
		c.Owner, millis(c.TTL), int64(max(c.Block, 1)), counts, c.Metadata)
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
	state := r.word()
	g := Grant{At: r.time()}
	switch state {
	case "granted":
		_ = r.word() // its PTTL: what is left is counted on our clock
		h, ok := parseLease(r.rest)
		if !ok {
			return Grant{}, odd("acquire")
		}
		g.State, g.Fence, g.Block = Granted, h.fence, h.block
	case "busy":
		left := r.duration()
		g.State, g.Holder = Busy, holderOf(r.rest, left)
	case "undone":
		g.State = Undone
	case "revoked":
		g.State, g.Reason = Revoked, r.rest
	case "done":
		g.State = Done
	default:
		return Grant{}, odd("acquire")
	}
	return g, nil
}

// Renew runs renew.lua for all claims in one call. Whoever is not ours is looked up once: it may have been revoked.
func (s single) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	keys := make([]string, len(cs))
	args := make([]any, 0, 2*len(cs))
	for i, c := range cs {
		keys[i] = c.Key
		args = append(args, c.Owner, millis(c.TTL))
	}
	v, err := renewScript.run(ctx, s.client, keys, args...)
	if err != nil {
		return nil, err
	}
	r := reply{v}
	at := r.time()
	if len(r.rest) != len(cs) {
		return nil, odd("renew")
	}
	grants := make([]Grant, len(cs))
	for i, c := range cs {
		grants[i] = Grant{State: Granted, At: at}
		if r.rest[i] != '1' {
			grants[i].State = NotOurs
			if reason, ok := s.revoked(ctx, c); ok {
				grants[i].State, grants[i].Reason = Revoked, reason
			}
		}
	}
	return grants, nil
}

// revoked reads the note that break.lua leaves. When it cannot be read the lease is lost all the same.
func (s single) revoked(ctx context.Context, c Claim) (reason string, ok bool) {
	v, err := do(ctx, s.client, "get", tombstoneOf(c.Key, c.Owner))
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(v, "revoked:")
}

// Release runs release.lua.
func (s single) Release(ctx context.Context, c Claim) (Grant, error) {
	done := time.Duration(0)
	if c.Complete {
		done = c.Once
	}
	v, err := releaseScript.run(ctx, s.steps,
		[]string{c.Key, tombstoneOf(c.Key, c.Owner), doneOf(c.Key)},
		c.Owner, millis(c.Keep), millis(c.Undo), millis(done))
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
	state := r.word()
	g := Grant{At: r.time()}
	switch state {
	case "released":
		g.State = Released
	case "not-ours":
		g.State = NotOurs
	case "done":
		g.State = Done
	case "revoked":
		g.State, g.Reason = Revoked, r.rest
	default:
		return Grant{}, odd("release")
	}
	return g, nil
}

// Inspect runs inspect.lua. Since is read from the fence, which is the server's clock in µs at the grant unless the
// counter was ahead of it.
func (s single) Inspect(ctx context.Context, key string) (Info, error) {
	info, _, err := s.look(ctx, key)
	return info, err
}

func (s single) look(ctx context.Context, key string) (info Info, token string, err error) {
	v, err := inspectScript.run(ctx, s.client, []string{key})
	if err != nil {
		return Info{}, "", err
	}
	r := reply{v}
	now, left := r.time(), r.duration()
	if now.Equal(time.UnixMicro(0)) {
		return Info{}, "", odd("inspect")
	}
	if left == noKey {
		return Info{}, "", nil
	}
	h, ours := parseLease(r.rest)
	info = Info{Held: true, Foreign: !ours, Left: left, Fence: h.fence, Metadata: h.metadata, Kept: h.token == kept}
	if at := time.UnixMicro(int64(h.fence)); ours && !at.After(now) {
		info.Since = at
	}
	return info, h.token, nil
}

// Break looks the holder up, and throws it out if it is the one with that fence. Two steps, because the name of the
// note carries the holder's token and scripts must be told their keys; the second is conditional on the first.
func (s single) Break(ctx context.Context, key string, fence uint64, reason string) (Grant, error) {
	info, token, err := s.look(ctx, key)
	switch {
	case err != nil:
		return Grant{}, err
	case info.Foreign:
		return Grant{}, &Refusal{Err: fmt.Errorf("%w: another library or program holds the key and has no fence; delete the key by hand if you must", ErrUnsupported)}
	case !info.Held || info.Fence != fence:
		return Grant{State: NotOurs}, nil
	}
	note := max(info.Left, time.Minute)
	if info.Kept {
		note = 0 // nobody is left to read it
	}
	v, err := breakScript.run(ctx, s.client, []string{key, tombstoneOf(key, token)}, token, "revoked:"+reason, millis(note))
	if err != nil {
		return Grant{}, err
	}
	if v != "1" {
		return Grant{State: NotOurs}, nil
	}
	return Grant{State: Released}, nil
}

// largestFence leaves room below 2^53, where Lua's numbers stop being exact: until the year 2255 as a clock in µs.
const largestFence = 1<<53 - 1<<32

// RaiseFence runs raise_fence.lua.
func (s single) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	if atLeast > largestFence {
		return &Refusal{Err: fmt.Errorf("%w: fences end at %d", ErrUnsupported, uint64(largestFence))}
	}
	_, err := raiseFenceScript.run(ctx, s.client, []string{counterOf(key)}, strconv.FormatUint(atLeast, 10))
	return err
}

// Examine looks at what the server does when its memory is full. A server that does not say (a proxy, a substitute, an
// ACL) is taken as it is.
func (s single) Examine(ctx context.Context) []Warning {
	text, err := do(ctx, s.client, "info", "memory")
	if err != nil {
		return nil
	}
	limit, policy := "0", "noeviction"
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			limit = value
		case "maxmemory_policy":
			policy = value
		}
	}
	if limit == "0" || policy == "noeviction" {
		return nil
	}
	return []Warning{{
		Code: "eviction-policy",
		Text: "the server may drop locks when its memory is full (maxmemory-policy " + policy + "); give locks a server with noeviction",
	}}
}
