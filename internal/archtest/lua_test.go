package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

// luaCommands are the Redis commands that scripts use, each with its reason. Users must allow all
// these commands in their ACLs, so the table must have no superfluous row. The table does not list
// commands that Go code sends.
var luaCommands = map[string]string{
	"DEL":              "frees a lease",
	"EXISTS":           "checks whether a caller waits",
	"GET":              "reads a counter, a tombstone, a mark, and data that is no lock, which the script refuses",
	"GETRANGE":         "reads the beginning of a value, which may be large data of another program",
	"GETEX":            "reads a key; a replica refuses it, see docs/adr/0001-first-write.md",
	"HDEL":             "removes a permit, or the mark of an open request",
	"HGET":             "reads the use of a permit",
	"HGETALL":          "reads the uses of all permits",
	"HLEN":             "counts permits, and the times that nodes of a quorum began to wait",
	"HMGET":            "reads the record of a request that may have been sent before",
	"HSET":             "keeps the use of a permit, or the record of a request",
	"INFO":             "shows by replication, stats and memory whether a quorum's node has lost data",
	"MGET":             "reads lease, counter and tombstone in one command; it returns no error for data of another type",
	"PEXPIRE":          "renews a lease, or keeps it",
	"PTTL":             "reads how long a lease lasts",
	"PUBLISH":          "notifies a waiter that it is its turn",
	"PUBSUB":           "shows whether the waiter's process still listens (NUMSUB, SHARDNUMSUB)",
	"SET":              "grants a lease, counts a fence, leaves a tombstone or a mark",
	"SPUBLISH":         "notifies a waiter on a Redis Cluster",
	"TIME":             "reads the only clock of a script",
	"TYPE":             "finds data that is no lock; GETEX of such data would end the renewal of a whole batch",
	"ZADD":             "queues a waiter, and marks the waiter that was handed the key",
	"ZCARD":            "counts readers, and refuses data of another type before anything is written",
	"ZCOUNT":           "counts waiters",
	"ZRANGE":           "finds the first waiter",
	"ZRANK":            "finds a waiter's place",
	"ZREM":             "removes a waiter from the queue",
	"ZREMRANGEBYSCORE": "removes the waiter that was handed the key, and expired readers",
	"ZSCORE":           "shows whether a token still reads",
}

// luaWrites finds the names of commands that a replica refuses.
var luaWrites = regexp.MustCompile(`^(DEL|GETEX|H(DEL|SET)|PEXPIRE|SET|Z(ADD|REM|REMRANGEBYSCORE))$`)

// luaKeyless finds the names of commands whose first argument is not a key.
var luaKeyless = regexp.MustCompile(`^(INFO|S?PUBLISH|PUBSUB|TIME)$`)

// luaTried are the commands that scripts may call by redis.pcall, each with its reason. If the
// server refuses any other write, the refusal must end the script.
var luaTried = map[string]string{
	"GET":      "a release reads its lease first; data of another type counts as the lease of another token",
	"HSET":     "a full server has no room for the stored response; the record still shows that the work is done",
	"PUBLISH":  "the ACL may forbid the channel, and a lost message must not stop a release half-way",
	"PUBSUB":   "the ACL may forbid PUBSUB; a waiter that cannot be counted counts as present",
	"SET":      "a counter of another type must not end acquire_each.lua after it has granted a lease; until then, the refusal ends it",
	"SPUBLISH": "as PUBLISH",
}

var (
	luaCall  = regexp.MustCompile(`redis\.(p?)call\(\s*(?:'([A-Z]+)')?(?:,\s*(\w+))?`)
	luaIndex = regexp.MustCompile(`(KEYS|ARGV)\[(\d+)\]`)
	luaText  = regexp.MustCompile(`--.*`)
)

// checkLua compares each script with its header: the keys that it reads, its first write, and the
// reason why a second execution does no harm. In every test with a real server, package redistest
// checks that callers pass as many keys and arguments as the header lists.
func checkLua(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	unused := maps.Clone(luaCommands)
	for _, file := range find(t, tree, "*.lua") {
		text := read(t, tree, file)
		body := luaText.ReplaceAllString(text, "")
		for _, m := range luaCall.FindAllStringSubmatch(body, -1) {
			delete(unused, m[2])
		}
		for _, why := range slices.Concat(headerFaults(path.Base(file), text, body), bodyFaults(body)) {
			problems = append(problems, file+": "+why)
		}
	}
	for _, command := range slices.Sorted(maps.Keys(unused)) {
		problems = append(problems, "no script uses "+command+
			" any more: remove its row in luaCommands, so that users need not allow it")
	}
	return problems
}

