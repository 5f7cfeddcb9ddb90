package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// NewReadWrite returns a Locker with readers: many may hold a key with [Shared], or one with [Exclusive]. Give one client: of one
// Redis server (6.2 or newer), of one that Sentinel picks, or of a Redis Cluster. Writers look like those of NewSingle, and while readers
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
// With three or more clients, an odd number, of independent servers, more than half of them must agree, as for [NewRedlock],
// whose rules hold, [EnrollRedlock] included. There a writer who waits keeps new readers out, and after a writer all readers who
// wait have a try before the next; but no order is promised, and a process whose writer waits longer than 3 s without asking
// loses that privilege.
//
// Nothing is sent before the first lock. The clients must outlive the Locker.
func NewReadWrite(cs []Client, opts ...Option) (*Engine, error) {
	switch len(cs) {
	case 0:
		return nil, errors.New("latchkit: NewReadWrite: 0 clients; give one, or an odd number, at least 3, of independent servers")
	case 1:
	default:
		return newReadWriteQuorum(cs, opts)
	}
	c := cs[0]
	if err := checkClient("NewReadWrite", c); err != nil {
		return nil, err
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	cfg.failsOver = cfg.failsOver || failsOver(c)
	store, err := newReadWriteStore(c, cfg)
	if err != nil {
		return nil, err
	}
	return newEngine(store, cfg), nil
}

// readWrite is the Store of one server, or of a cluster, with readers. A writer's lease lies in L as that of single does. While
// readers hold, L says so, with the fence of their phase, and the sorted set R beside it has an entry with an expiry for each.
//
// While a slot of a cluster moves, its steps are refused, because they name several keys, and the Engine repeats them. Only renewals
// go on, in steps of one key each.
type readWrite struct {
	single
	cluster clusterClient // nil: one server
}

var _ interface {
	Store
	Inspector
	Breaker
	Fencer
	Examiner
	Downgrader
} = readWrite{}

// A readWrite whose client can subscribe is a Notifier too.
type (
	listeningReadWrite struct {
		readWrite
		*inbox
	}
	listeningReadWriteCluster struct {
		readWrite
		*shards
	}
)

var _, _ Notifier = listeningReadWrite{}, listeningReadWriteCluster{}

// Acquire is that of the Store; who waits goes on using the channel.
func (l listeningReadWriteCluster) Acquire(ctx context.Context, c Claim) (Grant, error) {
	if c.Inbox != "" {
		l.use(c.Key)
	}
	return l.readWrite.Acquire(ctx, c)
}

// Renew is that of the Store; who reads goes on using the channel, to hear of writers.
func (l listeningReadWriteCluster) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	for _, c := range cs {
		if c.Mode == Shared && c.Inbox != "" {
			l.use(c.Key)
		}
	}
	return l.readWrite.Renew(ctx, cs)
}

// newReadWriteStore is newSingleStore, with readers.
func newReadWriteStore(c Client, cfg config) (Store, error) {
	s, err := newSingleStore(c, cfg)
	switch s := s.(type) {
	case single:
		return readWrite{single: s}, nil
	case listening:
		return listeningReadWrite{readWrite{single: s.single}, s.inbox}, nil
	case listeningCluster:
		return listeningReadWriteCluster{readWrite{s.single, s.clustered.cluster}, s.shards}, nil
	}
	return nil, err
}

// memberOf is a claim's entry in R. It must not change while the token lives.
func memberOf(c Claim) string { return c.Owner + "|" + cmp.Or(c.Inbox, "-") }

// noteOf names the note that a break leaves for all readers of a phase.
func noteOf(key string, fence uint64) string { return tombstoneOf(key, strconv.FormatUint(fence, 10)) }

// Acquire runs rw_acquire.lua.
func (s readWrite) Acquire(ctx context.Context, c Claim) (Grant, error) {
	waits, reader := "", "0"
	if c.Queue {
		waits = waitsAs(c)
	}
	if c.Mode == Shared {
		reader = "1"
	}
	to, w := s.acked(c.Key)
	v, err := rwAcquireScript.run(ctx, to,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), readersOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key)},
		c.Owner, millis(c.TTL), int64(max(c.Block, 1)), asksOnce(c), c.Metadata, waits, memberOf(c), reader)
	if err != nil {
		return Grant{}, err
	}
	g, ok := phaseGrantOf(v)
	if !ok {
		return Grant{}, odd("acquire")
	}
	return w.counts(g)
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

