package locker

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewSingle returns a Locker on one Redis server (6.2 or newer), on one that Sentinel picks, or on a Redis Cluster: give a
// *redis.Client, one of redis.NewFailoverClient, or a *redis.ClusterClient. A lock is one string key, prefix+key, so other
// libraries that SET NX the same key exclude it and are excluded. On a Cluster a lock lies at one node, and locks are spread
// over all of them.
//
// Where another server may take over, leases that it has not heard of are lost: see [WithReplicaAck], and let the data check
// the fence. Nothing is sent before the first lock. c must outlive the Locker.
func NewSingle(c Client, opts ...Option) (*Engine, error) {
	if err := checkClient("NewSingle", c); err != nil {
		return nil, err
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	cfg.failsOver = cfg.failsOver || failsOver(c)
	store, err := newSingleStore(c, cfg)
	if err != nil {
		return nil, err
	}
	return newEngine(store, cfg), nil
}

// checkClient refuses what leads to no server, or to changing ones.
func checkClient(constructor string, c Client) error {
	if isNil(c) {
		return fmt.Errorf("latchkit: %s: the client is nil; give a *redis.Client or another go-redis v9 client", constructor)
	}
	if _, ok := c.(*redis.Ring); ok {
		return fmt.Errorf("latchkit: %s: a *redis.Ring moves keys to other servers when one is gone, where their locks are unknown; give a client of one server or a *redis.ClusterClient", constructor)
	}
	return nil
}

// newSingleStore is the Store of one server or of a cluster, and a Notifier too when the client can subscribe.
func newSingleStore(c Client, cfg config) (Store, error) {
	store := single{client: c, steps: c, renewals: c, acks: cfg.acks}
	if cfg.renewClient != nil {
		store.renewals = cfg.renewClient
	}
	cluster, isCluster := c.(clusterClient)
	if _, ok := store.renewals.(clusterClient); ok != isCluster {
		return nil, fmt.Errorf("latchkit: WithRenewClient: a %T beside a %T leads elsewhere; give two clients of one server, or two of one cluster", store.renewals, c)
	}
	for _, c := range []Client{c, store.renewals} {
		if err := cfg.acks.suit(c); err != nil {
			return nil, err
		}
	}
	if cfg.autoPipeline {
		p, err := newPipelined(c)
		if err != nil {
			return nil, err
		}
		store.steps = p
	}
	if isCluster {
		return listeningCluster{clustered{store, cluster}, newShards(cluster)}, nil
	}
	if s, ok := c.(subscriber); ok {
		return listening{store, newInbox(s)}, nil
	}
	return store, nil
}

// single is the Store of one server: each step a script, sent once. Its clients lead to the same server.
type single struct {
	client   Client
	steps    Client // of acquires and releases: another way with WithAutoPipeline
	renewals Client // of renewals: another pool with WithRenewClient
	acks     acks   // that leases need
}

var _ interface {
	Store
	Inspector
	Breaker
	Fencer
	Examiner
} = single{}

// Acquire runs acquire.lua.
func (s single) Acquire(ctx context.Context, c Claim) (Grant, error) {
	waits, done, once := "", "", ""
	if c.Queue {
		waits = waitsAs(c)
	}
	if c.Once > 0 {
		done, once = doneOf(c.Key), "1"
	}
	block := max(c.Block, 1)
	to, w := s.acked(c.Key)
	v, err := acquireScript.short(ctx, to,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), tombstoneOf(c.Key, c.Owner), done},
		c.Owner, millis(c.TTL), int64(block), waits, c.Metadata, once)
	if err != nil {
		return Grant{}, err
	}
	g, ok := freshGrantOf(v, block)
	if !ok {
		g, ok = grantOf(v)
	}
	if !ok {
		return Grant{}, odd("acquire")
	}
	return w.counts(g)
}

// acked is the way of an acquire: if replicas must acknowledge the lease, with a witness.
func (s single) acked(key string) (Client, *witness) {
	if !s.acks.asked {
		return s.steps, nil
	}
	w := s.acks.witness(s.client, key)
	return w, w
}

