// Bench measures what locks cost. It compares latchkit with other libraries, and with the bare
// commands that every lock needs. It reports which targets are reached.
//
//	go run -C bench . -all                   everything, half an hour on 2 processors
//	go run -C bench . -all -out RESULTS.md   the same, into bench/RESULTS.md
//	go run -C bench . -row P3                one row
//
// A row (row_p1.go and so on) tests one claim about locks. In a row, contestants (lock_*.go)
// take turns, in separate processes and on a separate redis-server. The row compares the
// contestants of one round with each other, because a slow machine slows all contestants of the
// round.
//
// The parts of the child processes are in crew.go (many workers), duet.go (two processes that hand
// a lock back and forth), hoard.go (many leases), inherit.go (a holder that is killed) and
// heads.go (a semaphore whose first waiter does not react).
package main
