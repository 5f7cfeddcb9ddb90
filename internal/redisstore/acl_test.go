package redisstore_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
)

// documentedUser reads docs/operations.md. It returns the words of the documented command
// `ACL SETUSER locks …` for the server of the client c, and the further permissions that the user
// needs on a Cluster.
func documentedUser(t *testing.T, c *redis.Client) (words, onACluster []any) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "ACL SETUSER locks ")
	list, rest, _ := strings.Cut(rest, "```")
	_, rest, _ = strings.Cut(rest, "On a Cluster add `")
	more, _, ok := strings.Cut(rest, "`")
	if !ok {
		t.Fatal("docs/operations.md has no such list")
	}
	words = []any{"acl", "setuser", "locks"}
	for word := range strings.FieldsSeq(list) {
		words = append(words, word)
	}
	for word := range strings.FieldsSeq(more) {
		onACluster = append(onACluster, word)
	}
	_, rest, _ = strings.Cut(rest, "since Redis 7.2 add `")
	identity, _, ok := strings.Cut(rest, "`")
	if !ok {
		t.Fatal("docs/operations.md has no permission for servers since Redis 7.2")
	}
	// COMMAND INFO of an unknown command is nil.
	if known, err := c.Do(t.Context(), "command", "info", "client|setinfo").Slice(); err == nil && len(known) == 1 && known[0] != nil {
		words = append(words, identity)
	}
	return words, onACluster
}

// A user with the documented rights can use Lockers without readers, with readers, and with
// permits: acquire, extend, wait, release, take several keys at once, and share a key. The server
// counts the calls that it has refused.
func TestAUserForLocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	words, _ := documentedUser(t, admin)
	if err := admin.Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	as := func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }
	readWrite, err := locker.NewReadWrite(server.Client(t, as))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = readWrite.Close(context.Background()) })
	permits := locktest.Semaphore(t, server.Client(t, as), 1)
	opened, err := locker.Open("redis://locks:secret@" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close(context.Background()) })
	for name, l := range map[string]*locker.Engine{
		"single": newSingle(t, server.Client(t, as)), "readers": readWrite, "permits": permits, "opened": opened,
	} {
		rule := locker.Rule{Key: "order:" + name, OnceFor: time.Minute}
		holder := acquire(t, l, rule)
		waiting := newSingle(t, server.Client(t, as))
		if name == "permits" {
			waiting = locktest.Semaphore(t, server.Client(t, as), 1)
		}
		waiter := queues(t, waiting, locker.Rule{Key: "order:" + name}, admin)
		if err := holder.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("%s: extend: %v", name, err)
		}
		release(t, holder)
		release(t, waiter.Granted(5*time.Second))
		rules := []locker.Rule{{Key: "order:a" + name}, {Key: "order:b" + name}}
		if err := locker.RunAll(t.Context(), l, rules, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: RunAll: %v", name, err)
		}
	}
	release(t, acquire(t, readWrite, locker.Rule{Key: "order:shared", Mode: locker.Shared}))
	two := acquire(t, permits, locker.Rule{Key: "order:units", Limit: 3, Weight: 2, KeepFor: time.Second})
	release(t, acquire(t, permits, locker.Rule{Key: "order:units", Limit: 3}))
	release(t, two)
	if refused := admin.ACLLog(t.Context(), 10).Val(); len(refused) > 0 {
		t.Errorf("the server refused: %+v", refused[0])
	}
}

// Without any one of the documented commands, the server refuses something of what Lockers of all
// kinds do.
func TestEachDocumentedRightIsNeeded(t *testing.T) {
	t.Parallel()
	probe := redistest.Start(t).Client(t)
	words, _ := documentedUser(t, probe)
	removed := 0
	for _, word := range words {
		right, isRight := strings.CutPrefix(word.(string), "+")
		if !isRight {
			continue
		}
		removed++
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			if refused := refusals(t, words, "-"+right); refused == 0 {
				t.Errorf("nothing was refused without +%s: it is not needed", right)
			}
		})
	}
	if removed < 30 {
		t.Errorf("only %d rights were removed", removed)
	}
	t.Run("with all", func(t *testing.T) {
		t.Parallel()
		if refused := refusals(t, words); refused > 0 {
			t.Errorf("%d calls were refused", refused)
		}
	})
}