// acquireAll runs acquire_all.lua. It is the step of a Several: not of every Store that is made of a single.
func (s single) acquireAll(ctx context.Context, cs []Claim) ([]Grant, error) {
	keys := make([]string, 0, 5*len(cs))
	args := make([]any, 0, 5*len(cs))
	for _, c := range cs {
		keys = append(keys, c.Key, queueOf(c.Key), counterOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key))
		args = append(args, c.Owner, millis(c.TTL), int64(max(c.Block, 1)), asksOnce(c), c.Metadata)
	}
	to, w := s.acked(cs[0].Key)
	v, err := acquireAllScript.run(ctx, to, keys, args...)
	if err != nil {
		return nil, err
	}
	r := reply{v}
	grants := make([]Grant, len(cs))
	for i := range grants {
		text, ok := r.counted()
		if !ok {
			return nil, odd("acquire_all")
		}
		if grants[i], ok = grantOf(text); !ok {
			return nil, odd("acquire_all")
		}
		if grants[i], err = w.counts(grants[i]); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// waitsAs says how a claim waits; with the token before it and the metadata behind, it is the claim's entry in the queue.
func waitsAs(c Claim) string {
	return cmp.Or(c.Inbox, "-") + "|" + strconv.FormatInt(max(millis(c.Hand), 1), 10) + "|" + strconv.Itoa(int(c.Mode)) +
		"|" + strconv.Itoa(max(c.Block, 1)) + "|" + asksOnce(c)
}

// entryOf is a claim in the queue: token|inbox|hand-ms|mode|block|once|metadata. It must not change while the token lives.
func entryOf(c Claim) string { return c.Owner + "|" + waitsAs(c) + "|" + c.Metadata }

func asksOnce(c Claim) string {
	if c.Once > 0 {
		return "1"
	}
	return "0"
}

// freshGrantOf reads the answer to an acquire that has found the key free, and has all the fences that it asked for.
func freshGrantOf(text string, block int) (g Grant, ok bool) {
	at, text, _ := strings.Cut(text, " ")
	micros, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return g, false
	}
	fence, err := strconv.ParseUint(text, 10, 64)
	return Grant{State: Granted, At: time.UnixMicro(micros), Fence: fence, Block: block}, err == nil
}

// grantOf reads the answer to an acquire, also to one that came with a release.
func grantOf(text string) (g Grant, ok bool) {
	r := reply{text}
	state := r.word()
	g.At = r.time()
	switch state {
	case "granted":
		_ = r.word() // its PTTL: what is left is counted on our clock
		h, ok := parseLease(r.rest)
		g.State, g.Fence, g.Block = Granted, h.fence, h.block
		return g, ok
	case "busy":
		left := r.duration()
		g.State, g.Place, g.Deaf = Busy, int(r.integer()), r.word() == "0"
		g.Holder = holderOf(r.rest, left)
	case "undone":
		g.State = Undone
	case "revoked":
		g.State, g.Reason = Revoked, r.rest
	case "done":
		g.State = Done
	case "not-ours":
		g.State = NotOurs
	}
	return g, g.State != 0
}

// Release runs release.lua. Next is left out when the key is kept: nobody gets it before that is over.
func (s single) Release(ctx context.Context, c Claim) (Grant, error) {
	r := releaseOf(c)
	done, nextTombstone := "", ""
	if r.done > 0 || r.next != "" {
		done = doneOf(c.Key)
	}
	if r.next != "" {
		nextTombstone = r.nextTombstone
	}
	v, err := releaseScript.short(ctx, s.steps,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), r.tombstone, done, nextTombstone},
		c.Owner, r.entry, millis(c.Keep), millis(c.Undo), millis(r.done), r.next, r.nextTTL)
	if err != nil {
		return Grant{}, err
	}
	return releasedOf(v)
}

// releaseCall is what a release is told besides the claim's own times.
type releaseCall struct {
	done                     time.Duration
	entry, next              string
	tombstone, nextTombstone string
	nextTTL                  int64
}

