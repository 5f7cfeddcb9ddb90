package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// readWrite is the Store of one server, or of a cluster, with readers. A writer's lease in L has
// the same form as in Single. While readers hold the key, L contains the fence of their phase. The
// sorted set R then has an entry with an expiry for each reader.
//
// While a slot of a cluster moves, the steps are refused, because they name several keys. The
// Engine repeats the refused steps. Only renewals continue, in steps of one key each.
type readWrite struct {
	Single
	cluster ClusterClient // nil: one server
}

// A readWrite whose client can subscribe is a Notifier too.
type (
	listeningReadWrite struct {
		readWrite
		*Subscriptions
	}
	listeningReadWriteCluster struct {
		readWrite
		*Subscriptions
	}
)

// Capabilities returns what a Single can do, and Downgrade.
func (s readWrite) Capabilities() store.Capabilities {
	can := s.Single.Capabilities()
	can.Downgrade, can.Inspect, can.Keys, can.Revoke = s.Downgrade, s.Inspect, s.Keys, s.Revoke
	return can
}

// Capabilities adds the subscription.
func (l listeningReadWrite) Capabilities() store.Capabilities {
	can := l.readWrite.Capabilities()
	can.Notifier = l.Subscriptions
	return can
}

// Capabilities adds the subscription.
func (l listeningReadWriteCluster) Capabilities() store.Capabilities {
	can := l.readWrite.Capabilities()
	can.Notifier = l.Subscriptions
	return can
}

// Acquire marks the channel as used if the claim has an inbox, and then calls the embedded Acquire.
func (l listeningReadWriteCluster) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.readWrite.Acquire(ctx, c)
}

// Begin marks the channel as used if an acquire has an inbox, and then calls the embedded Begin.
func (l listeningReadWriteCluster) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire && c.Inbox != "" {
		l.markUsed(c.Key)
	}
	return l.readWrite.Begin(ctx, step, c, onAnswer)
}

// BeginRenew marks the channels of readers as used, because readers learn through these channels
// that a writer waits. Then it calls the embedded BeginRenew.
func (l listeningReadWriteCluster) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	for _, c := range cs {
		if c.Mode == store.Shared && c.Inbox != "" {
			l.markUsed(c.Key)
		}
	}
	l.readWrite.BeginRenew(ctx, cs, onAnswer)
}

// Renew marks the channels of readers as used, because readers learn through these channels that a
// writer waits. Then it calls the embedded Renew.
func (l listeningReadWriteCluster) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	for _, c := range cs {
		if c.Mode == store.Shared && c.Inbox != "" {
			l.markUsed(c.Key)
		}
	}
	return l.readWrite.Renew(ctx, cs)
}

// NewReadWrite does the work of New for a Store with readers.
func NewReadWrite(c Client, cfg Settings) (store.Store, error) {
	s, err := New(c, cfg)
	switch s := s.(type) {
	case Single:
		return readWrite{Single: s}, nil
	case listening:
		return listeningReadWrite{readWrite{Single: s.Single}, s.Subscriptions}, nil
	case listeningCluster:
		return listeningReadWriteCluster{readWrite{s.Single, s.cluster}, s.Subscriptions}, nil
	}
	return nil, err
}

// ReaderEntry returns the entry of the claim c in R. The entry must not change while the token
// lives.
func ReaderEntry(c store.Claim) string { return c.Owner + "|" + cmp.Or(c.Inbox, "-") }

// PhaseNoteKey returns the key of the note that a revocation leaves for all readers of a phase. The
// parameter fence is the fence of the phase.
func PhaseNoteKey(key string, fence uint64) string {
	return TombstoneKey(key, strconv.FormatUint(fence, 10))
}

// Acquire runs rw_acquire.lua for the claim c, and returns the grant in its answer.
func (s readWrite) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.acquire(c).ask(ctx, s.Client)
}

func (s readWrite) acquire(c store.Claim) *question {
	waits, reader := "", "0"
	if c.Queue {
		waits = waiterPart(c)
	}
	if c.Mode == store.Shared {
		reader = "1"
	}
	words := rwAcquireScript.Words(
		[]string{c.Key, QueueKey(c.Key), CounterKey(c.Key), ReadersKey(c.Key), TombstoneKey(c.Key, c.Owner), DoneKey(c.Key)},
		c.Owner, Millis(c.TTL), int64(max(c.FenceCount, 1)), AsksOnce(c), c.Metadata, waits, ReaderEntry(c), reader)
	return s.question(rwAcquireScript, words, readPhaseAcquire, 0)
}

// readPhaseAcquire returns the grant that text, the answer to an acquire, contains.
func readPhaseAcquire(_ *question, text string) (store.Grant, error) {
	g, ok := phaseGrantOf(text)
	if !ok {
		return store.Grant{}, Unreadable("acquire")
	}
	return g, nil
}

