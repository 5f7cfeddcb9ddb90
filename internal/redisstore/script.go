package redisstore

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// runCommand sends the command with the given words once, by links, and returns the answer, which
// is one string. The second word, if there is one, is a key.
func runCommand(ctx context.Context, links *link.Links, class link.Class, words ...any) (string, error) {
	key := ""
	if len(words) > 1 {
		key, _ = words[1].(string)
	}
	return links.Do(ctx, &link.Call{Words: words, Key: key, Class: class})
}

// Script is a Lua file. The header of the file describes the script's keys, arguments and results,
// and why the script is idempotent. A Script contains the fragments that it shares with other
// scripts.
type Script struct {
	*link.Script
	Text   string
	class  link.Class
	sha    string
	silent *Script // the same script without messages; nil: the script sends none
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
	s := newScript(files, name, before+text)
	if text, sends := withoutMessages(s.Text); sends {
		silent := newScript(files, name+"_silent", text)
		s.silent = &silent
	}
	return s
}

func newScript(files embed.FS, name, text string) Script {
	sha := digestOf(files, name)
	return Script{Script: link.NewScript(text, sha), Text: text, class: link.Ask, sha: sha}
}

// digestOf returns the SHA-1 of the script with the given name, from the file lua/digests. Tests of
// the package that embeds the file compare it with the text.
func digestOf(files embed.FS, name string) string {
	digests, err := files.ReadFile("lua/digests")
	if err != nil {
		panic(err) // the file was not compiled in
	}
	for line := range strings.Lines(string(digests)) {
		if digest, of, _ := strings.Cut(strings.TrimSpace(line), "  "); of == name {
			return digest
		}
	}
	return "" // no server has such a script, so each call carries the text
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
	if s.silent != nil {
		silent := s.silent.withClass(class)
		s.silent = &silent
	}
	return s
}

// Run executes the script once, and waits for its answer. The arguments args are strings and
// int64s.
func (s Script) Run(ctx context.Context, links *link.Links, keys []string, args ...any) (string, error) {
	call := Call{script: s, Words: s.Words(keys, args...)}
	return call.Run(ctx, links)
}

// Call is a script that is about to be run.
type Call struct {
	script   Script
	Words    []any
	Patience time.Duration // see [link.Call]
}

// Call returns a call of the script with the given keys and arguments, and does not send it.
func (s Script) Call(keys []string, args ...any) *Call {
	return &Call{script: s, Words: s.Words(keys, args...)}
}

