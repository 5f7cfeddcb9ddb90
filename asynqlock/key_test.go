package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// keyOf runs a task under a rule, and returns the key that was locked.
func keyOf(t *testing.T, keys asynqlock.Keys, task *asynq.Task, opts ...asynqlock.Option) (string, error) {
	t.Helper()
	g := guardOf(t, lockertest.NewLocker(t, lockertest.NewMemory()), append(opts, asynqlock.On("*", keys))...)
	locked := ""
	err := g.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		lease, _ := locker.FromContext(ctx)
		locked = lease.Key()
		return nil
	})).ProcessTask(t.Context(), task)
	return locked, err
}

var secret = []byte("0123456789abcdef")

func TestKeysAreMadeOfTasks(t *testing.T) {
	t.Parallel()
	const text = `{"user":"a:b","inside":{"number":7,"from":"::1","paid":true},"total":12345678901234567890,"name":"Zoë","-":"\u00e4 \""}`
	task := asynq.NewTaskWithHeaders("mail", []byte(text), map[string]string{"tenant": "acme"})
	for want, keys := range map[string]asynqlock.Keys{
		"x:a%3Ab:7:true:acme":  asynqlock.Template("x:{payload.user}:{payload.inside.number}:{payload.inside.paid}:{header.tenant}"),
		"Zo\u00eb:\u00e4 \"":   asynqlock.Template("{payload.Name}:{payload.-}"),
		"12345678901234567890": asynqlock.Template("{payload.total}"),
		"mail:acme":            asynqlock.Template("{type}:{header.tenant}"),
		"nightly":              asynqlock.Template("nightly"),
		"own:" + text[:8]:      asynqlock.KeyFunc(func(_ context.Context, t *asynq.Task) (string, error) { return "own:" + string(t.Payload()[:8]), nil }),
	} {
		if got, err := keyOf(t, keys, task); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	private := asynqlock.Template("user:{payload.user|hmac}")
	if got, err := keyOf(t, private, task, asynqlock.WithSecret(secret)); err != nil || !strings.HasPrefix(got, "user:~") || strings.Contains(got, "a%3Ab") {
		t.Errorf("%q, %v, want an HMAC", got, err)
	}
}

// A task without a key would fail in every attempt, so it is archived.
func TestATaskWithoutAKeyIsArchived(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		keys    asynqlock.Keys
		payload string
		says    string
	}{
		{asynqlock.Template("order:{payload.order}"), `{"other":1}`, `the task lacks the member of the payload "order"`},
		{asynqlock.Template("order:{payload.order.id}"), `{"order":"secret"}`, `the task lacks the member of the payload "order.id"`},
		{asynqlock.Template("order:{payload.order}"), `{"order":["secret"]}`, `the member of the payload "order" is not usable`},
		{asynqlock.Template("order:{payload.order}"), `no JSON`, "the payload cannot be decoded"},
		{asynqlock.Template("order:{payload.order}"), `{"order":1}{"order":2}`, "after top-level value"},
		{asynqlock.Template("order:{header.order}"), `{}`, `the task lacks the header "order"`},
		{asynqlock.Template("order:{id}"), `{}`, `the task lacks the task ID`},
		{asynqlock.KeyFunc(func(context.Context, *asynq.Task) (string, error) { return "latchkit:x", nil }), `{}`, "invalid key"},
		{asynqlock.KeyFunc(func(context.Context, *asynq.Task) (string, error) { return "", nil }), `{}`, "the function given to KeyFunc returned no key"},
		{asynqlock.KeyFunc(func(context.Context, *asynq.Task) (string, error) { return "", errors.New("the page is torn") }), `{}`, "the page is torn"},
	} {
		_, err := keyOf(t, tc.keys, asynq.NewTask("mail", []byte(tc.payload)))
		p, ok := errors.AsType[*asynqlock.Problem](err)
		if !ok || p.Code != asynqlock.CodeInvalidKey || p.Verdict != asynqlock.Archived || !errors.Is(err, asynq.SkipRetry) {
			t.Errorf("%v", err)
		}
		if !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, tc.says)
		}
	}
}