func releaseOf(c Claim) releaseCall {
	r := releaseCall{tombstone: tombstoneOf(c.Key, c.Owner)}
	r.nextTombstone = r.tombstone
	if c.Complete {
		r.done = c.Once
	}
	if c.Queue {
		r.entry = entryOf(c)
	}
	if c.Next != nil {
		r.next, r.nextTombstone, r.nextTTL = entryOf(*c.Next), tombstoneOf(c.Key, c.Next.Owner), millis(c.Next.TTL)
	}
	return r
}

// releasedOf reads the answer to a release.
func releasedOf(text string) (g Grant, err error) {
	r := reply{text}
	state := r.word()
	if r.rest != "" {
		g.At = r.time()
	}
	switch state {
	case "released":
		g.State = Released
		if r.rest != "" {
			answer, ok := grantOf(r.rest)
			if !ok {
				return Grant{}, odd("release")
			}
			g.Next = &answer
		}
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

func (s single) look(ctx context.Context, key string) (info Info, holder leaseText, err error) {
	info, text, err := s.read(ctx, key)
	if err != nil || !info.Held {
		return info, leaseText{}, err
	}
	h, ours := parseLease(text)
	info.heldBy(h, ours)
	return info, h, nil
}

// read runs inspect.lua: what lies in the key, and until when. Since is the server's clock until it is known better.
func (s single) read(ctx context.Context, key string) (info Info, text string, err error) {
	v, err := inspectScript.run(ctx, s.client, []string{key, queueOf(key)})
	if err != nil {
		return Info{}, "", err
	}
	r := reply{v}
	now, left, waiters := r.time(), r.duration(), int(r.integer())
	return infoOf(now, left, waiters, r.rest)
}

// infoOf says what lies in L, as far as that needs no reading.
func infoOf(now time.Time, left time.Duration, waiters int, lease string) (Info, string, error) {
	if now.Equal(time.UnixMicro(0)) {
		return Info{}, "", odd("inspect")
	}
	if left == noKey {
		return Info{Waiters: waiters}, "", nil
	}
	return Info{Held: true, Left: left, Waiters: waiters, Since: now}, lease, nil
}

// heldBy fills in what the lease says.
func (i *Info) heldBy(h leaseText, ours bool) {
	i.Foreign, i.Fence, i.Metadata, i.Kept = !ours, h.fence, h.metadata, h.token == kept
	if h.token == shared {
		i.Mode = Shared
	}
	now := i.Since
	i.Since = time.Time{}
	if at := time.UnixMicro(int64(h.fence)); ours && !at.After(now) {
		i.Since = at
	}
}

// Break looks the holder up, and throws it out if it has that fence. Two steps, because the name of the
// note carries the holder's token and scripts must be told their keys; the second is conditional on the first.
func (s single) Break(ctx context.Context, key string, fence uint64, reason string) (Grant, error) {
	info, holder, err := s.look(ctx, key)
	if err != nil {
		return Grant{}, err
	}
	if there, err := breakable(info, holder, fence); !there {
		return Grant{State: NotOurs}, err
	}
	note := noteFor(info)
	if info.Mode == Shared {
		note = 0 // readers look for another one
	}
	v, err := breakScript.run(ctx, s.client,
		[]string{key, queueOf(key), counterOf(key), tombstoneOf(key, holder.token)},
		holder.token, "revoked:"+reason, millis(note))
	if err != nil {
		return Grant{}, err
	}
	if v != "1" {
		return Grant{State: NotOurs}, nil
	}
	return Grant{State: Released}, nil
}

// breakable says whether the holder with that fence is there.
func breakable(info Info, holder leaseText, fence uint64) (bool, error) {
	if info.Foreign {
		return false, &Refusal{Err: fmt.Errorf("%w: another library or program holds the key and has no fence; delete the key by hand if you must", ErrUnsupported)}
	}
	return info.Held && fence >= holder.fence && fence-holder.fence < uint64(max(holder.block, 1)), nil //nolint:gosec // a block is one holder
}

// noteFor is how long a note must stand for a holder that is thrown out.
func noteFor(info Info) time.Duration {
	if info.Kept {
		return 0 // nobody is left to read it
	}
	return max(info.Left, time.Minute)
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