// refusals runs a short program with Lockers of all kinds as the given user, with a change of its
// rights. It returns how often the servers refused a command.
func refusals(t *testing.T, user []any, change ...any) (refused int) {
	t.Helper()
	var admins []*redis.Client
	var nodes, asAdmin []locker.Client
	for range 3 {
		server := redistest.Start(t)
		admin := server.Client(t)
		if err := admin.Do(t.Context(), append(slices.Clone(user), change...)...).Err(); err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "locks", Password: "secret", MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		admins, nodes, asAdmin = append(admins, admin), append(nodes, client), append(asAdmin, admin)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	quick := []locker.QuorumOption{locker.WithMaxTTL(30 * time.Second)}
	_ = locker.EnrollRedlock(ctx, asAdmin, quick...) // an operator does this, who may scan
	for _, open := range []func() (*locker.Engine, error){
		func() (*locker.Engine, error) {
			return locker.Open("redis://locks:secret@" + nodes[0].(*redis.Client).Options().Addr)
		},
		func() (*locker.Engine, error) { return locker.New(nodes[0]) },
		func() (*locker.Engine, error) { return locker.NewReadWrite(nodes[0]) },
		func() (*locker.Engine, error) { return locker.NewSemaphore(nodes[0], 2) },
		func() (*locker.Engine, error) { return locker.NewRedlock(nodes, quick...) },
	} {
		one, err := open()
		if err != nil {
			t.Fatal(err)
		}
		two, err := open()
		if err != nil {
			t.Fatal(err)
		}
		visitEverything(ctx, one, two)
		for _, l := range []*locker.Engine{one, two} {
			closing, done := context.WithTimeout(context.Background(), time.Second)
			_ = l.Close(closing)
			done()
		}
		for _, admin := range admins {
			refused += len(admin.ACLLog(t.Context(), 100).Val())
		}
		if refused > 0 {
			return refused
		}
	}
	// A waiter asks again after a second, and a subscription that hears nothing for nine seconds asks
	// the server whether it is there.
	wait := 2 * time.Second
	if len(change) == 0 || change[0] == "-ping" {
		wait = 10 * time.Second
	}
	one, err := locker.New(nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close(context.Background()) })
	two, err := locker.New(nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = two.Close(context.Background()) })
	if lease, err := one.Acquire(ctx, locker.Rule{Key: "order:5"}); err == nil {
		_, _ = two.Acquire(ctx, locker.Rule{Key: "order:5", Wait: wait})
		_ = lease.Release(ctx)
	}
	return len(admins[0].ACLLog(t.Context(), 100).Val())
}

// visitEverything uses two Lockers of one kind, and ignores all errors: the caller counts refusals.
func visitEverything(ctx context.Context, one, two *locker.Engine) {
	try := func(l *locker.Engine, rule locker.Rule, then func(*locker.Lease)) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if lease, err := l.Acquire(ctx, rule); err == nil {
			if then != nil {
				then(lease)
			}
			_ = lease.Release(ctx)
		}
	}
	for _, mode := range []locker.Mode{locker.Exclusive, locker.Shared} {
		rule := locker.Rule{Key: "order:1", Mode: mode, TTL: 200 * time.Millisecond}
		try(one, rule, func(lease *locker.Lease) {
			_ = lease.Extend(ctx, time.Second)
			waiting := make(chan struct{})
			for range 2 {
				go func() {
					try(two, locker.Rule{Key: "order:1", Wait: 700 * time.Millisecond, OnceFor: time.Second}, nil)
					waiting <- struct{}{}
				}()
			}
			<-time.After(300 * time.Millisecond) // the lease is renewed, and the others wait
			_, _ = one.Inspect(ctx, "order:1")
			_ = lease.Complete(ctx)
			<-waiting
			<-waiting
		})
	}
	try(one, locker.Rule{Key: "order:2", KeepFor: 100 * time.Millisecond}, func(lease *locker.Lease) {
		try(two, locker.Rule{Key: "order:2", Wait: locker.NoWait}, nil)
		_ = two.Revoke(ctx, "order:2", lease.Fence(), "test")
	})
	_ = locker.RunAll(ctx, one, []locker.Rule{{Key: "order:3"}, {Key: "order:4"}}, func(context.Context) error { return nil })
}

