package locker

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"maps"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/internal/polling"
	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// What the tests of package locker_test look at from inside.
var (
	Refused    = redisstore.Refused
	SlotOf     = func(key string) uint16 { return redisstore.SlotOf(key) }
	CounterOf  = redisstore.CounterKey
	Tombstone  = redisstore.TombstoneKey
	DoneMark   = redisstore.DoneKey
	ReadersOf  = redisstore.ReadersKey
	IntentOf   = redisstore.IntentKey
	QueueOf    = redisstore.QueueKey
	EntryOf    = redisstore.QueueEntry
	JoinsOf    = redisstore.JoinsKey
	EventOf    = redisstore.ParseEvent
	SlotCount  = redisstore.SlotCount
	ScriptText = bothTexts()
)

// SingleStore is the Store behind NewSingle.
func SingleStore(c Client) Store {
	s, _ := redisstore.New(c, redisstore.Settings{}) // only options can be wrong
	return s
}

// AckedStore is the Store behind NewSingle with WithReplicaAck.
func AckedStore(c Client, n int, within time.Duration) (Store, error) {
	return redisstore.New(c, redisstore.Settings{Acks: redisstore.Acks{Replicas: n, Within: within}})
}

// PollingStore is the Store behind NewPolling.
func PollingStore(c *redislock.Client) Store { return polling.New(c) }

// ReadWriteStore is the Store behind NewReadWrite with one client.
func ReadWriteStore(c Client) Store {
	s, _ := redisstore.NewReadWrite(c, redisstore.Settings{})
	return s
}

// LeaveAfter makes an Engine on a cluster leave channels that nobody has used for that long. Call it before the first wait.
func LeaveAfter(e *Engine, d time.Duration) { redisstore.DelayLeaving(e.store, d) }

// ScriptSHA is the name under which the server knows a script.
func ScriptSHA(name string) string {
	sum := sha1.Sum([]byte(ScriptText[name])) //nolint:gosec // not for security
	return hex.EncodeToString(sum[:])
}

// MarkDelegated is what Delegate does last before it asks the server.
func MarkDelegated(l *Lease) bool { return l.engine.keeper.delegated(l.root()) }

// DriftOf is the part of a lease of that length that is not used.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }

// QuorumStore is the Store behind NewRedlock.
func QuorumStore(cs []Client, opts ...QuorumOption) (Store, error) {
	cfg, err := newQuorumConfig("QuorumStore", cs, opts, QuorumOption.setQuorum)
	if err != nil {
		return nil, err
	}
	return quorum.New(nodesOf(cs), cfg.quorum()), nil
}

// ReadWriteQuorumStore is the Store behind NewReadWrite with several clients.
func ReadWriteQuorumStore(cs []Client, opts ...QuorumOption) (Store, error) {
	cfg, err := newQuorumConfig("ReadWriteQuorumStore", cs, opts, QuorumOption.setQuorum)
	if err != nil {
		return nil, err
	}
	return quorum.NewReadWrite(nodesOf(cs), cfg.quorum()), nil
}

// Settle waits for what a Store of QuorumStore does after it has answered.
func Settle(ctx context.Context, s Store) error { return s.(store.Closer).Close(ctx) }

// LateReader is an acquire of a reader that has found no phase to enter, and comes to its cohort when there is one.
func (e *Engine) LateReader(ctx context.Context, r Rule) (*Lease, error) {
	a, err := e.newAcquisition(ctx, r)
	if err != nil {
		return nil, err
	}
	defer e.acquires.Leave()
	t, _ := e.cohorts.share(a.rule, a.adaptive)
	e.cohorts.join(a, t, false)
	turn, err := a.turnComes()
	if err != nil {
		return nil, err
	}
	return a.takeOver(turn), nil
}

func bothTexts() map[string]string {
	all := maps.Clone(redisstore.ScriptTexts)
	maps.Copy(all, quorum.ScriptTexts)
	return all
}

// Suspend makes an Engine see what it would after its machine was suspended for d.
func Suspend(e *Engine, d time.Duration) {
	e.keeper.mu.Lock()
	defer e.keeper.mu.Unlock()
	e.keeper.clocks.set += d
}
