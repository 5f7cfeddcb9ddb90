package locker_test

import "github.com/latchkit/latchkit/internal/locktest"

// Tests of other packages use the functions below as well.
var (
	acquire, release = locktest.Acquire, locktest.Release
	wantErr, wantNot = locktest.WantErr, locktest.WantNot
	lost             = locktest.Lost
	newSingle        = locktest.Single
	newReadWrite     = locktest.ReadWrite
	newSemaphore     = locktest.Semaphore
	eventually       = locktest.Eventually
	within           = locktest.Within
	asks, queues     = locktest.Asks, locktest.Queues
	inLine           = locktest.Queued
	through          = locktest.Through
	scriptsRun       = locktest.ScriptsRun
	nothingLeftBut   = locktest.NothingLeftBut
)

const (
	slack      = locktest.Slack
	stuckAfter = locktest.StuckAfter
)

type pending = locktest.Pending

// goroutines returns the stacks of all goroutines that run code of the engine. It leaves out
// goroutines of tests.
func goroutines() []string { return locktest.Goroutines("locker") }

func ended(stop chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
