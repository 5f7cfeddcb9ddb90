package redisstore

import (
	"strconv"
	"sync"

	"github.com/latchkit/latchkit/internal/store"
)

// This file names all keys and channels that a lock uses on Redis. The name of L, the lease, is
// exactly prefix+key, as in other libraries. The companion keys have L's hash tag, so that they
// are in L's slot of a cluster.
const (
	queuePrefix     = store.ReservedPrefix + "q:{"  // latchkit:q:{tag}:L, a sorted set of the waiters
	readersPrefix   = store.ReservedPrefix + "r:{"  // latchkit:r:{tag}:L, a sorted set of the readers
	permitsPrefix   = store.ReservedPrefix + "p:{"  // latchkit:p:{tag}:L, a sorted set of the permits of a semaphore
	usesPrefix      = store.ReservedPrefix + "u:{"  // latchkit:u:{tag}:L, a hash with the use of each of these permits
	tombstonePrefix = store.ReservedPrefix + "x:{"  // latchkit:x:{tag}:token, "undone" or "revoked:reason"
	donePrefix      = store.ReservedPrefix + "d:{"  // latchkit:d:{tag}:L, exists while Rule.OnceFor marks the work as done
	counterPrefix   = store.ReservedPrefix + "f:{"  // latchkit:f:{tag of the slot}, the fence counter, for ever
	NodeKey         = store.ReservedPrefix + "node" // the marker of a quorum's node, for ever
	inboxPrefix     = store.ReservedPrefix + "i:"   // latchkit:i:random, the channel on which an Engine receives messages; it is not a key
	// latchkit:s:{tag of the slot}:random is the sharded channel on which an Engine receives
	// messages on a cluster.
	shardPrefix = store.ReservedPrefix + "s:"
)

// QueueKey returns the key of the queue for the lease l.
func QueueKey(l string) string { return queuePrefix + store.HashTag(l) + "}:" + l }

// ReadersKey returns the key of the readers for the lease l.
func ReadersKey(l string) string { return readersPrefix + store.HashTag(l) + "}:" + l }

// PermitsKey returns the key of the permits for the lease l.
func PermitsKey(l string) string { return permitsPrefix + store.HashTag(l) + "}:" + l }

// UsesKey returns the key of the hash that has the use of each permit for the lease l.
func UsesKey(l string) string { return usesPrefix + store.HashTag(l) + "}:" + l }

// TombstoneKey returns the key of a token's tombstone for the lease l.
func TombstoneKey(l, token string) string { return tombstonePrefix + store.HashTag(l) + "}:" + token }

// PhaseNoteKey returns the key of the note that a revocation leaves for all readers of a phase of
// the lease l. The parameter fence is the fence of the phase.
func PhaseNoteKey(l string, fence uint64) string {
	return TombstoneKey(l, strconv.FormatUint(fence, 10))
}

// queueAndTombstone returns QueueKey and TombstoneKey, in one piece of memory.
func queueAndTombstone(l, token string) (queue, tombstone string) {
	tag := store.HashTag(l)
	both := queuePrefix + tag + "}:" + l + tombstonePrefix + tag + "}:" + token
	n := len(queuePrefix) + len(tag) + len("}:") + len(l)
	return both[:n], both[n:]
}

// DoneKey returns the key of the done mark for the lease l.
func DoneKey(l string) string { return donePrefix + store.HashTag(l) + "}:" + l }

// CounterKey returns the key of the fence counter for the lease l.
func CounterKey(l string) string { return counters()[SlotOf(l)] }

// TagOfSlot returns a hash tag, in braces, that hashes into the slot s.
func TagOfSlot(s uint16) string { return counters()[s][len(counterPrefix)-1:] }

// SlotCount is the number of slots of a Redis Cluster.
const SlotCount = 16384

// counters has the name of each slot's fence counter. The name contains the smallest decimal number
// that hashes into the slot, so that any client in any language finds the counter. The names are
// made once, on first use.
var counters = sync.OnceValue(func() *[SlotCount]string {
	var names [SlotCount]string
	for n, found := 0, 0; found < SlotCount; n++ {
		tag := strconv.Itoa(n)
		if s := slot(tag); names[s] == "" {
			names[s] = counterPrefix + tag + "}"
			found++
		}
	}
	return &names
})

// SlotOf returns the slot of the key l.
func SlotOf(l string) uint16 { return slot(store.HashTag(l)) }

// slot returns the cluster slot of a hash tag: CRC16 (XMODEM) modulo the number of slots, as the
// Redis Cluster specification defines it.
func slot(tag string) uint16 {
	var crc uint16
	for i := range len(tag) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^tag[i]]
	}
	return crc % SlotCount
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
