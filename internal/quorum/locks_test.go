package quorum_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/quorum"
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
	eventually       = locktest.Eventually
	asks             = locktest.Asks
	deadNode         = locktest.DeadServer
)

// goroutines returns the stacks of all goroutines that run code of package locker, without its
// tests.
func goroutines() []string { return locktest.Goroutines("locker") }

// nodeTimeout is the default of locker.WithNodeTimeout.
const nodeTimeout = 500 * time.Millisecond

// quorumStore makes the Store that locker.NewRedlock uses. The parameter patience is how long a
// step waits for a node.
func quorumStore(cs []locker.Client, patience time.Duration) store.Store {
	return quorum.New(nodesOf(cs), settings(patience))
}

func settings(patience time.Duration) quorum.Settings {
	return quorum.Settings{MaxSkew: 500 * time.Millisecond, MaxTTL: time.Minute, NodeTimeout: patience}
}

func nodesOf(cs []locker.Client) (nodes []redisstore.Client) {
	for _, c := range cs {
		nodes = append(nodes, c)
	}
	return nodes
}

// scriptSHA returns the SHA-1 under which a server knows a script.
func scriptSHA(name string) string { return locktest.SHA(quorum.ScriptTexts[name]) }

// A program in FIPS 140-only mode may not compute a SHA-1, so the digests are in a file.
func TestTheDigestsAreThoseOfTheScripts(t *testing.T) {
	locktest.CheckDigests(t, "lua/digests", quorum.ScriptTexts)
}

// loadScripts loads the scripts into a node, so that no call gets NOSCRIPT.
func loadScripts(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	locktest.LoadScripts(t, client, quorum.ScriptTexts)
}
