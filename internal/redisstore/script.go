package redisstore

import (
	"context"
	"embed"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/internal/link"
)

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

// NewScript returns the script lua/name.lua of files. It puts fragments, which are other such
// files, before the script, or at the line that the script reserves for them. Lua creates the
// functions of the fragments in each run. A run that ends before that line saves this cost.
func NewScript(files embed.FS, name string, fragments ...string) Script {
	text, before := luaText(files, name), ""
	if start, rest, found := strings.Cut(text, "\n-- fragments\n"); found {
		before, text = start, rest
	}
	for _, fragment := range fragments {
		before += luaText(files, fragment)
	}
	text = before + text
	return Script{Script: link.NewScript(text), Text: text, class: link.Ask}
}

func luaText(files embed.FS, name string) string {
	text, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // no such script was compiled in
	}
	return string(text)
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

// shortWords returns the words of a call of the script, in the memory of r. It leaves out empty
// words at the end of the keys and at the end of the arguments, because the script takes "" or 0
// for a missing word. Each word costs the server as much as a line of Lua.
func (s Script) shortWords(r *link.Room, keys []string, args ...any) []any {
	for keys[len(keys)-1] == "" {
		keys = keys[:len(keys)-1]
	}
	for args[len(args)-1] == "" || args[len(args)-1] == int64(0) {
		args = args[:len(args)-1]
	}
	return s.WordsIn(r, keys, args...)
}

//go:embed lua/*.lua
var luaFiles embed.FS

var (
	acquireScript    = NewScript(luaFiles, "acquire", "grant", "hand", "queue")
	acquireAllScript = NewScript(luaFiles, "acquire_all", "grant")
	acquiresTogether = &link.Together{Script: link.NewScript(luaText(luaFiles, "acquire_each")), Keys: 4, Args: []int{0, 1, 2, 4}}
	rwAcquireScript  = NewScript(luaFiles, "rw_acquire", "grant", "hand", "queue", "readers")
	semAcquireScript = NewScript(luaFiles, "sem_acquire", "grant", "hand", "queue", "permits")

	releaseScript    = NewScript(luaFiles, "release", "grant", "hand", "queue", "once").withClass(link.Release)
	releasesTogether = &link.Together{Script: link.NewScript(luaText(luaFiles, "release_each")), Keys: 2, Args: []int{0}}
	rwReleaseScript  = NewScript(luaFiles, "rw_release", "grant", "hand", "queue", "once", "readers").withClass(link.Release)
	semReleaseScript = NewScript(luaFiles, "sem_release", "grant", "hand", "once", "permits").withClass(link.Release)
	freeScript       = NewScript(luaFiles, "free").withClass(link.Release)
	undoneScript     = NewScript(luaFiles, "undone").withClass(link.Release)

	renewScript     = NewScript(luaFiles, "renew").withClass(link.Renewal)
	confirmScript   = NewScript(luaFiles, "confirm").withClass(link.Renewal)
	partScript      = NewScript(luaFiles, "part").withClass(link.Renewal)
	downgradeScript = NewScript(luaFiles, "rw_downgrade", "grant", "hand", "readers")

	breakScript      = NewScript(luaFiles, "break", "grant", "hand", "readers", "permits")
	inspectScript    = NewScript(luaFiles, "inspect")
	leasesScript     = NewScript(luaFiles, "leases")
	waitersScript    = NewScript(luaFiles, "waiters", "grant", "hand")
	raiseFenceScript = NewScript(luaFiles, "raise_fence")
)

// ScriptTexts maps the name of each script to the text that a server gets. Tests and benchmarks
// use the texts without a Store.
var ScriptTexts = map[string]string{
	"acquire": acquireScript.Text, "acquire_each": acquiresTogether.Script.Text(), "acquire_all": acquireAllScript.Text,
	"rw_acquire": rwAcquireScript.Text, "sem_acquire": semAcquireScript.Text,
	"release": releaseScript.Text, "release_each": releasesTogether.Script.Text(),
	"rw_release": rwReleaseScript.Text, "sem_release": semReleaseScript.Text,
	"free": freeScript.Text, "undone": undoneScript.Text,
	"renew": renewScript.Text, "confirm": confirmScript.Text, "part": partScript.Text,
	"break": breakScript.Text, "inspect": inspectScript.Text, "leases": leasesScript.Text, "waiters": waitersScript.Text, "raise_fence": raiseFenceScript.Text, "rw_downgrade": downgradeScript.Text,
}
