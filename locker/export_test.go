package locker

import (
	"context"
	"time"

	"github.com/bsm/redislock"
)

// What the tests of package locker_test look at from inside.
var (
	Refused    = refusal
	SlotOf     = func(key string) uint16 { return slot(tagOf(key)) }
	CounterOf  = counterOf
	Tombstone  = tombstoneOf
	DoneMark   = doneOf
	ReadersOf  = readersOf
	IntentOf   = intentOf
	QueueOf    = queueOf
	EntryOf    = entryOf
	JoinsOf    = joinsOf
	EventOf    = eventOf
	SlotCount  = slotCount
	ScriptText = map[string]string{
		"acquire": acquireScript.text, "renew": renewScript.text, "confirm": confirmScript.text, "release": releaseScript.text,
		"break": breakScript.text, "inspect": inspectScript.text, "raise_fence": raiseFenceScript.text,

		"rw_acquire": rwAcquireScript.text, "rw_renew": rwRenewScript.text, "rw_release": rwReleaseScript.text,
		"rw_break": rwBreakScript.text, "rw_inspect": rwInspectScript.text, "rw_downgrade": rwDowngradeScript.text,
		"rw_part":        rwPartScript.text,
		"quorum_acquire": quorumAcquireScript.text, "quorum_confirm": quorumConfirmScript.text,
		"quorum_release": quorumReleaseScript.text, "quorum_enroll": quorumEnrollScript.text,
		"delegate": delegateScript.text, "join": joinScript.text, "leave": leaveScript.text,

		"quorum_rw_acquire": quorumRWAcquireScript.text, "quorum_rw_confirm": quorumRWConfirmScript.text,
		"quorum_rw_renew": quorumRWRenewScript.text, "quorum_rw_release": quorumRWReleaseScript.text,
		"quorum_rw_downgrade": quorumRWDowngradeScript.text,
	}
)

// SingleStore is the Store behind NewSingle.
func SingleStore(c Client) Store {
	s, _ := newSingleStore(c, config{}) // only options can be wrong
	return s
}

// AckedStore is the Store behind NewSingle with WithReplicaAck.
func AckedStore(c Client, n int, within time.Duration) (Store, error) {
	return newSingleStore(c, config{acks: acks{asked: true, replicas: n, within: within}})
}

// PollingStore is the Store behind NewPolling.
func PollingStore(c *redislock.Client) Store { return newPollingStore(c) }

// ReadWriteStore is the Store behind NewReadWrite with one client.
func ReadWriteStore(c Client) Store {
	s, _ := newReadWriteStore(c, config{})
	return s
}

// Kill makes a Store of SingleStore or ReadWriteStore deaf, as if its process had ended, and returns where it listened.
func Kill(s Store) (channels []string) {
	switch s := s.(type) {
	case listening:
		return s.end()
	case listeningReadWrite:
		return s.end()
	case listeningCluster:
		return s.end()
	case listeningReadWriteCluster:
		return s.end()
	}
	return nil
}

func (b *inbox) end() (channels []string) {
	b.stop()
	return []string{b.channel}
}

func (s *shards) end() (channels []string) {
	s.mu.Lock()
	for _, sh := range s.slots {
		channels = append(channels, sh.name)
	}
	s.mu.Unlock()
	s.stop()
	return channels
}

// LeaveAfter makes an Engine on a cluster leave channels that nobody has used for that long. Call it before the first wait.
func LeaveAfter(e *Engine, d time.Duration) { e.store.(listeningCluster).leaves = d }

// ScriptSHA is the name under which the server knows a script.
func ScriptSHA(name string) string { return newScript(ScriptText[name]).sha.(string) }

// TogetherStore is that Store when all of its acquires and releases are pipelined.
func TogetherStore(c Client) (Store, error) {
	p, err := newPipelined(c)
	if err != nil {
		return nil, err
	}
	store := single{client: c, steps: p.together, renewals: c}
	if cluster, ok := c.(clusterClient); ok {
		return listeningCluster{clustered{store, cluster}, newShards(cluster)}, nil
	}
	if s, ok := c.(subscriber); ok {
		return listening{store, newInbox(s)}, nil
	}
	return store, nil
}

// MarkDelegated is what Delegate does last before it asks the server.
func MarkDelegated(l *Lease) bool { return l.engine.keeper.delegated(l.root()) }

// DriftOf is the part of a lease of that length that is not used.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }

// QuorumStore is the Store behind NewRedlock.
func QuorumStore(cs []Client, opts ...Option) (Store, error) {
	q, _, err := newRedlock("QuorumStore", cs, opts)
	if err != nil {
		return nil, err
	}
	return q.withEars(cs), nil
}

// ReadWriteQuorumStore is the Store behind NewReadWrite with several clients.
func ReadWriteQuorumStore(cs []Client, opts ...Option) (Store, error) {
	q, _, err := newRedlock("ReadWriteQuorumStore", cs, opts)
	if err != nil {
		return nil, err
	}
	return q.withReaders(cs), nil
}

// Settle waits for what a Store of QuorumStore does after it has answered.
func Settle(ctx context.Context, s Store) error { return s.(settler).settle(ctx) }

// LateReader is an acquire of a reader that has found no phase to enter, and comes to its cohort when there is one.
func (e *Engine) LateReader(ctx context.Context, r Rule) (*Lease, error) {
	a, err := e.begin(ctx, r)
	if err != nil {
		return nil, err
	}
	defer e.acquires.leave()
	t, _ := e.cohorts.share(a.rule, a.adaptive)
	e.cohorts.join(a, t, false)
	turn, err := a.turnComes()
	if err != nil {
		return nil, err
	}
	return a.takeOver(turn), nil
}
