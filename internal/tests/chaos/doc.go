// Package chaos attacks latchkit as a stranger would. Several processes lock keys by the public API
// and write into a database under these locks, while a nemesis stops, kills and empties servers and
// processes, cuts and delays connections, and moves masters, slots and clocks. Each process writes
// what it saw into a history, by the one monotonic clock of the machine. A checker reads all
// histories and the database.
//
//	make chaos                                    some minutes, on one server in turn
//	make soak                                     hours, and docs/faults.md
//	go test ./chaos -run TestChaos -seed 7 -v     the rounds of one seed again
//
// Some troubles are mild, but last for longer than a lease: a server whose answers take a third of
// a second, or a process with little CPU time. They have a test without rounds.
//
// Each round has one topology and one kind of lock, and a seed from which its faults follow. A run
// counts only if enough has happened in it. And in the controls, where one rule is left out, the
// same checker must find violations.
package chaos
