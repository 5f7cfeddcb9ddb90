// Package readers is a model of phase-fair readers and writers on one Redis node, and compares with
// it, step by step, what the Stores answer: lockertest's, and the scripts on a real server.
//
// The model is a second description of the protocol, short enough to be read beside the scripts:
// the holder of the key, the readers of the phase and their ends, the order of the waiters, and the
// replies and messages of each step. Histories are played on it at random: processes that come and
// are killed, tokens whose acquires are repeated or run late, parts that run out, writers without
// readers and other libraries on the same key, operators who break a phase, servers that evict
// keys. A watch checks only the answers that callers see, and reports what must never happen:
//
//	alone        a writer holds beside anybody else
//	fences       a phase has two, or a later holder a smaller one, or its own changes
//	promise      a lease is gone before its time
//	reason       a caller is refused although no holder is in its way; a dead holder
//	             costs no more than its own TTL
//	fair         a reader enters while a writer waits, or waits for more than one writer,
//	             or a writer waits for more phases than it has to
//	dead         a process that lets its turn lapse is granted the key again before it is heard of
//	idle         a key is free, or a phase open, and a waiter with an inbox is not notified
//	told         readers are not notified that a writer waits
//	undone       a token is granted the key after it was undone
//	left         something stays when all have gone
//
// Every rule of the protocol is a switch ([Rule]), and with any one of them off an invariant must
// break in the model, and the model must differ from the Stores: otherwise these histories detect
// too little, or the rule is not needed.
//
//	go test ./readers                               the ordinary run
//	go test ./readers -rapid.checks 20000           a campaign
//	go test ./readers -run TestRules -tally -v      how often each rule is missed, and by whom
//
// Where to begin: model.go and model_release.go are what the server does, phases.go whose turn it
// is, watch.go what must be true, watch_answers.go what each answer must be.
package readers
