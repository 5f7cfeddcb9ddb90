// Package quorum simulates how a quorum of independent nodes grants a lock and its fence. It plays
// random schedules of votes, confirmations, releases and expiries. Messages are lost, late or
// repeated, clients die, clocks differ, and nodes lose their data. Ten million steps take a few
// seconds.
//
// The simulation is a second, short description of the rules, which can be read beside the
// scripts. It also shows that each rule is necessary: when any one rule is switched off ([Rule]),
// an invariant must break.
//
//	go test ./quorum                                   the ordinary run
//	go test ./quorum -run TestTheRules -steps 1e9      a campaign
//
// The invariants hold for the leases that clients were granted, in every schedule:
//
//	unique     no two leases have the same fence
//	forward    a lease that was granted before another was requested has the smaller fences
//	in order   of two leases with a vote of the same node, the earlier has the smaller fences
//	alone      no two clients believe at once that they hold the key, as long as clocks are right
package quorum
