// Package quorum simulates how a quorum of independent nodes grants a lock and its fence, and how
// each node keeps itself out while it may have forgotten leases. It plays random schedules of votes,
// confirmations, releases and expiries. Messages are lost, late or repeated, clients die, nodes lose
// their data or come back with an older copy, and clocks step. Ten million steps take a few seconds.
//
// The simulation is a second, short description of the rules, which can be read beside the scripts.
// It also shows that each rule is necessary: when any one rule is left out ([Rule]), an invariant
// breaks. The schedules with a name play one order of events step by step.
//
//	go test ./internal/tests/quorum                                   the ordinary run
//	go test ./internal/tests/quorum -run TestTheRules -steps 1e9      a campaign
//
// The invariants hold for the leases that clients were granted, in every schedule:
//
//	alone    no two clients believe at once that they hold the key
//	forward  a lease that was granted before another was requested has the smaller fences
//	clean    a node gives no vote to a token whose release it has executed
package quorum
