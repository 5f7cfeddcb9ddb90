package locker

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Every key and channel that a lock uses on Redis is named here and nowhere else. L, the lease, is exactly prefix+key, where other
// libraries see it; its siblings carry L's hash tag, so that they lie in L's slot of a cluster.
const (
	reserved     = "latchkit:"
	queueKey     = reserved + "q:{"        // latchkit:q:{tag}:L, a sorted set of who waits
	readersKey   = reserved + "r:{"        // latchkit:r:{tag}:L, a sorted set of who reads
	tombstoneKey = reserved + "x:{"        // latchkit:x:{tag}:token, "undone" or "revoked:reason"
	doneKey      = reserved + "d:{"        // latchkit:d:{tag}:L, there while Rule.Once holds
	joinsKey     = reserved + "j:{"        // latchkit:j:{tag}:L, a hash of who may join a lease, and who has
	counterKey   = reserved + "f:{"        // latchkit:f:{tag of the slot}, the fence counter, for ever
	wakeKey      = reserved + "w:{"        // latchkit:w:{tag}:L, for whom a node of a quorum keeps its vote
	intentKey    = reserved + "t:{"        // latchkit:t:{tag}:L, which writer waits at a node of a quorum that has readers
	nodeKey      = reserved + "node"       // the marker of a quorum's node, for ever
	outKey       = reserved + "quarantine" // there while such a node is left out
	inboxChannel = reserved + "i:"         // latchkit:i:random, no key but a channel: where an Engine is told of its turn
	shardChannel = reserved + "s:"         // latchkit:s:{tag of the slot}:random, the same on a cluster: a sharded channel
)

// maxKeyBytes bounds L. Longer keys should be hashed by whoever makes them.
const maxKeyBytes = 512

// checkKey says whether l can be locked.
func checkKey(l string) error {
	switch {
	case l == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidKey)
	case len(l) > maxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed; hash the long part", ErrInvalidKey, len(l), maxKeyBytes)
	case strings.HasPrefix(l, reserved):
		return fmt.Errorf("%w: names that start with %q are kept for the locks' own data", ErrInvalidKey, reserved)
	case tagOf(l) == l && strings.Contains(l, "}"):
		return fmt.Errorf("%w: it has a '}' but no hash tag {…}, so its companion keys cannot be put into its cluster slot", ErrInvalidKey)
	}
	return nil
}

// tagOf is the part of l that Redis Cluster hashes: what stands between the first '{' and the first '}' after it, or all
// of l when there is no such pair or nothing in it.
func tagOf(l string) string {
	if _, rest, ok := strings.Cut(l, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return l
}

func queueOf(l string) string            { return queueKey + tagOf(l) + "}:" + l }
func readersOf(l string) string          { return readersKey + tagOf(l) + "}:" + l }
func tombstoneOf(l, token string) string { return tombstoneKey + tagOf(l) + "}:" + token }
func intentOf(l string) string           { return intentKey + tagOf(l) + "}:" + l }
func wakeOf(l string) string             { return wakeKey + tagOf(l) + "}:" + l }
func doneOf(l string) string             { return doneKey + tagOf(l) + "}:" + l }
func joinsOf(l string) string            { return joinsKey + tagOf(l) + "}:" + l }
func counterOf(l string) string          { return counters()[slot(tagOf(l))] }

// tagOfSlot is a hash tag of a slot, in braces.
func tagOfSlot(s uint16) string { return counters()[s][len(counterKey)-1:] }

// slotCount is the number of slots of a Redis Cluster.
const slotCount = 16384

// counters names the fence counter of each slot after the smallest decimal number that hashes into the slot, so that any
// client in any language finds it. Made once, on first use.
var counters = sync.OnceValue(func() *[slotCount]string {
	var names [slotCount]string
	for n, found := 0, 0; found < slotCount; n++ {
		tag := strconv.Itoa(n)
		if s := slot(tag); names[s] == "" {
			names[s] = counterKey + tag + "}"
			found++
		}
	}
	return &names
})

// slot is the cluster slot of a hash tag: CRC16 (XMODEM) modulo the number of slots, as the Redis Cluster specification
// defines it.
func slot(tag string) uint16 {
	var crc uint16
	for i := range len(tag) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^tag[i]]
	}
	return crc % slotCount
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