// headerFaults returns the faults of the header of the script with the given name, text and body.
func headerFaults(name, text, body string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if !strings.HasPrefix(text, "-- "+name+": ") {
		bad("begin with `-- %s: ` and what the script does", name)
	}
	header, _, _ := strings.Cut(text, "\nlocal ")
	parts := []string{"KEYS", "ARGV", "returns", "idempotent"}
	if strings.Contains(header, "\n-- fragment: ") {
		parts = []string{"fragment", "KEYS", "returns", "idempotent"}
	}
	last := 0
	for _, part := range parts {
		at := strings.Index(header, "\n-- "+part+": ")
		if at < 0 {
			bad("the header has no `-- %s: `, which a caller must know", part)
		} else if at < last {
			bad("the header's parts are %s, in this order", strings.Join(parts, ", "))
		}
		last = at
	}
	writes := false
	for _, m := range luaCall.FindAllStringSubmatch(body, -1) {
		writes = writes || luaWrites.MatchString(m[2])
	}
	if writes && !strings.Contains(header, "\n-- first write: ") {
		bad("it writes, so its header needs `-- first write: ` with how a full server or a replica refuses it")
	}
	keys, argv, whole := redistest.Counts(text)
	for _, m := range luaIndex.FindAllStringSubmatch(body, -1) {
		n, _ := strconv.Atoi(m[2])
		most := map[string]int{"KEYS": keys.Max, "ARGV": argv.Max}[m[1]]
		if whole && n > most {
			bad("%s is used, and the header lists %d", m[0], most)
		}
		if !whole && m[1] == "ARGV" {
			bad("%s: a fragment has no ARGV, because several scripts share it", m[0])
		}
	}
	return problems
}

// bodyFaults returns the faults of the body of a script.
func bodyFaults(body string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, m := range luaCall.FindAllStringSubmatch(body, -1) {
		tried, command, key := m[1] != "", m[2], m[3]
		switch _, known := luaCommands[command]; {
		case command == "":
			bad("%s…: name the command in the call, so that users know what to allow", m[0])
		case !known:
			bad("%s is in no row of luaCommands: add it with the reason, and list it in docs/operations.md", command)
		case tried && luaTried[command] == "":
			bad("redis.pcall of %s, which is in no row of luaTried: a refused command must end the script", command)
		case !luaKeyless.MatchString(command) && key != "KEYS":
			bad("%s…: the first argument is a key, so it must be KEYS[…]: a Redis Cluster knows no other keys", m[0])
		}
	}
	return problems
}

func TestLuaRefused(t *testing.T) {
	t.Parallel()
	const good = `-- good.lua: take it.
--
-- KEYS: lease L · done mark D
-- ARGV: token · ttl in ms · a thing
-- returns: 1
-- idempotent: yes.
-- first write: SET L, which a full server refuses.
if redis.call('EXISTS', KEYS[2]) == 1 then -- KEYS[7] in a comment
  redis.pcall('PUBLISH', 'news', ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
`
	problems := func(good string) []string {
		found := checkLua(t, treeOf(map[string]string{"locker/lua/good.lua": good}))
		return slices.DeleteFunc(found, func(p string) bool { return strings.HasPrefix(p, "no script uses ") })
	}
	expect(t, problems(good))
	if all := checkLua(t, treeOf(nil)); len(all) != len(luaCommands) || !strings.Contains(all[0], "no script uses DEL") {
		t.Errorf("superfluous rows of luaCommands were not found: %q", all)
	}
	for _, c := range []struct{ old, replacement, want string }{
		{"-- good.lua:", "-- other.lua:", "good.lua: begin with `-- good.lua: `"},
		{"-- ARGV: token · ttl in ms · a thing\n", "-- ARGV: token · ttl in ms\n", "ARGV[3] is used, and the header lists 2"},
		{"-- returns: 1\n", "", "the header has no `-- returns: `"},
		{"-- returns: 1\n-- idempotent: yes.", "-- idempotent: yes.\n-- returns: 1", "in this order"},
		{"-- first write: SET L, which a full server refuses.\n", "", "it writes, so its header needs"},
		{"'EXISTS'", "'SCAN'", "SCAN is in no row of luaCommands"},
		{"'EXISTS', KEYS[2]", "'EXISTS', 'latchkit:' .. KEYS[2]", "the first argument is a key"},
		{"redis.call('EXISTS'", "redis.pcall('EXISTS'", "redis.pcall of EXISTS"},
		{"redis.call('EXISTS'", "redis.call(command", "name the command in the call"},
	} {
		expect(t, problems(strings.Replace(good, c.old, c.replacement, 1)), c.want)
	}
	part := strings.Replace(strings.Replace(good, "-- ARGV: token · ttl in ms · a thing\n", "", 1), "-- KEYS", "-- fragment: take(ttl)\n-- KEYS", 1)
	expect(t, problems(part), "ARGV[1]: a fragment has no ARGV", "ARGV[2]: a fragment has no ARGV", "ARGV[3]: a fragment has no ARGV")
}
