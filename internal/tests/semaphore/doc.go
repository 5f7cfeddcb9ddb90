// Package semaphore is a simulator of the semaphore's protocol: one key on one server, and
// processes whose callers take units of it. Time is virtual, and a seed determines the whole run.
//
// The server follows the scripts sem_*.lua, and the processes follow the engine. They queue, trust
// a grant by message only while it is fresh, renew, repeat calls without a reply, undo, and pass
// their permits on among their callers. Calls and messages are delayed and lost, processes stop and
// die, clocks run at different rates and step, keys are evicted, and other programs lock the key.
//
// The run counts violations:
//
//	over       more units are held, by the holders' own clocks, than the n of one of them allows
//	fences     a fence comes twice
//	undone     a token is granted units after it was given back
//	overtaken  a newcomer is granted units while others wait
//	idle       how long a waiter that lives has waited at most beside units that are free for it
//	left       what is left on the server when all callers have gone
//
// Every rule of the protocol is a switch ([Rule]), and with any one of them off, one of these must
// show it.
//
// The steps of this server are compared, one by one, with what the scripts answer and tell on a
// real server, and with lockertest's Memory. So a simulation of another protocol than the real one
// fails. Histories are drawn at random, and must see each rule of the server's that is left out.
//
//	go test ./semaphore             the ordinary run: seconds
//	go test ./semaphore -runs 500   a campaign
//	go test ./semaphore -run 'InMemory|OnRedis' -rapid.checks 20000
//
// Where to begin: server.go is what the scripts do, process.go and process_ticket.go what the
// engine does.
package semaphore
