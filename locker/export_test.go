package locker

import (
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
	QueueOf    = queueOf
	EntryOf    = entryOf
	EventOf    = eventOf
	SlotCount  = slotCount
	ScriptText = map[string]string{
		"acquire": acquireScript.text, "renew": renewScript.text, "confirm": confirmScript.text, "release": releaseScript.text,
		"break": breakScript.text, "inspect": inspectScript.text, "raise_fence": raiseFenceScript.text,
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

// Kill makes a Store of SingleStore deaf, as if its process had ended, and returns where it listened.
func Kill(s Store) (channels []string) {
	switch s := s.(type) {
	case listening:
		s.stop()
		return []string{s.channel}
	case listeningCluster:
		s.mu.Lock()
		for _, sh := range s.slots {
			channels = append(channels, sh.name)
		}
		s.mu.Unlock()
		s.stop()
	}
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

// DriftOf is the part of a lease of that length that is not used.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }
