package locker

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Client is the least that a Store on Redis asks of a client: a *redis.Client is one.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// once is a command that go-redis sends at most once. Its own retries would turn a lost reply into a wrong answer: the
// second execution of a release finds nothing to release. Only the Engine repeats, because it knows what was unclear.
type once struct{ *redis.StringCmd }

// NoRetry is asked by go-redis before it sends a command again.
func (once) NoRetry() bool { return true }

// do sends a command, once, whose answer is one string.
func do(ctx context.Context, c Client, words ...any) (string, error) {
	cmd := once{redis.NewStringCmd(ctx, words...)}
	if err := c.Process(ctx, cmd); err != nil {
		return "", err
	}
	return cmd.Result()
}

// script is a Lua file; its header says what it is given, what it returns, and why it is idempotent. Fragments, which
// several scripts share, stand in it.
type script struct {
	text string
	sha  any // a string; boxed once, not at every call
}

// newScript puts fragments before a script, or where it has a line for them: behind what should not pay for them, as Lua makes
// every function anew in each run.
func newScript(text string, fragments ...string) script {
	before, after, found := strings.Cut(text, "\n-- fragments\n")
	if !found {
		before, after = "", text
	}
	text = before + strings.Join(fragments, "") + after
	sum := sha1.Sum([]byte(text)) //nolint:gosec // not for security
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// run executes the script once: by its name, and when the server does not know it by its text. args are strings and
// int64s.
func (s script) run(ctx context.Context, c Client, keys []string, args ...any) (string, error) {
	call := call{script: s, words: command(s.sha, keys, args)}
	return call.run(ctx, c)
}

// call is a script that is about to be run, and in a pipeline then what became of it.
type call struct {
	script script
	words  []any

	text string
	err  error
}

// call is what runs the script later.
func (s script) call(keys []string, args ...any) *call {
	return &call{script: s, words: command(s.sha, keys, args)}
}

// again is the same call to another server. Its words are its own, because a hook of that client may change them, as one that puts a
// prefix before all keys does; what they point to is shared.
func (c *call) again() call { return call{script: c.script, words: slices.Clone(c.words)} }

// run executes the call once: by the script's name, and when the server does not know it by its text.
func (c *call) run(ctx context.Context, to Client) (string, error) {
	v, err := do(ctx, to, c.words...)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		v, err = do(ctx, to, c.inFull()...)
	}
	if err != nil {
		return "", refusal(err)
	}
	return v, nil
}

// short is run for a script that takes "" and 0 for whatever is missing at the end of its keys and arguments, because each of
// them costs the server as much as a line of Lua.
func (s script) short(ctx context.Context, c Client, keys []string, args ...any) (string, error) {
	for keys[len(keys)-1] == "" {
		keys = keys[:len(keys)-1]
	}
	for args[len(args)-1] == "" || args[len(args)-1] == int64(0) {
		args = args[:len(args)-1]
	}
	return s.run(ctx, c, keys, args...)
}

// inFull is the call with the script's text. A hook may still look at the words of the first one.
func (c *call) inFull() []any {
	words := slices.Clone(c.words)
	words[0], words[1] = "eval", c.script.text
	return words
}

// command is what runs a script. go-redis writes a *string or an *int64 as what it points to: so a command is one piece of
// memory instead of one for each word, and hooks, which see the pointers, cannot show tokens. Only the first key, by which
// commands are routed and told apart, is there as it is. args must not escape from here: their callers would have to allocate each.
func command(sha any, keys []string, args []any) []any {
	words, texts, numbers := room(3 + len(keys) + len(args))
	words = append(words, "evalsha", sha, len(keys))
	for i, key := range keys {
		if i == 0 {
			words = append(words, key)
			continue
		}
		texts = append(texts, key)
		words = append(words, &texts[len(texts)-1])
	}
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			texts = append(texts, arg)
			words = append(words, &texts[len(texts)-1])
		case int64:
			numbers = append(numbers, arg)
			words = append(words, &numbers[len(numbers)-1])
		default:
			panic("latchkit: a script is given strings and int64s")
		}
	}
	return words
}

