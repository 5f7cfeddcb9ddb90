// Bench measures what locks cost, ours beside other libraries and beside the bare
// commands that nobody can do without, and says which of our targets are reached.
//
//	go run -C bench . -all                   everything, some 8 minutes on 2 processors
//	go run -C bench . -all -out RESULTS.md   the same, into bench/RESULTS.md
//	go run -C bench . -row P3                one row
//
// A row (row_p1.go and so on) is one claim. It lets contestants (lock_*.go) take
// turns, in processes of their own, on a redis-server of its own, and judges
// ratios within a round: a machine that slows down slows all of them.
//
// What the children of the bench do stands in crew.go (many workers), duet.go (two
// processes that hand a lock to and fro), hoard.go (many leases) and inherit.go (a
// holder that is killed).
package main
