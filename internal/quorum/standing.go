package quorum

import (
	"errors"
	"fmt"
	"time"
)

// Why a node does not vote.
var (
	errUnknown      = errors.New("it was not asked yet whether it may vote")
	errMayForget    = errors.New("it may have forgotten leases")
	errBehindSet    = errors.New("it has to learn of a change of its set first")
	errReplaced     = errors.New("another server has taken its seat in the set; call ReplaceNode to bring it back")
	errClockStepped = errors.New("its clock was seen to step, so it may have dropped leases too early, and does not vote until all of them are over; slew clocks, do not step them")
	errForms        = errors.New("fewer than half of the nodes are known to remember their leases, so all of them must answer and become a set anew; start the nodes that do not answer")
	errOtherVotes   = errors.New("the nodes have just changed, and it has voted under another list of servers than the others")
	errEvicts       = errors.New("it may evict keys, and with them leases, so it does not vote; set its maxmemory-policy to noeviction")
)

func errJoins(left time.Duration) error {
	return fmt.Errorf("it may have forgotten leases, because it is new, was restarted, emptied or replaced; it does not vote for another %v (when none of the nodes was ever used, declare that with EnrollRedlock)", max(left, 0).Round(time.Second/10))
}
