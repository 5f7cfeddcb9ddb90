package link

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// countsEach does the work of countsOne for several keys. Keys whose names contain "alone" are left
// out.
var countsEach = &Together{Keys: 1, Args: []int{1}, Script: scriptOf(`
local answers = {}
for i, key in ipairs(KEYS) do
  if string.find(key, 'bad') then
    redis.call('LPUSH', 'string', '')
  end
end
for i, key in ipairs(KEYS) do
  answers[i] = ''
  if not string.find(key, 'alone') then
    redis.call('INCR', key)
    answers[i] = key .. ARGV[i]
  end
end
return table.concat(answers, '\n')`)}

// countsOne is the script of the single calls.
var countsOne = scriptOf("redis.call('INCR', KEYS[1]) return KEYS[1] .. (ARGV[2] or '')")

// jointCall returns a call for the given key that can be made together with other calls. The answer
// to the call is the key and the second argument, if there is one.
func jointCall(key string, args ...any) *Call {
	return &Call{Script: countsOne, Words: countsOne.Words([]string{key}, args...), Key: key, Class: Ask, Together: countsEach, Receiver: make(signal, 1)}
}

// sendJointly makes a jointCall for each name, in one batch. It returns the
// answers and the errors.
func sendJointly(t *testing.T, ls *Links, names []string) (answers []string, failed []error) {
	t.Helper()
	calls := make([]*Call, len(names))
	for i, name := range names {
		if calls[i] = jointCall(name); i%2 == 1 {
			calls[i] = jointCall(name, "x", "+")
		}
		calls[i].markListed(t.Context(), time.Now())
		calls[i].markUnderWay()
	}
	ls.single.mu.Lock()
	ls.single.plain.begin(calls...)
	ls.single.mu.Unlock()
	for _, c := range calls {
		<-done(c)
		text, err := c.Answer()
		answers = append(answers, text)
		if err != nil {
			failed = append(failed, err)
		}
	}
	return answers, failed
}

// namesWith returns n names. The names at the given indices contain word.
func namesWith(n int, word string, indices ...int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("k", i)
	}
	for _, i := range indices {
		names[i] += word
	}
	return names
}

func TestCallsOfAScriptAreMadeByOneScript(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		names    []string
		commands int
	}{
		"all":                 {namesWith(20, ""), 1},
		"few":                 {namesWith(fewest-1, ""), fewest - 1},
		"one is left out":     {namesWith(20, "alone", 3), 2},
		"several are":         {namesWith(20, "alone", 0, 7, 19), 4},
		"one is refused":      {namesWith(20, "bad", 9), 21},
		"all are left out":    {namesWith(4, "alone", 0, 1, 2, 3), 5},
		"one key twice":       {append(namesWith(9, ""), "k0"), 1},
		"one alone and twice": {append(namesWith(9, "alone", 0), "k0alone"), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.Start(t).Client(t)
			ls := newLinks(t, client, Options{})
			if err := client.Set(t.Context(), "string", "", 0).Err(); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*Script{countsOne, countsEach.Script} {
				if err := client.ScriptLoad(t.Context(), s.Text()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			s := &spy{}
			client.AddHook(s)
			answers, failed := sendJointly(t, ls, tt.names)
			if failed != nil {
				t.Fatal(failed)
			}
			want := map[string]string{}
			for i, name := range tt.names {
				if want[name] = fmt.Sprint(strings.Count(strings.Join(tt.names, " ")+" ", name+" ")); answers[i] != name+strings.Repeat("+", i%2) {
					t.Errorf("the answer to %s is %q", name, answers[i])
				}
			}
			if sent := s.names["evalsha"] + s.names["eval"]; sent != tt.commands {
				t.Errorf("%d commands were sent, not %d", sent, tt.commands)
			}
			for name, n := range want {
				if got := client.Get(t.Context(), name).Val(); got != n {
					t.Errorf("%s was counted %s times, not %s", name, got, n)
				}
			}
		})
	}
}

// A server that does not know the scripts gets their texts. Each call is executed once.
func TestUnknownScriptsOfCallsThatAreMadeTogether(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	ls := newLinks(t, client, Options{})
	names := namesWith(20, "alone", 4, 5)
	if _, failed := sendJointly(t, ls, names); failed != nil {
		t.Fatal(failed)
	}
	for _, name := range names {
		if n := client.Get(t.Context(), name).Val(); n != "1" {
			t.Errorf("%s was counted %s times", name, n)
		}
	}
}