// Renew runs rw_renew.lua, on a cluster once for each slot.
func (s readWrite) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	grants := make([]Grant, len(cs))
	renew := func(b *batch) {
		b.readers = true
		s.renew(ctx, b, grants)
	}
	if s.cluster != nil {
		clustered(s).each(batches(cs, func(key string) uint16 { return slot(tagOf(key)) }), renew)
		clustered(s).each(alone(cs, grants), func(b *batch) { s.renewAlone(ctx, b, grants) })
	} else {
		for _, b := range batches(cs, func(string) uint16 { return 0 }) {
			renew(b)
		}
	}
	return s.renewed(ctx, cs, grants)
}

// readersCall is rw_renew.lua, for writers too: after a downgrade that was not answered, nobody knows who is one.
func (b *batch) readersCall() *call {
	keys := make([]string, 0, 3*len(b.places))
	args := make([]any, 0, 4*len(b.places))
	for c := range b.claims() {
		keys = append(keys, c.Key, queueOf(c.Key), readersOf(c.Key))
		args = append(args, c.Owner, millis(c.TTL), memberOf(*c), strconv.FormatUint(c.Fence, 10))
	}
	return rwRenewScript.call(keys, args...)
}

// renewAlone renews one lease while its slot moves. A reader's part goes first: as long as that lasts no other reader's release
// makes L end sooner, and while L says the same phase nobody has taken the part away.
func (s readWrite) renewAlone(ctx context.Context, b *batch, grants []Grant) {
	c, i := *b.first(), b.places[0]
	part := "0"
	if c.Fence != 0 {
		var err error
		if part, err = rwPartScript.run(ctx, s.renewals, []string{readersOf(c.Key)}, memberOf(c), millis(c.TTL)); err != nil {
			b.fail(grants, err)
			return
		}
	}
	if part == "0" { // a writer, also one whose downgrade is not answered
		clustered(s).renewAlone(ctx, b, grants)
		return
	}
	c.Owner = fmt.Sprintf("%s:%d", shared, c.Fence)
	s.renew(ctx, &batch{all: []Claim{c}, places: []int{0}}, grants[i:i+1])
	if g := &grants[i]; g.State == Granted {
		queued, err := do(ctx, s.renewals, "exists", queueOf(c.Key))
		g.Writer = err == nil && queued == "1"
	}
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
	to, w := s.acked(c.Key)
	v, err := rwDowngradeScript.run(ctx, to,
		[]string{c.Key, queueOf(c.Key), counterOf(c.Key), readersOf(c.Key)},
		c.Owner, millis(c.TTL), memberOf(c), strconv.FormatUint(c.Fence, 10))
	if err != nil {
		return Grant{}, err
	}
	r := reply{v}
	switch ours, at := r.word(), r.time(); ours {
	case "1":
		return w.counts(Grant{State: Granted, At: at, Fence: c.Fence, Block: 1, Writer: r.rest == "1"})
	case "0":
		if reason, ok := s.revoked(ctx, c); ok {
			return Grant{State: Revoked, At: at, Reason: reason}, nil
		}
		return Grant{State: NotOurs, At: at}, nil
	}
	return Grant{}, odd("downgrade")
}

// Inspect runs rw_inspect.lua.
func (s readWrite) Inspect(ctx context.Context, key string) (Info, error) {
	info, _, err := s.look(ctx, key)
	return info, err
}

func (s readWrite) look(ctx context.Context, key string) (Info, leaseText, error) {
	info, text, err := s.readReaders(ctx, key)
	if err != nil || !info.Held {
		return info, leaseText{}, err
	}
	h, ours := parseLease(text)
	info.heldBy(h, ours)
	return info, h, nil
}

// readReaders is read, which counts readers too.
func (s single) readReaders(ctx context.Context, key string) (Info, string, error) {
	v, err := rwInspectScript.run(ctx, s.client, []string{key, queueOf(key), readersOf(key)})
	if err != nil {
		return Info{}, "", err
	}
	r := reply{v}
	now, left, waiters, readers := r.time(), r.duration(), int(r.integer()), int(r.integer())
	info, text, err := infoOf(now, left, waiters, r.rest)
	info.Readers = readers
	return info, text, err
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