// phaseGrantOf returns the grant that text, the answer to an acquire, contains, and false if text
// has another form.
func phaseGrantOf(text string) (store.Grant, bool) {
	entered, ok := strings.CutPrefix(text, "entered ")
	if !ok {
		return grantOf(text)
	}
	r := Reply{entered}
	g := store.Grant{State: store.Granted, At: r.Time()}
	_ = r.Word() // the PTTL, which is not needed, because the local clock counts the time that is left
	g.Writer = r.Word() == "1"
	h, ok := ParseLease(r.Rest)
	g.Fence, g.FenceCount = h.Fence, h.Block
	return g, ok
}

// Renew runs rw_renew.lua, on a cluster once for each slot.
func (s readWrite) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	renew := func(b *Batch) {
		b.readers = true
		s.renew(ctx, b, grants)
		s.complete(ctx, b, grants)
	}
	if s.cluster != nil {
		Cluster(s).Each(Batches(cs, SlotOf), renew)
	} else {
		for _, b := range Batches(cs, sameGroup) {
			renew(b)
		}
	}
	return errorOfAll(grants)
}

// BeginRenew does the work of Renew, and delivers the answers of each node when they come.
func (s readWrite) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	group := sameGroup
	if s.cluster != nil {
		group = SlotOf
	}
	grants := make([]store.Grant, len(cs))
	for _, b := range splitBatches(Batches(cs, group)) {
		b.readers = true
		s.beginRenewal(ctx, b, grants, onAnswer, func() { s.complete(ctx, b, grants) })
	}
}

// complete renews one by one the leases whose slot moves. After that, complete handles the leases
// that the server no longer has under our tokens (NotOurs): it looks up which of these leases were
// revoked.
func (s readWrite) complete(ctx context.Context, b *Batch, grants []store.Grant) {
	for _, one := range b.splitMoving(grants) {
		s.renewAlone(ctx, one, grants)
	}
	s.lookUp(ctx, b, grants)
}

// readersCall returns the call of rw_renew.lua. The call is for writers too, because after an
// unanswered downgrade it is unknown whether the owner is a writer or a reader.
func (b *Batch) readersCall() *Call {
	keys := make([]string, 0, 3*len(b.Places))
	args := make([]any, 0, 4*len(b.Places))
	for c := range b.Claims() {
		keys = append(keys, c.Key, QueueKey(c.Key), ReadersKey(c.Key))
		args = append(args, c.Owner, Millis(c.TTL), ReaderEntry(*c), strconv.FormatUint(c.Fence, 10))
	}
	return rwRenewScript.Call(keys, args...)
}

// renewAlone renews one lease while its slot moves. For a reader, the first step renews its part of
// the phase. While the part lasts, no other reader's release makes L end sooner. If L still names
// the same phase after this step, nothing has removed the part.
func (s readWrite) renewAlone(ctx context.Context, b *Batch, grants []store.Grant) {
	c, i := *b.firstClaim(), b.Places[0]
	part := "0"
	if c.Fence != 0 {
		var err error
		if part, err = rwPartScript.Run(ctx, s.Client, []string{ReadersKey(c.Key)}, ReaderEntry(c), Millis(c.TTL)); err != nil {
			b.Fail(grants, err)
			return
		}
	}
	if part == "0" { // a writer, or an owner whose downgrade has no answer
		Cluster(s).renewAlone(ctx, b, grants)
		return
	}
	c.Owner = fmt.Sprintf("%s:%d", SharedToken, c.Fence)
	s.renew(ctx, &Batch{all: []store.Claim{c}, Places: []int{0}}, grants[i:i+1])
	if g := &grants[i]; g.State == store.Granted {
		queued, err := runCommand(ctx, s.Client, link.Renewal, "exists", QueueKey(c.Key))
		g.Writer = err == nil && queued == "1"
	}
}

// Release runs rw_release.lua. If the claim keeps the key for some time, the script ignores Next,
// because no token gets the key before this time is over.
func (s readWrite) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.release(c).ask(ctx, s.Client)
}

func (s readWrite) release(c store.Claim) *question {
	r := releaseOf(c)
	phase := r.tombstone
	if c.Fence != 0 {
		phase = PhaseNoteKey(c.Key, c.Fence)
	}
	words := rwReleaseScript.Words(
		[]string{c.Key, QueueKey(c.Key), CounterKey(c.Key), ReadersKey(c.Key), r.tombstone, DoneKey(c.Key), r.nextTombstone, phase},
		c.Owner, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(r.done), r.entry, r.next, r.nextTTL, ReaderEntry(c), traceSuffix(c))
	return releaseQuestion(rwReleaseScript, words)
}

