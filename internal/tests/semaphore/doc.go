// Package semaphore is a simulator of the semaphore's protocol. It has one key on one server, and
// processes whose callers take units of the key. Time is virtual, and a seed determines the whole
// run.
//
// The server does what the scripts sem_*.lua do, and the processes do what the engine does. The
// processes queue, and trust a grant by message only while it is fresh. They renew permits, repeat
// calls that got no reply, undo acquires, and pass permits on from caller to caller. Calls and
// messages are delayed and lost. Processes stop and die. Clocks run at different rates, and step.
// Keys are evicted, and other programs lock the key.
//
// The run counts violations:
//
//	over       by the holders' own clocks, more units are held than the n of one holder allows
//	fences     two grants have the same fence
//	undone     a token is granted units after it was given back
//	overtaken  a newcomer is granted units while other callers wait
//	idle       the longest time that a living waiter waits while enough units are free for it
//	left       the entries that are left on the server when all callers have gone
//
// Every rule of the protocol can be left out ([Rule]). When one rule is left out, one of these
// numbers must become larger than it can be with all rules.
//
// The tests also compare this server, step by step, with the scripts on a real server and with
// lockertest's Memory. All replies and messages must be equal. So a test fails if the protocol
// of the simulation differs from the real protocol. The steps are chosen at random. If the
// simulated server leaves a rule out, the comparison must fail.
//
//	go test ./semaphore             the ordinary run: seconds
//	go test ./semaphore -runs 500   a campaign
//	go test ./semaphore -run 'InMemory|OnRedis' -rapid.checks 20000
//
// Where to begin: server.go does what the scripts do. process.go and process_ticket.go do what the
// engine does.
package semaphore