// Run executes the call once, and waits for its answer.
func (c *Call) Run(ctx context.Context, links *link.Links) (string, error) {
	v, err := links.Do(ctx, c.link())
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
	return &link.Call{Script: c.script.Script, Words: c.Words, Key: key, Class: c.script.class, Patience: c.Patience}
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

//go:embed lua/*.lua lua/digests
var luaFiles embed.FS

var (
	acquireScript     = NewScript(luaFiles, "acquire", "grant", "hand", "queue")
	acquireEachScript = NewScript(luaFiles, "acquire_each")
	acquiresTogether  = &link.Together{Script: acquireEachScript.Script, Keys: 4, Args: []int{0, 1, 2}}
	rwAcquireScript   = NewScript(luaFiles, "rw_acquire", "grant", "hand", "queue", "readers")
	semAcquireScript  = NewScript(luaFiles, "sem_acquire", "grant", "hand", "queue", "permits")

	releaseScript     = NewScript(luaFiles, "release", "grant", "hand", "once").withClass(link.Release)
	releaseEachScript = NewScript(luaFiles, "release_each")
	releasesTogether  = &link.Together{Script: releaseEachScript.Script, Keys: 2, Args: []int{0}}
	rwReleaseScript   = NewScript(luaFiles, "rw_release", "grant", "hand", "once", "readers").withClass(link.Release)
	semReleaseScript  = NewScript(luaFiles, "sem_release", "grant", "hand", "once", "permits").withClass(link.Release)
	freeScript        = NewScript(luaFiles, "free").withClass(link.Release)

	renewScript   = NewScript(luaFiles, "renew").withClass(link.Renewal)
	confirmScript = NewScript(luaFiles, "confirm").withClass(link.Renewal)

	breakScript      = NewScript(luaFiles, "break", "grant", "hand", "readers", "permits")
	inspectScript    = NewScript(luaFiles, "inspect")
	leasesScript     = NewScript(luaFiles, "leases")
	waitersScript    = NewScript(luaFiles, "waiters", "grant", "hand")
	raiseFenceScript = NewScript(luaFiles, "raise_fence")
)

// ScriptTexts maps the name of each script to the text that a server gets. The script without
// messages has the name of the script, with "_silent". Tests and benchmarks use the texts without a
// Store.
var ScriptTexts = textsOf(map[string]Script{
	"acquire": acquireScript, "acquire_each": acquireEachScript,
	"rw_acquire": rwAcquireScript, "sem_acquire": semAcquireScript,
	"release": releaseScript, "release_each": releaseEachScript, "rw_release": rwReleaseScript, "sem_release": semReleaseScript,
	"free": freeScript, "renew": renewScript, "confirm": confirmScript,
	"break": breakScript, "inspect": inspectScript, "leases": leasesScript, "waiters": waitersScript, "raise_fence": raiseFenceScript,
})

func textsOf(scripts map[string]Script) map[string]string {
	texts := make(map[string]string)
	for name, s := range scripts {
		texts[name] = s.Text
		if s.silent != nil {
			texts[name+"_silent"] = s.silent.Text
		}
	}
	return texts
}

// KeptToken stands in place of the token while Rule.KeepFor keeps a released key.
const KeptToken = "kept"

// SharedToken stands in place of the token while readers hold the key.
const SharedToken = "shared"

// PermitsToken stands in place of the token while permits of a semaphore are held.
const PermitsToken = "permits"

// tokenBytes is the length of rand.Text, which makes the tokens.
const tokenBytes = 26

// LeaseText is the value of L: token:fence:block:metadata, where token may also be the word
// "shared" or "permits". The value of a kept key is kept:fence.
type LeaseText struct {
	Token    string
	Fence    uint64
	Block    int
	Metadata string
}

// ParseLease parses text, the value of L. It returns false for a value of another form, which
// belongs to another library or program.
func ParseLease(text string) (LeaseText, bool) {
	token, rest, _ := strings.Cut(text, ":")
	fenceText, rest, _ := strings.Cut(rest, ":")
	fence, err := strconv.ParseUint(fenceText, 10, 64)
	if err != nil {
		return LeaseText{}, false
	}
	if token == KeptToken {
		return LeaseText{Token: KeptToken, Fence: fence}, true
	}
	blockText, metadata, _ := strings.Cut(rest, ":")
	block, err := strconv.Atoi(blockText)
	if err != nil || len(token) != tokenBytes && token != SharedToken && token != PermitsToken {
		return LeaseText{}, false
	}
	return LeaseText{token, fence, block, metadata}, true
}

func holderOf(text string, remaining time.Duration) store.Holder {
	h, ours := ParseLease(text)
	return store.Holder{Fence: h.Fence, Left: remaining, Metadata: h.Metadata, Foreign: !ours, Kept: h.Token == KeptToken}
}

// Millis returns d in milliseconds, rounded up. So the server keeps a lease at least as long as
// its holder believes.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Reply is a script's answer: words with spaces between them. Rest is the part that was not read
// yet. A missing word reads as zero, so the callers check the first word.
type Reply struct{ Rest string }

// Word reads the next word of the reply, and returns it.
func (r *Reply) Word() string {
	word, rest, _ := strings.Cut(r.Rest, " ")
	r.Rest = rest
	return word
}

// countedPart reads the next part, in front of which the reply has the length of the part in bytes.
func (r *Reply) countedPart() (part string, ok bool) {
	n := r.Integer()
	if n < 0 || n > int64(len(r.Rest)) {
		return "", false
	}
	part, r.Rest = r.Rest[:n], r.Rest[n:]
	return part, true
}

// Integer reads the next word, and returns its number, or 0 if the word is not a number.
func (r *Reply) Integer() int64 {
	n, err := strconv.ParseInt(r.Word(), 10, 64)
	if err != nil {
		return 0 // for a number that is too large, ParseInt would return the largest int64
	}
	return n
}

// Time reads the next word, a time in µs, and returns this time.
func (r *Reply) Time() time.Time { return time.UnixMicro(r.Integer()) }

// Duration reads the next word, a PTTL, and returns this duration. The result is negative for a key
// without an expiry, and noKey for a missing key.
func (r *Reply) Duration() time.Duration {
	return time.Duration(r.Integer()) * time.Millisecond
}

const noKey = -2 * time.Millisecond

// Unreadable returns the error for an answer of the wrong form. The parameter script is the name of
// the script.
func Unreadable(script string) error {
	return fmt.Errorf("the server's answer to %s cannot be read; check for a proxy between server and client", script)
}

// ParseEvent reads a message. The key comes last, because it may contain spaces:
//
//	granted server-µs fence block hand-ms token[|traceparent] L
//	admitted server-µs fence writers hand-ms token[|traceparent] L
//	writer token L
//	head hand-ms token L
//	done token L
//	free L
//
// The traceparent belongs to the lease whose release freed the key. A text of another form was
// sent by another program.
func ParseEvent(text string) (e store.Event, ok bool) {
	r := Reply{Rest: text}
	switch r.Word() {
	case "granted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: int(r.Integer()), HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.FenceCount > 0 && e.HandoffTTL > 0
	case "admitted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: 1, Writer: r.Integer() > 0, HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.HandoffTTL > 0
	case "writer":
		e, ok = store.Event{Kind: store.EventWriter}, true
	case "head":
		e = store.Event{Kind: store.EventHead, HandoffTTL: r.Duration()}
		ok = e.HandoffTTL > 0
	case "done":
		e, ok = store.Event{Kind: store.EventDone}, true
	case "free":
		return store.Event{Kind: store.EventFree, Key: r.Rest}, r.Rest != ""
	}
	e.Owner, e.ReleasedBy, _ = strings.Cut(r.Word(), "|")
	e.Key = r.Rest
	return e, ok && e.Owner != "" && e.Key != ""
}
