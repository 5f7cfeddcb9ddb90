package locker

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// NewReadWrite returns a Locker with readers: many may hold a key with [Shared], or one with [Exclusive]. Give one client, of one
// Redis server (6.2 or newer), also one that Sentinel picks. Writers look like those of NewSingle, and while readers
// hold, the key is there too, so other libraries and Lockers that want it are excluded.
//
// Phases are fair: after a writer all readers who wait enter together, after them one writer. So a writer waits for the readers
// who are in, and for no newcomers; a reader waits for one writer. Readers of one process with equal TTLs have one lease on the
// server together, so most of them cost no call; it ends with the last of them, or when its process dies and its TTL is
// over, whatever other readers do.
//
// Who reads cannot become a writer, also not in a nested Acquire: that is refused at once with ErrUnsupported, because two such
// callers would wait for each other. [Lease.Downgrade] goes the other way.
//
// Nothing is sent before the first lock. The clients must outlive the Locker.
func NewReadWrite(cs []Client, opts ...Option) (*Engine, error) {
	if len(cs) != 1 {
		return nil, fmt.Errorf("latchkit: NewReadWrite: %d clients; give one", len(cs))
	}
	if err := checkClient("NewReadWrite", cs[0]); err != nil {
		return nil, err
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	store, err := newReadWriteStore(cs[0], cfg)
	if err != nil {
		return nil, err
	}
	return newEngine(store, cfg), nil
}

// readWrite is the Store of one server with readers. A writer's lease lies in L as that of single does. While readers hold, L
// says so, with the fence of their phase, and the sorted set R beside it has an entry with an expiry for each of them.
type readWrite struct{ single }

var _ interface {
	Store
	Inspector
	Breaker
	Fencer
	Examiner
	Downgrader
} = readWrite{}

// phased is a readWrite whose client can subscribe, and so a Notifier.
type phased struct {
	readWrite
	*inbox
}

var _ Notifier = phased{}

// newReadWriteStore is newSingleStore, with readers.
func newReadWriteStore(c Client, cfg config) (Store, error) {
	s, err := newSingleStore(c, cfg)
	switch s := s.(type) {
	case single:
		return readWrite{s}, nil
	case listening:
		return phased{readWrite{s.single}, s.inbox}, nil
	}
	return nil, err
}

// memberOf is a claim's entry in R. It must not change while the token lives.
func memberOf(c Claim) string { return c.Owner + "|" + cmp.Or(c.Inbox, "-") }

// noteOf names the note that a break leaves for all readers of a phase.
func noteOf(key string, fence uint64) string { return tombstoneOf(key, strconv.FormatUint(fence, 10)) }

// Acquire runs rw_acquire.lua.
func (s readWrite) Acquire(ctx context.Context, c Claim) (Grant, error) {
	waits, member := "", ""
	if c.Queue {
		waits = waitsAs(c)
	}
	if c.Mode == Shared {
		member = memberOf(c)
	}
	v, err := rwAcquireScript.run(ctx, s.steps,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), readersOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key)},
		c.Owner, millis(c.TTL), int64(max(c.Block, 1)), asksOnce(c), c.Metadata, waits, member)
	if err != nil {
		return Grant{}, err
	}
	if g, ok := phaseGrantOf(v); ok {
		return g, nil
	}
	return Grant{}, odd("acquire")
}

// phaseGrantOf reads the answer to an acquire.
func phaseGrantOf(text string) (Grant, bool) {
	entered, ok := strings.CutPrefix(text, "entered ")
	if !ok {
		return grantOf(text)
	}
	r := reply{entered}
	g := Grant{State: Granted, At: r.time()}
	_ = r.word() // its PTTL: what is left is counted on our clock
	g.Writer = r.word() == "1"
	h, ok := parseLease(r.rest)
	g.Fence, g.Block = h.fence, h.block
	return g, ok
}

