// Bench measures what an uncontended lock costs: one goroutine acquires and
// releases over a real redis-server, which it starts itself.
//
//	go run -C bench .
//
// Beside latchkit run two other libraries and the floor: the two commands that
// nobody who locks on Redis can do without. All have a client of their own with
// go-redis's defaults, the same server and the same TTL. They take turns (A B C
// A B C …), so that a machine that slows down slows all of them, and what counts
// is the ratio to the floor of the same round: a bare time says more about the
// machine than about the lock.
//
// On several cores round trips run at two speeds, as client and server share a
// core or do not. Pinned to one they do not: taskset -c 0 go run -C bench .
package main
