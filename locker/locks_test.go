package locker_test

import "github.com/latchkit/latchkit/internal/locktest"

// The functions below are also used by the tests of other packages.
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

// goroutines returns the stacks of all goroutines in the engine, without those of tests.
func goroutines() []string { return locktest.Goroutines("locker") }