// Renew runs rw_renew.lua for all claims in one call. Whoever is not ours is looked up once: it may have been revoked.
func (s readWrite) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	keys := make([]string, 0, 3*len(cs))
	args := make([]any, 0, 4*len(cs))
	for _, c := range cs {
		keys = append(keys, c.Key, queueOf(c.Key), readersOf(c.Key))
		args = append(args, c.Owner, millis(c.TTL), memberOf(c), strconv.FormatUint(c.Fence, 10))
	}
	v, err := rwRenewScript.run(ctx, s.renewals, keys, args...)
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
		if r.rest[i] == '0' {
			grants[i] = s.notOurs(ctx, c, at)
		} else {
			grants[i] = Grant{State: Granted, At: at, Writer: r.rest[i] == '2'}
		}
	}
	return grants, nil
}

// notOurs says whether a lease that is gone was revoked: its token, or the whole phase.
func (s readWrite) notOurs(ctx context.Context, c Claim, at time.Time) Grant {
	reason, revoked := s.revoked(ctx, c)
	if !revoked && c.Fence != 0 {
		reason, revoked = s.noted(ctx, noteOf(c.Key, c.Fence))
	}
	if revoked {
		return Grant{State: Revoked, At: at, Reason: reason}
	}
	return Grant{State: NotOurs, At: at}
}

// Release runs rw_release.lua. Next is left out when the key is kept: nobody gets it before that is over.
func (s readWrite) Release(ctx context.Context, c Claim) (Grant, error) {
	r := releaseOf(c)
	phase := r.tombstone
	if c.Fence != 0 {
		phase = noteOf(c.Key, c.Fence)
	}
	v, err := rwReleaseScript.run(ctx, s.steps,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), readersOf(c.Key), r.tombstone, doneOf(c.Key), r.nextTombstone, phase},
		c.Owner, millis(c.Keep), millis(c.Undo), millis(r.done), r.entry, r.next, r.nextTTL, memberOf(c))
	if err != nil {
		return Grant{}, err
	}
	return releasedOf(v)
}

// Downgrade runs rw_downgrade.lua.
func (s readWrite) Downgrade(ctx context.Context, c Claim) (Grant, error) {
	v, err := rwDowngradeScript.run(ctx, s.client,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), readersOf(c.Key)},
		c.Owner, millis(c.TTL), memberOf(c), strconv.FormatUint(c.Fence, 10))
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
	switch ours, at := r.word(), r.time(); ours {
	case "1":
		return Grant{State: Granted, At: at, Fence: c.Fence, Block: 1, Writer: r.rest == "1"}, nil
	case "0":
		return s.notOurs(ctx, c, at), nil
	}
	return Grant{}, odd("downgrade")
}

// Inspect runs rw_inspect.lua.
func (s readWrite) Inspect(ctx context.Context, key string) (Info, error) {
	info, _, err := s.look(ctx, key)
	return info, err
}

func (s readWrite) look(ctx context.Context, key string) (Info, leaseText, error) {
	v, err := rwInspectScript.run(ctx, s.client, []string{key, queueOf(key), readersOf(key)})
	if err != nil {
		return Info{}, leaseText{}, err
	}
	r := reply{v}
	now, left, waiters, readers := r.time(), r.duration(), int(r.integer()), int(r.integer())
	info, holder, err := infoOf(now, left, waiters, r.rest)
	info.Readers = readers
	return info, holder, err
}

// Break looks the holder up, and throws it out if it has that fence, as single does; readers are thrown out together, because
// the fence is theirs together. They find a note that is named after it.
func (s readWrite) Break(ctx context.Context, key string, fence uint64, reason string) (Grant, error) {
	info, holder, err := s.look(ctx, key)
	if err != nil {
		return Grant{}, err
	}
	if there, err := breakable(info, holder, fence); !there {
		return Grant{State: NotOurs}, err
	}
	begins, note := holder.token+":", tombstoneOf(key, holder.token)
	if info.Mode == Shared {
		begins, note = fmt.Sprintf("%s:%d:", shared, holder.fence), noteOf(key, holder.fence)
	}
	v, err := rwBreakScript.run(ctx, s.client,
		[]string{key, queueOf(key), counterOf(key), readersOf(key), note},
		begins, "revoked:"+reason, millis(noteFor(info)))
	if err != nil {
		return Grant{}, err
	}
	if v != "1" {
		return Grant{State: NotOurs}, nil
	}
	return Grant{State: Released}, nil
}