// room is one piece of memory for a command of so many words, if they are few.
func room(most int) ([]any, []string, []int64) {
	if most > 16 {
		return make([]any, 0, most), make([]string, 0, most), make([]int64, 0, most)
	}
	var all struct {
		words   [16]any
		texts   [8]string
		numbers [4]int64
	}
	return all.words[:0], all.texts[:0], all.numbers[:0]
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
	//go:embed lua/acquire_all.lua
	acquireAllLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/confirm.lua
	confirmLua string
	//go:embed lua/free.lua
	freeLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/break.lua
	breakLua string
	//go:embed lua/inspect.lua
	inspectLua string
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

	//go:embed lua/quorum_wake.lua
	quorumWakeLua string
	//go:embed lua/quorum_member.lua
	quorumMemberLua string

	//go:embed lua/quorum_acquire.lua
	quorumAcquireLua string
	//go:embed lua/quorum_confirm.lua
	quorumConfirmLua string
	//go:embed lua/quorum_release.lua
	quorumReleaseLua string
	//go:embed lua/quorum_enroll.lua
	quorumEnrollLua string

	//go:embed lua/delegate.lua
	delegateLua string
	//go:embed lua/join.lua
	joinLua string
	//go:embed lua/leave.lua
	leaveLua string

	acquireScript    = newScript(acquireLua, grantLua, handLua, queueLua)
	acquireAllScript = newScript(acquireAllLua)
	renewScript      = newScript(renewLua)
	confirmScript    = newScript(confirmLua)
	releaseScript    = newScript(releaseLua, grantLua, handLua, queueLua, onceLua)
	freeScript       = newScript(freeLua)
	breakScript      = newScript(breakLua, grantLua, handLua)
	inspectScript    = newScript(inspectLua)
	raiseFenceScript = newScript(raiseFenceLua)
	delegateScript   = newScript(delegateLua)
	joinScript       = newScript(joinLua)
	leaveScript      = newScript(leaveLua)

	rwAcquireScript   = newScript(rwAcquireLua, grantLua, handLua, queueLua, readersLua)
	rwRenewScript     = newScript(rwRenewLua)
	rwPartScript      = newScript(rwPartLua)
	rwReleaseScript   = newScript(rwReleaseLua, grantLua, handLua, queueLua, onceLua, readersLua)
	rwDowngradeScript = newScript(rwDowngradeLua, grantLua, handLua, readersLua)
	rwBreakScript     = newScript(rwBreakLua, grantLua, handLua, readersLua)
	rwInspectScript   = newScript(rwInspectLua)

	//go:embed lua/quorum_rouse.lua
	quorumRouseLua string
	//go:embed lua/quorum_rw_acquire.lua
	quorumRWAcquireLua string
	//go:embed lua/quorum_rw_confirm.lua
	quorumRWConfirmLua string
	//go:embed lua/quorum_rw_renew.lua
	quorumRWRenewLua string
	//go:embed lua/quorum_rw_release.lua
	quorumRWReleaseLua string
	//go:embed lua/quorum_rw_downgrade.lua
	quorumRWDowngradeLua string

	quorumAcquireScript = newScript(quorumAcquireLua, quorumWakeLua, quorumMemberLua)
	quorumConfirmScript = newScript(quorumConfirmLua)
	quorumReleaseScript = newScript(quorumReleaseLua, quorumWakeLua)
	quorumEnrollScript  = newScript(quorumEnrollLua, quorumMemberLua)

	quorumRWAcquireScript   = newScript(quorumRWAcquireLua, quorumWakeLua, quorumMemberLua)
	quorumRWConfirmScript   = newScript(quorumRWConfirmLua)
	quorumRWRenewScript     = newScript(quorumRWRenewLua)
	quorumRWReleaseScript   = newScript(quorumRWReleaseLua, quorumWakeLua, quorumRouseLua)
	quorumRWDowngradeScript = newScript(quorumRWDowngradeLua, quorumWakeLua, quorumRouseLua)
)

// isNil finds a nil inside an interface too: a (*redis.Client)(nil) would panic at its first use, far from its cause.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
