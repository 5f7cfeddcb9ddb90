package redisstore

import (
	"context"
	_ "embed"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
)

// Client has the methods of a client that a Store on Redis needs. A *redis.Client is a Client.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// runCommand sends the command with the given words once, by sender, and returns the answer, which
// is one string. The second word, if there is one, is a key.
func runCommand(ctx context.Context, sender link.Sender, class link.Class, words ...any) (string, error) {
	key := ""
	if len(words) > 1 {
		key, _ = words[1].(string)
	}
	return sender.Do(ctx, &link.Call{Words: words, Key: key, Class: class})
}

// Script is a Lua file. The header of the file describes the script's keys, arguments and results,
// and why the script is idempotent. A Script contains the fragments that it shares with other
// scripts.
type Script struct {
	*link.Script
	Text  string
	class link.Class
}

// NewScript puts fragments before a script, or at the line that the script reserves for them. Lua
// creates the functions of the fragments in each run. A run that ends before that line saves this
// cost.
func NewScript(text string, fragments ...string) Script {
	before, after, found := strings.Cut(text, "\n-- fragments\n")
	if !found {
		before, after = "", text
	}
	text = before + strings.Join(fragments, "") + after
	return Script{Script: link.NewScript(text), Text: text, class: link.Step}
}

// withClass returns a copy of the script whose calls have the urgency of class.
func (s Script) withClass(class link.Class) Script {
	s.class = class
	return s
}

// Run executes the script once, and waits for its answer. The arguments args are strings and
// int64s.
func (s Script) Run(ctx context.Context, sender link.Sender, keys []string, args ...any) (string, error) {
	call := Call{script: s, Words: s.Words(keys, args...)}
	return call.Run(ctx, sender)
}

// Call is a script that is about to be run.
type Call struct {
	script Script
	Words  []any
}

// Call returns a call of the script with the given keys and arguments, and does not send it.
func (s Script) Call(keys []string, args ...any) *Call {
	return &Call{script: s, Words: s.Words(keys, args...)}
}

// Again returns the same call for another server. The new call has a copy of the words, because a
// hook of that server's client may change words, for example put a prefix before all keys. Both
// calls share the texts and numbers to which the words point.
func (c *Call) Again() Call { return Call{script: c.script, Words: slices.Clone(c.Words)} }

// Run executes the call once, and waits for its answer.
func (c *Call) Run(ctx context.Context, sender link.Sender) (string, error) {
	v, err := sender.Do(ctx, c.link())
	if err != nil {
		return "", Refused(err)
	}
	return v, nil
}

// Begin executes the call once, with the urgency of class. The function onAnswer receives the
// answer on any goroutine, and must not wait for anything.
func (c *Call) Begin(ctx context.Context, links *link.Links, class link.Class, onAnswer func(string, error)) {
	l := c.link()
	l.Class, l.Receiver = class, onText(onAnswer)
	links.Put(ctx, l)
}

// onText receives the text of an answer, or its error in the form that Stores return.
type onText func(string, error)

// Receive calls the function.
func (f onText) Receive(c *link.Call) {
	text, err := c.Answer()
	if err != nil {
		err = Refused(err)
	}
	f(text, err)
}

// link returns the call in the form of package link. A script's first key is a plain string in the
// words.
func (c *Call) link() *link.Call {
	key, _ := c.Words[3].(string)
	return &link.Call{Script: c.script.Script, Words: c.Words, Key: key, Class: c.script.class}
}

// shortWords returns the words of a call of the script. It leaves out empty words at the end of the
// keys and at the end of the arguments, because the script takes "" or 0 for a missing word. Each
// word costs the server as much as a line of Lua.
func (s Script) shortWords(keys []string, args ...any) []any {
	return s.shortWordsIn(new(link.Room), keys, args...)
}

// shortWordsIn does the work of shortWords in the memory of r.
func (s Script) shortWordsIn(r *link.Room, keys []string, args ...any) []any {
	for keys[len(keys)-1] == "" {
		keys = keys[:len(keys)-1]
	}
	for args[len(args)-1] == "" || args[len(args)-1] == int64(0) {
		args = args[:len(args)-1]
	}
	return s.WordsIn(r, keys, args...)
}

