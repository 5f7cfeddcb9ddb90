// Package simulator tests the waiting protocol of a lock on one Redis node under faults, on virtual
// time. It is a discrete-event simulation of the server's scripts, of the engines that call them,
// and of the network between them. It runs a million events per second, and the same seed gives the
// same events.
//
// The simulation is a second, short implementation of the protocol. It answers two questions that
// tests on a real server cannot answer. Do the invariants hold in the interleavings of a few
// million events? Is each rule of the protocol necessary? For the second question, a run can
// leave out one rule ([Rule]): if the rule is necessary, an invariant breaks.
//
//	go test ./simulator                                        the ordinary run
//	go test ./simulator -run TestProtocol -simulate 1h         a campaign: fresh seeds for an hour
//	go test ./simulator -run TestProtocol/rough -seed 7 -runs 1   one run, with its trace
//	go test ./simulator -run TestRules/undo -v                 what breaks without a rule, and how
//
// Where to begin: server.go and scripts.go simulate Redis. hold.go and hold_release.go have the
// life of a token in an engine. room.go has the queue inside a process, and invariants.go has the
// invariants. scenario.go lists the scenarios.
package simulator
