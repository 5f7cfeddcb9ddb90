package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// checkNoSecrets fails the test if text, the output of the command what, contains one of the
// tokens.
func checkNoSecrets(t *testing.T, what, text string, tokens []string) {
	t.Helper()
	for _, token := range tokens {
		if strings.Contains(text, token) {
			t.Errorf("%s has printed the secret %q:\n%s", what, token, text)
		}
	}
}

// doctor, break and run do not print the tokens of holders and waiters. Another test checks
// the output of ls and show.
func TestNoCommandPrintsATokenOrAnInbox(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := site{nodes: []string{"redis://" + server.Addr()}, direct: []*redis.Client{server.Client(t)}, locker: func(t *testing.T) *locker.Engine { return locktest.Single(t, server.Client(t)) }}
	lease := s.lockedAndWaitedFor(t, "order:canary")
	tokens := s.tokens(t, "order:canary")

	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		found := call(t, s.nodes, args...)
		checkContains(t, found.out, "1 are held")
		checkNoSecrets(t, strings.Join(args, " "), found.out+found.err, tokens)
	}

	busy := exits(t, 1, s.nodes, "run", "order:canary", "-n", "--", "true")
	checkContains(t, busy.err, "another holder has")
	checkNoSecrets(t, "run of a busy key", busy.out+busy.err, tokens)

	fence := strconv.FormatUint(lease.Fence(), 10)
	wrong := exits(t, 1, s.nodes, "break", "order:canary", "--fence", "7", "--reason", "a drill", "--yes")
	broken := exits(t, 0, s.nodes, "break", "order:canary", "--fence", fence, "--reason", "a drill", "--yes")
	checkContains(t, broken.out, "broken: fence "+fence)
	checkNoSecrets(t, "break", wrong.out+wrong.err+broken.out+broken.err, tokens)
}

// latchctl run gives its command the key and the fence in the environment. The environment does
// not contain the token, because a program that knows the token could release or extend the
// lock.
func TestTheCommandOfRunDoesNotLearnTheToken(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	env := startRun(t, nodes, "env > all; mv all env; exec sleep 100").file("env")
	token, _, _ := strings.Cut(c.Get(t.Context(), "job").Val(), ":")
	if len(token) < 20 {
		t.Fatalf("%q is no token", token)
	}
	checkContains(t, env, "LATCHKIT_KEY=job", "LATCHKIT_FENCE=")
	checkNoSecrets(t, "the command's environment", env, []string{token})
}