// The documented line is one line. Pasted into redis-cli, it makes a user that can take locks and
// store responses, with a prefix that is not the user's refused.
func TestTheACLLineWorksWhenPasted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER locks .*$`).FindString(string(text))
	server := redistest.Start(t)
	cli := exec.CommandContext(t.Context(), "redis-cli", "-p", strconv.Itoa(server.Port()))
	cli.Stdin = strings.NewReader(line + "\n")
	if out, err := cli.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "OK" {
		t.Fatalf("redis-cli: %v: %s", err, out)
	}
	client := server.Client(t, func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "locks", "secret", true })
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "order:1"}))
	if _, err := l.Acquire(t.Context(), locker.Rule{Key: "other:1"}); err == nil {
		t.Error("the user locked a key that is not its own")
	}
	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewRedis(client)}
	request := idempotency.Request{Rule: locker.Rule{Key: key.Of("idempotency", "customer-7", "5f2c")}}
	for i := range 2 {
		answer, err := keeper.Do(t.Context(), request, func(context.Context) idempotency.Outcome {
			return idempotency.Outcome{Response: idempotency.Response{Status: 201}, Keep: true}
		})
		if err != nil || answer.Replayed != (i == 1) {
			t.Errorf("request %d with one key: replayed %v, %v", i, answer.Replayed, err)
		}
	}
	if refused := server.Client(t).ACLLog(t.Context(), 10).Val(); len(refused) != 1 {
		t.Errorf("the server refused %d times, but only the foreign key is not allowed: %+v", len(refused), refused)
	}
}

// When the ACL forbids a command inside a script, the server's reply does not begin with NOPERM.
// The error names the ACL all the same, whichever command was forbidden. Where all scripts are
// forbidden, it also names the Locker that needs none.
func TestACommandThatTheACLForbidsInAScriptIsNamed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	as := func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }
	for _, command := range []string{"time", "set", "zadd", "eval"} { // without EVALSHA alone, calls use EVAL
		if err := admin.Do(t.Context(), "acl", "setuser", "locks", "reset", "on", ">secret", "~*", "&*", "+@all", "-evalsha", "-"+command).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := locktest.Semaphore(t, server.Client(t, as), 2).Acquire(t.Context(), locker.Rule{Key: command})
		wantErr(t, err, command, locker.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "ACL forbids") {
			t.Errorf("without %s: %v", command, err)
		}
		if err != nil && strings.Contains(err.Error(), "locker.NewScriptless") != (command == "eval") {
			t.Errorf("without %s: %v", command, err)
		}
	}
}

// An operator with the documented rights can list the keys that match the pattern, and can see the
// queue. A user that may only lock cannot list keys.
func TestAnOperatorForLocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	words, _ := documentedUser(t, admin)
	if err := admin.Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	as := func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }
	l := newSingle(t, server.Client(t, as))
	holder := acquire(t, l, locker.Rule{Key: "order:1"})
	waiter := queues(t, newSingle(t, server.Client(t, as)), locker.Rule{Key: "order:1"}, admin)
	_, err := l.Keys(t.Context(), "order:*")
	if err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Fatalf("a user without SCAN lists keys: %v", err)
	}
	if err := admin.Do(t.Context(), "acl", "setuser", "locks", "+scan", "+getrange").Err(); err != nil {
		t.Fatal(err)
	}
	keys, err := l.Keys(t.Context(), "order:*")
	if err != nil || len(keys) != 1 || keys[0] != "order:1" {
		t.Fatalf("the operator lists %q, %v", keys, err)
	}
	if queue, err := l.Queue(t.Context(), "order:1"); err != nil || len(queue) != 1 || queue[0].Gone {
		t.Fatalf("the operator sees the queue %+v, %v", queue, err)
	}
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))
}
