package quorum

import (
	"errors"
	"fmt"
	"time"
)

// Reasons why a node does not vote.
var (
	errUnknown      = errors.New("it is not known yet whether the node may vote")
	errMayForget    = errors.New("the node may have forgotten leases")
	errBehindSet    = errors.New("the node does not know the latest change of its set yet")
	errReplaced     = errors.New("another server has taken the node's seat in the set; call ReplaceNode to bring the node back")
	errClockStepped = errors.New("the node's clock has jumped, so the node may have dropped leases too early; it votes again when all leases have ended; let the time service slew the clock instead of stepping it")
	errForms        = errors.New("fewer than half of the nodes are known to remember their leases; all nodes must answer to form a new set; start the nodes that do not answer")
	errOtherVotes   = errors.New("the set of nodes has just changed, and the node has voted under another list of servers than the other nodes")
	errEvicts       = errors.New("the node may evict keys, which would delete leases, so it does not vote; set its maxmemory-policy to noeviction")
)

// errJoins returns the reason for a node that may have forgotten leases and does not vote for the
// time remaining.
func errJoins(remaining time.Duration) error {
	return fmt.Errorf("the node may have forgotten leases, because it is new or was restarted, emptied or replaced; it does not vote for another %v (if none of the nodes was ever used, declare that with EnrollRedlock)", max(remaining, 0).Round(time.Second/10))
}
