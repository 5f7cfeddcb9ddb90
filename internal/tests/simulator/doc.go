// Package simulator tests the waiting protocol of a lock on one Redis node under faults, on virtual
// time. It is a discrete-event simulation of the server's scripts, of the engines that call them,
// and of the network between them. It runs a million events per second, and the same seed gives the
// same events.
//
// It is a second, short description of the protocol, to be read beside the first. It answers two
// questions that tests on a real server cannot answer: does the protocol hold under the
// interleavings of a few million events, and is each of its rules needed? For the second question,
// every rule is a switch ([Rule]), and with any one of them off an invariant must break.
//
//	go test ./simulator                                        the ordinary run
//	go test ./simulator -run TestProtocol -simulate 1h         a campaign: fresh seeds for an hour
//	go test ./simulator -run TestProtocol/rough -seed 7 -runs 1   one run, with its trace
//	go test ./simulator -run TestRules/undo -v                 what breaks without a rule, and how
//
// Where to begin: server.go and scripts.go are what Redis does, hold.go and hold_release.go are the
// life of a token in an engine, room.go the queue inside a process, invariants.go what must be
// true. Scenarios are listed in scenario.go.
package simulator
