package redisstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// serverError is an error reply, like those that go-redis returns.
type serverError string

func (e serverError) Error() string { return string(e) }

func (serverError) RedisError() {}

func TestEveryErrorOfTheServerIsSortedAndNoneIsBusy(t *testing.T) {
	const refused, temporary, unclear = "refused", "temporary", "unclear"
	for text, want := range map[string]string{
		"LOADING Redis is loading the dataset in memory":                                                    temporary,
		"READONLY You can't write against a read only replica.":                                             temporary,
		"CLUSTERDOWN The cluster is down":                                                                   temporary,
		"MASTERDOWN Link with MASTER is down":                                                               temporary,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                           temporary,
		"BUSY Redis is busy running a script.":                                                              temporary,
		"MOVED 3999 127.0.0.1:6381":                                                                         temporary,
		"ASK 3999 127.0.0.1:6381":                                                                           temporary,
		"ERR max number of clients reached":                                                                 temporary,
		"OOM command not allowed when used memory > 'maxmemory'.":                                           refused,
		"NOAUTH Authentication required.":                                                                   refused,
		"WRONGPASS invalid username-password pair or user is disabled.":                                     refused,
		"ERR Protocol error: unauthenticated multibulk length":                                              refused,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                  refused,
		"MISCONF Redis is configured to save RDB snapshots":                                                 refused,
		"NOREPLICAS Not enough good replicas to write.":                                                     refused,
		"WRONGTYPE Operation against a key holding the wrong kind of value script: abc, on @user_script:1.": refused,
		"ERR Error running script (call to f_abc): @user_script:12: -READONLY You can't write against a read only replica.":                               temporary,
		"ERR Error running script (call to f_abc): @user_script: 12: WRONGTYPE Operation against a key holding the wrong kind of value":                   refused,
		"ERR Error compiling script (new function): :26: READONLY You can't write against a read only replica. stack traceback:  [G]: in function 'call'": temporary,
		"upstream failure":              unclear,
		"ERR unknown command 'evalsha'": refused,
		"ERR Error running script (call to f_abc): @user_script:3: Script killed by user with SCRIPT KILL... abc": refused,
	} {
		check(t, text, redisstore.Refused(serverError(text)), want)
	}
	dial := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for err, want := range map[error]string{
		dial: temporary, redis.ErrPoolTimeout: temporary, redis.ErrPoolExhausted: temporary, redis.ErrClosed: refused,
		io.EOF: unclear, io.ErrUnexpectedEOF: unclear, os.ErrDeadlineExceeded: unclear, context.Canceled: unclear,
		context.DeadlineExceeded: unclear, &net.OpError{Op: "read", Err: io.EOF}: unclear,
	} {
		check(t, err.Error(), redisstore.Refused(err), want)
	}
}

// AWS Serverless moves data under load, and its nodes say so in these words.
func TestTheWordsForDataThatMovesMakeACallComeAgain(t *testing.T) {
	for _, text := range []string{
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR Script attempted to access a non local key in a cluster node script: abc, on @user_script:1.",
		"ERR Error running script (call to f_abc): @user_script:12: @user_script: 12: Script attempted to access a non local key in a cluster node",
	} {
		err := redisstore.Refused(serverError(text))
		check(t, text, err, "temporary")
		if !errors.Is(err, store.ErrMoving) {
			t.Errorf("%q became %v", text, err)
		}
	}
	if err := redisstore.Refused(serverError("ERR Script attempted to access keys that do not hash to the same slot")); errors.Is(err, store.ErrMoving) {
		t.Errorf("keys of two slots: %v", err)
	}
}

func check(t *testing.T, text string, err error, want string) {
	t.Helper()
	got := "unclear"
	if no, ok := errors.AsType[*store.Refusal](err); ok {
		got = "refused"
		if no.Temporary {
			got = "temporary"
		}
	}
	if got != want {
		t.Errorf("%q is %s, want %s", text, got, want)
	}
	if errors.Is(err, locker.ErrBusy) || errors.Is(err, locker.ErrLost) {
		t.Errorf("%q became %v", text, err)
	}
}

// An error of the server that an operator or a developer must act on says what to do.
func TestARefusalSaysWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"READONLY You can't write against a read only replica.":                                                                     "master",
		"MOVED 3999 127.0.0.1:6381":                                                                                                 "*redis.ClusterClient",
		"ERR max number of clients reached":                                                                                         "maxclients",
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                           "docs/operations.md",
		"NOPERM this user has no permissions to run the 'eval' command":                                                             "docs/operations.md lists, or use locker.NewScriptless",
		"NOPERM this user has no permissions to run the 'evalsha' command or its subcommand":                                        "docs/operations.md lists, or use locker.NewScriptless",
		"ERR The user executing the script can't run this command or subcommand script: abc":                                        "docs/operations.md",
		"ERR ACL failure in script: User locks has no permissions to run the 'time' command script: abc":                            "docs/operations.md",
		"ERR unknown command 'eval', with args beginning with: ":                                                                    "locker.NewScriptless",
		"ERR command eval not support for normal user":                                                                              "locker.NewScriptless",
		"ERR bad lua script for redis cluster, all the keys that the script uses should be passed":                                  "locker.NewScriptless",
		"ERR Unknown Redis command called from script script: abc, on @user_script:1.":                                              "locker.NewScriptless",
		"ERR Error running script (call to f_abc): @user_script:12: @user_script: 12: Unknown Redis command called from Lua script": "locker.NewScriptless",
		"ERR unknown command 'wait', with args beginning with: '1'":                                                                 "WithReplicaAck",
		"ERR unknown command `info`, with args beginning with: ":                                                                    "locker.NewRedlock",
	} {
		if err := redisstore.Refused(serverError(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q becomes %v, want %s", text, err, want)
		}
	}
}