// traceSuffix returns the text that the next holder gets about the release of c: "|" and the
// traceparent of c, or "" if c has no traceparent.
func traceSuffix(c store.Claim) string {
	if trace, _ := store.Signature(c.Metadata); trace != "" {
		return "|" + trace
	}
	return ""
}

// Begin begins a step.
func (s readWrite) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	if step == calls.Acquire {
		return s.begin(ctx, step, s.acquire(c), onAnswer)
	}
	return s.begin(ctx, step, s.release(c), onAnswer)
}

// Downgrade runs rw_downgrade.lua for the claim c, and returns the grant in its answer.
func (s readWrite) Downgrade(ctx context.Context, c store.Claim) (store.Grant, error) {
	words := rwDowngradeScript.Words(
		[]string{c.Key, QueueKey(c.Key), CounterKey(c.Key), ReadersKey(c.Key)},
		c.Owner, Millis(c.TTL), ReaderEntry(c), strconv.FormatUint(c.Fence, 10))
	g, err := s.question(rwDowngradeScript, words, readDowngrade, 0).ask(ctx, s.Client)
	switch g.State {
	case store.Granted:
		g.Fence, g.FenceCount = c.Fence, 1
	case store.NotOurs:
		if reason, ok := s.Revoked(ctx, c); ok {
			g.State, g.Reason = store.Revoked, reason
		}
	default:
	}
	return g, err
}

// readDowngrade returns the grant that text, the answer to a downgrade, contains.
func readDowngrade(_ *question, text string) (store.Grant, error) {
	r := Reply{text}
	switch ours, at := r.Word(), r.Time(); ours {
	case "1":
		return store.Grant{State: store.Granted, At: at, Writer: r.Rest == "1"}, nil
	case "0":
		return store.Grant{State: store.NotOurs, At: at}, nil
	}
	return store.Grant{}, Unreadable("downgrade")
}

// Inspect runs rw_inspect.lua for the key, and returns the Info in its answer.
func (s readWrite) Inspect(ctx context.Context, key string) (store.Info, error) {
	info, _, err := s.inspect(ctx, key)
	return info, err
}

func (s readWrite) inspect(ctx context.Context, key string) (store.Info, LeaseText, error) {
	info, text, err := s.ReadReaders(ctx, key)
	if err != nil || !info.Held {
		return info, LeaseText{}, err
	}
	h, ours := ParseLease(text)
	Describe(&info, h, ours)
	return info, h, nil
}

// ReadReaders does the work of Read. The returned Info also describes the readers.
func (s Single) ReadReaders(ctx context.Context, key string) (store.Info, string, error) {
	v, err := rwInspectScript.Run(ctx, s.Client, []string{key, QueueKey(key), ReadersKey(key)})
	if err != nil {
		return store.Info{}, "", err
	}
	r := Reply{v}
	now, left, waiters, count := r.Time(), r.Duration(), int(r.Integer()), int(r.Integer())
	var line Line
	var reading []store.Reader
	for i := range count {
		left := r.Duration()
		entry, ok := r.countedPart()
		if !ok {
			return store.Info{}, "", Unreadable("inspect")
		}
		_ = r.Word() // skips the space after the entry
		_, inbox, _ := strings.Cut(entry, "|")
		line.Add(Entry{Inbox: inbox, Listening: true}, store.Waiter{})
		reading = append(reading, store.Reader{Left: left, Process: line.Waiters[i].Process})
	}
	info, text, err := infoOf(now, left, waiters, r.Rest)
	info.Readers, info.Reading = count, reading
	return info, text, err
}

// Revoke looks up the holder. If the holder's lease has the given fence, Revoke revokes the lease,
// as Single does. It revokes all readers of a phase together, because they share one fence, and
// leaves a note for these readers. The name of the note contains the fence.
func (s readWrite) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	info, holder, err := s.inspect(ctx, key)
	if err != nil {
		return store.Grant{}, err
	}
	if there, err := revocable(info, holder, fence); !there {
		return store.Grant{State: store.NotOurs}, err
	}
	note := TombstoneKey(key, holder.Token)
	if info.Mode == store.Shared {
		note = PhaseNoteKey(key, holder.Fence)
	}
	v, err := rwBreakScript.Run(ctx, s.Client,
		[]string{key, QueueKey(key), CounterKey(key), ReadersKey(key), note},
		holder.textPrefix(), "revoked:"+reason, Millis(noteTTL(info)))
	if err != nil {
		return store.Grant{}, err
	}
	if v != "1" {
		return store.Grant{State: store.NotOurs}, nil
	}
	return store.Grant{State: store.Released}, nil
}
