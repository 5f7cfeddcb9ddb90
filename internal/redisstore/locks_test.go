package redisstore_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) {
	locktest.RunTogether()
	redistest.Main(m)
}

// Tests of other packages use these helpers as well.
var (
	acquire, release = locktest.Acquire, locktest.Release
	wantErr, wantNot = locktest.WantErr, locktest.WantNot
	lost             = locktest.Lost
	newSingle        = locktest.Single
	newReadWrite     = locktest.ReadWrite
	eventually       = locktest.Eventually
	asks, queues     = locktest.Asks, locktest.Queues
	inLine           = locktest.Queued
	through          = locktest.Through
	scriptsRun       = locktest.ScriptsRun
	nothingLeftBut   = locktest.NothingLeftBut
)

// ackedStore makes the Store that locker.New uses with WithReplicaAck.
func ackedStore(c locker.Client, n int, timeout time.Duration) (store.Store, error) {
	return redisstore.New(c, redisstore.Settings{Acks: redisstore.Acks{Replicas: n, Within: timeout}})
}

// scriptSHA returns the SHA-1 under which a server knows a script.
func scriptSHA(name string) string { return locktest.SHA(redisstore.ScriptTexts[name]) }

// A program in FIPS 140-only mode may not compute a SHA-1, so the digests are in a file.
func TestTheDigestsAreThoseOfTheScripts(t *testing.T) {
	locktest.CheckDigests(t, "lua/digests", redisstore.ScriptTexts)
}

type pending = locktest.Pending
