// Package redisstore has the Stores on one Redis server, on a server that Sentinel picks, and on a
// Redis Cluster. Each step is a script in folder lua, sent once.
package redisstore

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// New returns the Store of one server or of a cluster. The Store is also a Notifier if the client
// can subscribe.
func New(c Client, cfg Settings) (store.Store, error) {
	if err := cfg.Acks.checkClient(c); err != nil {
		return nil, err
	}
	s := singleWithLinks(c, cfg)
	if cluster, ok := c.(ClusterClient); ok {
		return listeningCluster{*NewCluster(s, cluster), NewShardSubscriptions(cluster)}, nil
	}
	if sub, ok := SubscriberOf(c); ok {
		return listening{s, NewSubscription(sub, NewChannel())}, nil
	}
	return s, nil
}

// Settings are the settings of a Store on Redis.
type Settings struct {
	Acks Acks        // the acknowledgements that each lease needs
	Warn func(error) // called with the refusal that ends an undo; may be nil
}

// NewSingle returns the Store of one server without a subscription. The Store sends its calls over
// the given links, which lead to the server of c.
func NewSingle(c Client, links *link.Links) Single {
	return Single{Client: links, server: c}
}

// singleWithLinks returns a Store that makes links to the server of c, and sends its calls over
// these links.
func singleWithLinks(c Client, cfg Settings) Single {
	links := link.New(c, link.Options{Replicas: cfg.Acks.Replicas, Within: cfg.Acks.Within, Warn: cfg.Warn})
	return Single{Client: links, server: c, acks: cfg.Acks, links: links}
}

// Single is the Store of one server. Each step is a script, sent once.
type Single struct {
	Client link.Sender // sends the calls
	server Client
	acks   Acks        // the acknowledgements that leases need
	links  *link.Links // the links that this Store has made, and closes; nil: the links of NewSingle
}

// Capabilities returns what the Store of one server can do.
func (s Single) Capabilities() store.Capabilities {
	return store.Capabilities{
		// The holder must confirm a grant that came by message if replicas must acknowledge leases,
		// because no replica has acknowledged this grant.
		CarriesNext: true, NeedsConfirmation: s.acks.required(),
		Inspect: s.Inspect, Keys: s.Keys, Queue: s.Queue, Revoke: s.Revoke, RaiseFence: s.RaiseFence, CheckServer: s.CheckServer,
	}
}

// Acquire runs acquire.lua for the claim c, and returns the grant in its answer.
func (s Single) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.acquire(c).ask(ctx, s.Client)
}

func (s Single) acquire(c store.Claim) *question {
	waits, done, once := "", "", ""
	if c.Queue {
		waits = waiterPart(c)
	}
	if c.OnceFor > 0 {
		done, once = DoneKey(c.Key), "1"
	}
	block := max(c.FenceCount, 1)
	queue, tombstone := queueAndTombstone(c.Key, c.Owner)
	q := s.question(acquireScript, nil, readAcquire, block)
	q.Key, q.Words = c.Key, acquireScript.shortWordsIn(&q.room,
		[]string{c.Key, queue, CounterKey(c.Key), tombstone, done},
		c.Owner, Millis(c.TTL), int64(block), waits, c.Metadata, once)
	if once == "" {
		q.Together = acquiresTogether
	}
	return q
}

// question returns a question that calls a script with the given words. The script grants a lease,
// the function read parses its answer, and block is the number of fences that the call asks for. If
// replicas must acknowledge the lease, the call waits for them.
func (s Single) question(script Script, words []any, read func(*question, string) (store.Grant, error), block int) *question {
	q := &question{read: read, acks: s.acks, block: block}
	q.Script, q.Words, q.Class, q.Acked = script.Script, words, script.class, s.acks.required()
	if len(words) > 3 {
		q.Key, _ = words[3].(string)
	}
	return q
}

// readAcquire returns the grant that text, the answer to the acquire q, contains.
func readAcquire(q *question, text string) (store.Grant, error) {
	g, ok := freshGrantOf(text, q.block)
	if !ok {
		g, ok = grantOf(text)
	}
	if !ok {
		return store.Grant{}, Unreadable("acquire")
	}
	return g, nil
}

// acquireAll runs acquire_all.lua.
func (s Single) acquireAll(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	keys := make([]string, 0, 5*len(cs))
	args := make([]any, 0, 5*len(cs))
	for _, c := range cs {
		keys = append(keys, c.Key, QueueKey(c.Key), CounterKey(c.Key), TombstoneKey(c.Key, c.Owner), DoneKey(c.Key))
		args = append(args, c.Owner, Millis(c.TTL), int64(max(c.FenceCount, 1)), AsksOnce(c), c.Metadata)
	}
	q := s.question(acquireAllScript, acquireAllScript.Words(keys, args...), nil, 0)
	v, err := s.Client.Do(ctx, &q.Call)
	if err != nil {
		return nil, Refused(err)
	}
	var short error
	if q.Acked {
		short = s.acks.checkCount(q.Acks())
	}
	r := Reply{v}
	grants := make([]store.Grant, len(cs))
	for i := range grants {
		text, ok := r.countedPart()
		if !ok {
			return nil, Unreadable("acquire_all")
		}
		if grants[i], ok = grantOf(text); !ok {
			return nil, Unreadable("acquire_all")
		}
		if short != nil && grants[i].State == store.Granted {
			return nil, short
		}
	}
	return grants, nil
}