var (
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/hand.lua
	handLua string
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/once.lua
	onceLua string
	//go:embed lua/readers.lua
	readersLua string

	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/acquire_each.lua
	acquireEachLua string
	//go:embed lua/acquire_all.lua
	acquireAllLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/confirm.lua
	confirmLua string
	//go:embed lua/free.lua
	freeLua string
	//go:embed lua/undone.lua
	undoneLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/release_each.lua
	releaseEachLua string
	//go:embed lua/break.lua
	breakLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/leases.lua
	leasesLua string
	//go:embed lua/waiters.lua
	waitersLua string
	//go:embed lua/raise_fence.lua
	raiseFenceLua string

	//go:embed lua/rw_acquire.lua
	rwAcquireLua string
	//go:embed lua/rw_renew.lua
	rwRenewLua string
	//go:embed lua/rw_part.lua
	rwPartLua string
	//go:embed lua/rw_release.lua
	rwReleaseLua string
	//go:embed lua/rw_downgrade.lua
	rwDowngradeLua string
	//go:embed lua/rw_break.lua
	rwBreakLua string
	//go:embed lua/rw_inspect.lua
	rwInspectLua string

	//go:embed lua/permits.lua
	permitsLua string
	//go:embed lua/sem_acquire.lua
	semAcquireLua string
	//go:embed lua/sem_release.lua
	semReleaseLua string
	//go:embed lua/sem_renew.lua
	semRenewLua string
	//go:embed lua/sem_part.lua
	semPartLua string
	//go:embed lua/sem_use.lua
	semUseLua string
	//go:embed lua/sem_break.lua
	semBreakLua string
	//go:embed lua/sem_inspect.lua
	semInspectLua string

	acquireScript    = NewScript(acquireLua, grantLua, handLua, queueLua)
	acquireAllScript = NewScript(acquireAllLua, grantLua)
	renewScript      = NewScript(renewLua).withClass(link.Renewal)
	confirmScript    = NewScript(confirmLua).withClass(link.Renewal)
	releaseScript    = NewScript(releaseLua, grantLua, handLua, queueLua, onceLua).withClass(link.Release)
	acquiresTogether = &link.Together{Script: link.NewScript(acquireEachLua), Keys: 4, Args: []int{0, 1, 2, 4}}
	releasesTogether = &link.Together{Script: link.NewScript(releaseEachLua), Keys: 2, Args: []int{0}}
	freeScript       = NewScript(freeLua).withClass(link.Release)
	undoneScript     = NewScript(undoneLua).withClass(link.Release)
	breakScript      = NewScript(breakLua, grantLua, handLua)
	inspectScript    = NewScript(inspectLua)
	leasesScript     = NewScript(leasesLua)
	waitersScript    = NewScript(waitersLua, grantLua, handLua)
	raiseFenceScript = NewScript(raiseFenceLua)

	rwAcquireScript   = NewScript(rwAcquireLua, grantLua, handLua, queueLua, readersLua)
	rwRenewScript     = NewScript(rwRenewLua).withClass(link.Renewal)
	rwPartScript      = NewScript(rwPartLua).withClass(link.Renewal)
	rwReleaseScript   = NewScript(rwReleaseLua, grantLua, handLua, queueLua, onceLua, readersLua).withClass(link.Release)
	rwDowngradeScript = NewScript(rwDowngradeLua, grantLua, handLua, readersLua)
	rwBreakScript     = NewScript(rwBreakLua, grantLua, handLua, readersLua)
	rwInspectScript   = NewScript(rwInspectLua)

	semAcquireScript = NewScript(semAcquireLua, grantLua, handLua, queueLua, permitsLua)
	semReleaseScript = NewScript(semReleaseLua, grantLua, handLua, onceLua, permitsLua).withClass(link.Release)
	semRenewScript   = NewScript(semRenewLua).withClass(link.Renewal)
	semPartScript    = NewScript(semPartLua).withClass(link.Renewal)
	semUseScript     = NewScript(semUseLua).withClass(link.Renewal)
	semBreakScript   = NewScript(semBreakLua, grantLua, handLua, permitsLua)
	semInspectScript = NewScript(semInspectLua)
)
