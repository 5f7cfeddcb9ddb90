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
	errClockStepped = errors.New("the node's clock has stepped, so the node may have dropped leases too early; it does not vote until all leases are over; slew clocks, do not step them")
	errForms        = errors.New("fewer than half of the nodes are known to remember their leases, so all nodes must answer and form a set anew; start the nodes that do not answer")
	errOtherVotes   = errors.New("the set of nodes has just changed, and the node has voted under another list of servers than the other nodes")
	errEvicts       = errors.New("the node may evict keys, and with them leases, so it does not vote; set its maxmemory-policy to noeviction")
)

func errJoins(left time.Duration) error {
	return fmt.Errorf("the node may have forgotten leases, because it is new or was restarted, emptied or replaced; it does not vote for another %v (if none of the nodes was ever used, declare that with EnrollRedlock)", max(left, 0).Round(time.Second/10))
}