// waiterPart returns the middle part of the entry of c in the queue. This part describes how the
// claim waits. In the entry, the token comes before this part, and the metadata after it.
func waiterPart(c store.Claim) string {
	return cmp.Or(c.Inbox, "-") + "|" + strconv.FormatInt(max(Millis(c.HandoffTTL), 1), 10) + "|" + modeOf(c) +
		"|" + strconv.Itoa(max(c.FenceCount, 1)) + "|" + AsksOnce(c)
}

// modeOf returns the mode in the queue entry of c: 0 for a claim that wants the key alone, 1 for a
// reader, w/n for w of n units.
func modeOf(c store.Claim) string {
	if c.Limit > 0 {
		return strconv.Itoa(max(c.Weight, 1)) + "/" + strconv.Itoa(c.Limit)
	}
	return strconv.Itoa(int(c.Mode))
}

// QueueEntry returns the entry of the claim c in the queue:
// token|inbox|hand-ms|mode|block|once|metadata. The entry must not change while the token lives.
func QueueEntry(c store.Claim) string { return c.Owner + "|" + waiterPart(c) + "|" + c.Metadata }

// AsksOnce returns "1" when the claim c asks whether its work is done already, otherwise "0".
func AsksOnce(c store.Claim) string {
	if c.OnceFor > 0 {
		return "1"
	}
	return "0"
}

// freshGrantOf returns the grant that text contains, if text is the answer to an acquire that has
// found the key free and got all fences that it asked for. Otherwise it returns false.
func freshGrantOf(text string, block int) (g store.Grant, ok bool) {
	at, text, _ := strings.Cut(text, " ")
	micros, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return g, false
	}
	fence, err := strconv.ParseUint(text, 10, 64)
	return store.Grant{State: store.Granted, At: time.UnixMicro(micros), Fence: fence, FenceCount: block}, err == nil
}

// grantOf returns the grant that text contains, and false if text has another form. The text
// answers an acquire, or an acquire that was sent with a release.
func grantOf(text string) (g store.Grant, ok bool) {
	r := Reply{text}
	state := r.Word()
	g.At = r.Time()
	switch state {
	case "granted":
		_ = r.Word() // the PTTL, which is not needed, because the local clock counts the time that is left
		h, ok := ParseLease(r.Rest)
		g.State, g.Fence, g.FenceCount = store.Granted, h.Fence, h.Block
		return g, ok
	case "busy":
		left := r.Duration()
		g.State, g.Place, g.NotListening = store.Busy, int(r.Integer()), r.Word() == "0"
		g.Holder = holderOf(r.Rest, left)
	case "undone":
		g.State = store.Undone
	case "revoked":
		g.State, g.Reason = store.Revoked, r.Rest
	case "done":
		g.State = store.Done
	case "not-ours":
		g.State = store.NotOurs
	}
	return g, g.State != 0
}

// Release runs release.lua. If the claim keeps the key for some time, the script ignores Next,
// because no token gets the key before this time is over.
func (s Single) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return s.release(c).ask(ctx, s.Client)
}

func (s Single) release(c store.Claim) *question {
	r := releaseOf(c)
	done, nextTombstone := "", ""
	if r.done > 0 || r.next != "" {
		done = DoneKey(c.Key)
	}
	if r.next != "" {
		nextTombstone = r.nextTombstone
	}
	q := releaseQuestion(releaseScript, nil)
	q.Key, q.Words = c.Key, releaseScript.shortWordsIn(&q.room,
		[]string{c.Key, r.queue, CounterKey(c.Key), r.tombstone, done, nextTombstone},
		c.Owner, r.entry, Millis(c.KeepFor), Millis(c.TombstoneTTL), Millis(r.done), r.next, r.nextTTL)
	if c.KeepFor <= 0 && c.TombstoneTTL <= 0 && r.done <= 0 && r.next == "" {
		q.Together = releasesTogether
	}
	return q
}

// releaseQuestion returns a question that calls a script with the given words. No replica needs to
// acknowledge this call, which is a release.
func releaseQuestion(script Script, words []any) *question {
	q := &question{read: readRelease}
	q.Script, q.Words, q.Class = script.Script, words, script.class
	if len(words) > 3 {
		q.Key, _ = words[3].(string)
	}
	return q
}

func readRelease(_ *question, text string) (store.Grant, error) { return releasedOf(text) }

// releaseCall has the arguments of a release that are not in the claim.
type releaseCall struct {
	done                     time.Duration
	entry, next              string
	queue                    string
	tombstone, nextTombstone string
	nextTTL                  int64
}

func releaseOf(c store.Claim) releaseCall {
	var r releaseCall
	r.queue, r.tombstone = queueAndTombstone(c.Key, c.Owner)
	r.nextTombstone = r.tombstone
	if c.Complete {
		r.done = c.OnceFor
	}
	if c.Queue {
		r.entry = QueueEntry(c)
	}
	if c.Next != nil {
		r.next, r.nextTombstone, r.nextTTL = QueueEntry(*c.Next), TombstoneKey(c.Key, c.Next.Owner), Millis(c.Next.TTL)
	}
	return r
}

// releasedOf returns the grant that text, the answer to a release, contains.
func releasedOf(text string) (g store.Grant, err error) {
	r := Reply{text}
	state := r.Word()
	if r.Rest != "" {
		g.At = r.Time()
	}
	switch state {
	case "released":
		g.State = store.Released
		if r.Rest != "" {
			answer, ok := grantOf(r.Rest)
			if !ok {
				return store.Grant{}, Unreadable("release")
			}
			g.Next = &answer
		}
	case "not-ours":
		g.State = store.NotOurs
	case "done":
		g.State = store.Done
	case "revoked":
		g.State, g.Reason = store.Revoked, r.Rest
	default:
		return store.Grant{}, Unreadable("release")
	}
	return g, nil
}
