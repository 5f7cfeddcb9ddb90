// Package readers has a model of phase-fair readers and writers on one Redis node. It plays the
// same steps on the model and on two Stores, and compares the answers. One Store is lockertest's
// Memory, and the other Store runs the scripts on a real server.
//
// The model is a second description of the protocol, so short that it can be read beside the
// scripts. The model has the holder of the key, the readers of the phase, and the ends of their
// leases. It also has the order of the waiters, and computes the replies and messages of each step.
// Random histories are played on the model. In these histories, processes start and are killed,
// acquires are repeated or run late, and the leases of single readers expire. Lockers without
// readers and other libraries use the same key, operators revoke phases, and servers evict
// keys. A watch checks the answers that callers get, and reports these violations:
//
//	alone        a writer and another owner hold the key at once
//	fences       a phase has two fences, a later holder has a smaller fence, or a fence changes
//	promise      a lease is gone before its time
//	reason       a caller is refused although no holder is in its way; a dead holder
//	             costs no more than its own TTL
//	fair         a reader enters while a writer waits, or waits for more than one writer,
//	             or a writer waits for more phases than it has to
//	dead         a process that lets its turn lapse gets the key again before it makes a call
//	idle         a key is free, or a phase open, and a waiter with an inbox is not notified
//	told         readers are not notified that a writer waits
//	undone       a token is granted the key after it was undone
//	left         an entry stays on the server when all owners have gone
//
// Every rule of the protocol can be switched off ([Rule]). When one rule is switched off, an
// invariant must break in the model, and the model must differ from the Stores. If neither
// happened, the histories would detect too little, or the rule would not be necessary.
//
//	go test ./readers                               the ordinary run
//	go test ./readers -rapid.checks 20000           a campaign
//	go test ./readers -run TestRules -tally -v      how often each rule is missed, and by whom
//
// Where to begin: model.go and model_release.go have the steps of the server, and phases.go decides
// which owners get the key next. watch.go has the invariants, and watch_answers.go has the checks
// of each answer.
package readers