// When a script leaves out many calls, the next batches make each call by itself. Later batches
// try the script again.
func TestCallsThatAreLeftOutGoByThemselvesForAWhile(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	ls := newLinks(t, client, Options{})
	s := &spy{}
	client.AddHook(s)
	batches := func(names []string) (commands int) {
		s.mu.Lock()
		s.names = nil
		s.mu.Unlock()
		if _, failed := sendJointly(t, ls, names); failed != nil {
			t.Fatal(failed)
		}
		return s.names["evalsha"] + s.names["eval"]
	}
	batches(namesWith(8, "")) // now the server knows the scripts
	if n := batches(namesWith(8, "alone", 0, 1)); n < 3 {
		t.Fatalf("positive control: %d commands", n)
	}
	for i := range separateAfter {
		if n := batches(namesWith(8, "")); n != 8 {
			t.Fatalf("batch %d: %d commands, not 8", i, n)
		}
	}
	if n := batches(namesWith(8, "")); n != 1 {
		t.Errorf("%d commands, not 1", n)
	}
}

// A call that was left out is not sent again if its caller has left.
func TestACallThatIsLeftOutIsNotSentForACallerThatHasLeft(t *testing.T) {
	t.Parallel()
	f := &batch{queue: &queue{link: &link{}}}
	stays, leaves := jointCall("a"), jointCall("b")
	for _, c := range []*Call{stays, leaves} {
		c.markListed(t.Context(), time.Now())
		c.markUnderWay()
	}
	leaves.Leave()
	g := &group{members: []*Call{stays, leaves}, leftOut: []*Call{stays, leaves}}
	if left := f.queue.link.leftOutOf([]*group{g}); len(left) != 1 || left[0] != stays {
		t.Errorf("%d calls are left", len(left))
	}
}

// prefixes is a hook that puts a prefix before all keys of scripts.
type prefixes struct {
	mu sync.Mutex
	n  int
}

func (p *prefixes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *prefixes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.change(cmd)
		return next(ctx, cmd)
	}
}

func (p *prefixes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			p.change(cmd)
		}
		return next(ctx, cmds)
	}
}

func (p *prefixes) change(cmd redis.Cmder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return
	}
	for i := range args[2].(int) {
		args[3+i] = "mine:" + args[3+i].(string)
	}
}

// A hook that changes keys finds each key among the KEYS of the command. The changes of such a hook
// affect no other command.
func TestAHookSeesAllKeysOfCallsThatAreMadeTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, admin := server.Client(t), server.Client(t)
	client.AddHook(&prefixes{})
	ls := newLinks(t, client, Options{})
	names := namesWith(20, "alone", 4, 5)
	if _, failed := sendJointly(t, ls, names); failed != nil {
		t.Fatal(failed)
	}
	for _, name := range names {
		if n := admin.Get(t.Context(), "mine:"+name).Val(); n != "1" {
			t.Errorf("mine:%s was counted %q times", name, n)
		}
	}
}

// If an answer is empty, or does not have the form of the script's answer, all calls get this text
// as their answer. No call is sent again, because each call may have been executed.
func TestAnAnswerThatCannotBeReadIsThatOfAll(t *testing.T) {
	t.Parallel()
	for _, said := range []string{"a\nb", ""} {
		f := &batch{queue: &queue{link: &link{owner: &Links{}}}}
		calls := make([]*Call, fewest+1)
		for i := range calls {
			calls[i] = jointCall(fmt.Sprint(i))
			calls[i].markListed(t.Context(), time.Now())
			calls[i].markUnderWay()
		}
		_, groups := f.queue.link.gather(calls)
		groups[0].end(said, nil)
		if left := f.queue.link.leftOutOf(groups); left != nil {
			t.Fatalf("%q: %d calls are sent again", said, len(left))
		}
		for _, c := range calls {
			<-done(c)
			if text, err := c.Answer(); text != said || err != nil {
				t.Errorf("the answer is %q, %v, not %q", text, err, said)
			}
		}
	}
}

// When a script makes several calls, some of its errors may be due to only one of the calls. The
// texts of the errors are from Redis 6.2 and 7.
func TestWhichErrorsOfAScriptMayBeThoseOfOneCall(t *testing.T) {
	t.Parallel()
	for text, own := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value script: f, on @user_script:1.": true,
		"OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:1.":           true,
		"NOPERM this user has no permissions to access one of the keys":                                   true,
		"CROSSSLOT Keys in request don't hash to the same slot":                                           true,
		"ERR Error running script (call to f): @user_script:1: WRONGTYPE Operation against a key":         true,
		"ERR Error running script (call to f): @user_script:1: @user_script: 1: -OOM command not allowed": true,
		"ERR bad lua script for redis cluster, all the keys that the script uses should be passed":        true,
		"READONLY You can't write against a read only replica.":                                           false,
		"LOADING Redis is loading the dataset in memory":                                                  false,
		"BUSY Redis is busy running a script.":                                                            false,
	} {
		if got := ownRefusal(fmt.Errorf("sent: %w", replyError(text))); got != own {
			t.Errorf("%v for %s", got, text)
		}
	}
	if ownRefusal(nil) || ownRefusal(errNo) {
		t.Error("what is not a reply is taken for one")
	}
}

// replyError is an error reply of a server.
type replyError string

func (e replyError) Error() string { return string(e) }

func (replyError) RedisError() {}