func TestTheLongestPatternCounts(t *testing.T) {
	t.Parallel()
	named := func(name string) (asynqlock.Keys, asynqlock.Policy) {
		return asynqlock.Template(key.Key(name)), asynqlock.Rule(locker.Rule{Name: name})
	}
	var opts []asynqlock.Option
	for _, pattern := range []string{"report:*", "mail", "report:monthly", "mail:welcome*"} {
		keys, name := named(strings.TrimSuffix(pattern, "*"))
		opts = append(opts, asynqlock.On(pattern, keys, name))
	}
	g := guardOf(t, lockertest.NewLocker(t, lockertest.NewMemory()), opts...)
	mux := asynq.NewServeMux() // the ServeMux must choose the same pattern as the Guard
	mux.Use(g.Middleware)
	for _, pattern := range []string{"report:", "mail", "report:monthly", "mail:welcome", "other"} {
		mux.HandleFunc(pattern, func(ctx context.Context, t *asynq.Task) error {
			locked := "no lock"
			if lease, ok := locker.FromContext(ctx); ok {
				locked = lease.Key()
			}
			if pattern != locked && pattern != "other" {
				return errors.New(t.Type() + " is handled by " + pattern + ", under " + locked)
			}
			return nil
		})
	}
	for _, typename := range []string{"report:daily", "report:monthly", "report:monthly:late", "mail", "mail:bye", "mail:welcome", "mail:welcome:back", "other"} {
		if err := mux.ProcessTask(t.Context(), asynq.NewTask(typename, nil)); err != nil {
			t.Error(err)
		}
	}
}

func TestAGuardThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	keys := asynqlock.Template("account:{payload.account}")
	on := func(policies ...asynqlock.Policy) asynqlock.Option { return asynqlock.On("job", keys, policies...) }
	for _, tc := range []struct {
		opts []asynqlock.Option
		says string
	}{
		{nil, "there is no rule"},
		{[]asynqlock.Option{on(), on()}, `two rules for "job"`},
		{[]asynqlock.Option{on(), asynqlock.On("job*", keys)}, `two rules for "job`},
		{[]asynqlock.Option{asynqlock.On("", keys)}, "write the type of a task"},
		{[]asynqlock.Option{asynqlock.On("a*b", keys)}, "write the type of a task"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Keys{})}, "the Keys are empty"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Template("order:{param.id}"))}, "write {header.NAME}, {id}, {payload.NAME}, {queue} or {type}"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Template("order:{payload.a..b}"))}, "a name in it is empty"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Template("order:{payload.a,b}"))}, "as the name of a field"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Template("{payload.a|hmac}"))}, "there is no secret"},
		{[]asynqlock.Option{on(asynqlock.Drop(), asynqlock.Archive())}, "Drop and Archive contradict each other"},
		{[]asynqlock.Option{on(asynqlock.Snooze(time.Millisecond))}, "Snooze(1ms); give at least 1s"},
		{[]asynqlock.Option{on(asynqlock.Snooze(time.Minute)), asynqlock.WithWaking(redis.NewClient(&redis.Options{}))}, "give at most 30s"},
		{[]asynqlock.Option{asynqlock.WithWaking(nil), on()}, "the client is nil"},
		{[]asynqlock.Option{on(asynqlock.Wait(0))}, "Wait(0s); give at least 1ms"},
		{[]asynqlock.Option{on(asynqlock.Once(-1))}, "Once(-1ns)"},
		{[]asynqlock.Option{on(asynqlock.Rule(locker.Rule{KeepFor: 1}))}, "KeepFor is 1ns"},
		{[]asynqlock.Option{on(asynqlock.Rule(locker.Rule{TTL: 1}))}, "TTL is 1ns"},
		{[]asynqlock.Option{on(asynqlock.Rule(locker.Rule{Wait: 1}))}, "the policies Wait and Once"},
		{[]asynqlock.Option{on(asynqlock.Rule(locker.Rule{Key: "x"}))}, "the Keys make the Key"},
		{[]asynqlock.Option{on(asynqlock.Drop(), asynqlock.Rule(locker.Rule{Metadata: "x"}))}, "cannot be combined with Metadata"},
		{[]asynqlock.Option{on(asynqlock.Rule(locker.Rule{TTL: time.Minute}), asynqlock.Rule(locker.Rule{KeepFor: time.Second}))}, "two Rules"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.ByTaskID(), asynqlock.Drop())}, "discard a task that has no duplicate"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.Template("x:{id}"), asynqlock.Archive())}, "discard a task that has no duplicate"},
		{[]asynqlock.Option{asynqlock.On("job", asynqlock.ByTaskID(), asynqlock.Unique())}, "Unique would never find two"},
	} {
		if _, err := asynqlock.New(l, tc.opts...); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v, want %q", err, tc.says)
		}
	}
	var nobody *locker.Engine
	for _, l := range []locker.Locker{nil, nobody} {
		if _, err := asynqlock.New(l, on()); err == nil || !strings.Contains(err.Error(), "the Locker is nil") {
			t.Error(err)
		}
	}
}
