package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// luaCommand is a Redis command that scripts may use.
type luaCommand struct {
	keys   int  // its first arguments that are keys, or all
	writes bool // flagged as a write: a replica refuses it
	why    string
}

// all arguments of a command are keys.
const all = -1

// luaCommands are the commands that scripts use. A user's ACL must allow them
// all, besides EVALSHA, EVAL and what Go sends by itself; so the list is exact.
var luaCommands = map[string]luaCommand{
	"DEL":              {1, true, "frees a lease"},
	"EXISTS":           {all, false, "does anybody wait?"},
	"GET":              {1, false, "looks at a counter, a tombstone, a mark, and at data that is no lock, which it refuses"},
	"GETEX":            {1, true, "looks, and is refused by a replica: see docs/adr/0001-first-write.md"},
	"HDEL":             {1, true, "takes out who has left, and what is over"},
	"HGET":             {1, false, "who may join a lease, and who has"},
	"HGETALL":          {1, false, "looks for what dead callers left behind"},
	"HLEN":             {1, false, "is there so much that it is worth looking?"},
	"HSET":             {1, true, "registers a secret, or who has joined by it"},
	"INCRBY":           {1, true, "counts fences while the counter is ahead of the clock"},
	"INFO":             {0, false, "replication, stats, memory: is a quorum's node still the server that it was?"},
	"MGET":             {all, false, "looks at a lease, its counter and its tombstone at once; data of another type is no error to it"},
	"PEXPIRE":          {1, true, "renews a lease, or keeps it"},
	"PTTL":             {1, false, "how long is left of a lease"},
	"PUBLISH":          {0, false, "tells a waiter that it is its turn"},
	"PUBSUB":           {0, false, "NUMSUB, SHARDNUMSUB: does the waiter's process still listen?"},
	"SPUBLISH":         {0, false, "the same as PUBLISH, on a Redis Cluster"},
	"SET":              {1, true, "grants a lease, counts a fence, leaves a tombstone or a mark"},
	"TIME":             {0, false, "the only clock of a script"},
	"TYPE":             {1, false, "is it a lock at all? GETEX of anything else would end the renewal of a whole batch"},
	"ZADD":             {1, true, "queues, and marks whoever was handed the key"},
	"ZCARD":            {1, false, "how many read; and is it a sorted set at all? Another type is refused before anything is done"},
	"ZCOUNT":           {1, false, "how many wait"},
	"ZRANGE":           {1, false, "who is first"},
	"ZRANK":            {1, false, "which place a waiter has"},
	"ZREM":             {1, true, "takes a waiter out of the queue"},
	"ZREMRANGEBYSCORE": {1, true, "takes whoever was handed the key out of the queue, and readers whose time is over"},
	"ZSCORE":           {1, false, "does it read still?"},
}

const (
	callsCommand = "runs a command"
	triesCommand = "runs a command that may fail: one of luaTried"
)

// luaRedis is what scripts may use of the redis object.
var luaRedis = map[string]string{
	"call":        callsCommand,
	"pcall":       triesCommand,
	"error_reply": "refuses with an error of our own",
}

// luaTried are the commands for redis.pcall. Not for a write: one that was refused must end the script.
var luaTried = map[string]string{
	"PUBLISH":  "a user's ACL may forbid the channel; that is a message lost, and no reason to stop half-way through a release",
	"PUBSUB":   "the same: whoever cannot be counted counts as there",
	"SPUBLISH": "as PUBLISH",
}

// luaForbidden is what no script may use.
var luaForbidden = map[string]string{
	"math.random":     "a script that is sent twice must do the same twice: draw in Go, and pass it",
	"math.randomseed": "a script draws nothing",
	"os":              "the clock is redis.call('TIME'), and the rest is not there",
	"loadstring":      "a script is what its file says",
	"_G":              "globals outlive the script",
}

// TestLua holds each script to its header, and the header to the Go code that
// runs the script.
func TestLua(t *testing.T) {
	t.Parallel()
	tree := repo(t)
	report(t, checkLua(t, tree))
	report(t, checkCommands(t, tree))
}

func checkLua(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	files := make(map[string][]luaScript) // by the folder with the Go files
	for _, file := range find(t, tree, "*.lua") {
		s, more := parseLua(file, read(t, tree, file))
		problems = append(problems, more...)
		dir := path.Dir(path.Dir(file))
		files[dir] = append(files[dir], s)
	}
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		callers := parseScripts(t, tree, dir)
		problems = append(problems, callers.problems...)
		for _, s := range files[dir] {
			parts, more := callers.partsOf(s, files[dir])
			problems = append(problems, more...)
			problems = append(problems, s.check(parts)...)
			problems = append(problems, s.checkParts(parts, files[dir])...)
			if !s.isFragment() {
				problems = append(problems, callers.check(s.file, s.promised("KEYS"), s.promised("ARGV"))...)
			}
		}
	}
	return problems
}

// checkCommands finds rows of luaCommands that nobody needs any more.
func checkCommands(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	unused := maps.Clone(luaCommands)
	for _, file := range find(t, tree, "*.lua") {
		s, _ := parseLua(file, read(t, tree, file))
		calls, _ := s.calls()
		for _, c := range calls {
			delete(unused, c.command)
		}
	}
	for _, command := range slices.Sorted(maps.Keys(unused)) {
		problems = append(problems, fmt.Sprintf("no script uses %s any more: strike its row in luaCommands, so that users need not allow it", command))
	}
	return problems
}

const (
	goodLua = `-- good.lua: take it.
--
-- KEYS: lease L · done mark D
-- ARGV: token · ttl in ms, 0: none · a thing, which is
--       described on two lines
-- returns: 1
-- idempotent: yes,
--   it is.
-- first write: SET L, which a full server refuses.
if redis.call('EXISTS', KEYS[2]) == 1 then -- KEYS[7] in a comment
  return 'KEYS[8] in a string'
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. ARGV[3], 'PX', ARGV[2])
return 1
`
	manyLua = `-- many.lua: take them.
--
-- KEYS: leases L1 … Ln
-- ARGV: for each lease: token · ttl in ms
-- returns: 1
-- idempotent: yes.
-- first write: PEXPIRE.
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2 * i])
  end
end
`
	lookLua = `-- look.lua: look.
--
-- KEYS: lease L
-- ARGV: none
-- returns: the lease
-- idempotent: it writes nothing.
return redis.call('GET', KEYS[1])
`
	partLua = `-- part.lua: count.
--
-- fragment: count(ttl)
-- KEYS: lease L · counter C
-- returns: the number
-- idempotent: no; for who has seen that it must be done.
-- first write: SET C.
local function next_of(n)
  if not n then
    return 1
  end
  return n + 1
end

local function count(ttl)
  for i = 1, 1 do
    redis.call('SET', KEYS[2], next_of(redis.call('GET', KEYS[2])), 'PX', ttl)
  end
end
`
	wholeLua = `-- whole.lua: count, when it is there.
--
-- KEYS: lease L · counter C · mark D
-- ARGV: ttl in ms
-- returns: 1
-- idempotent: no.
-- first write: SET C.
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 2 then
  count(ARGV[1])
  redis.pcall('PUBLISH', 'news', ARGV[1])
end
return 1
`
	luaGo = `package locker

import _ "embed"

var (
	//go:embed lua/good.lua
	goodLua string
	//go:embed lua/many.lua
	manyLua string

	goodScript = newScript(goodLua)
	manyScript = newScript(manyLua)
)

//go:embed lua/look.lua
var lookLua string

var lookScript = newScript(lookLua)

func one() {
	_ = goodScript.run(ctx, c, []string{l, d}, token, ttl, thing)
	_ = lookScript.run(ctx, c, []string{l})
}

func many(claims []claim) {
	keys := make([]string, len(claims))
	var args []any
	for i, c := range claims {
		keys[i] = c.key
		args = append(args, c.token, c.ttl)
	}
	_ = manyScript.run(ctx, c, keys, args...)
}

var (
	//go:embed lua/part.lua
	partLua string
	//go:embed lua/whole.lua
	wholeLua string

	wholeScript = newScript(wholeLua, partLua)
)

func whole() {
	_ = wholeScript.run(ctx, c, []string{l, f, d}, ttl)
}
`
	// pairsLua takes two keys for each lease.
	pairsLua = `-- many.lua: take them.
--
-- KEYS: for each lease: lease L · queue Q
-- ARGV: for each lease: token · ttl in ms
-- returns: 1
-- idempotent: yes.
-- first write: PEXPIRE.
for i = 1, #KEYS / 2 do
  if redis.call('GET', KEYS[2 * i - 1]) == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', KEYS[2 * i], ARGV[2 * i])
  end
end
`
)

func TestLuaRefused(t *testing.T) {
	t.Parallel()
	good := map[string]string{"good.lua": goodLua, "many.lua": manyLua, "look.lua": lookLua, "part.lua": partLua, "whole.lua": wholeLua, "locker.go": luaGo}
	tree := func(file, text string) fs.FS {
		files := make(fstest.MapFS)
		for name, text := range good {
			if strings.HasSuffix(name, ".lua") {
				name = "lua/" + name
			}
			files["locker/"+name] = &fstest.MapFile{Data: []byte(text)}
		}
		if strings.HasSuffix(file, ".lua") {
			file = "lua/" + file
		}
		files["locker/"+file] = &fstest.MapFile{Data: []byte(text)}
		return files
	}
	expect(t, checkLua(t, tree("locker.go", luaGo)))

	for _, c := range []struct {
		file, old, with string
		want            []string
	}{
		// The header.
		{"good.lua", "-- good.lua:", "-- other.lua:", []string{"good.lua: begin with `-- good.lua: `"}},
		{"look.lua", "-- ARGV: none\n", "", []string{"look.lua: the header has no `-- ARGV: `, which a caller must know"}},
		{"good.lua", "-- returns: 1\n", "", []string{"good.lua: the header has no `-- returns: `"}},
		{"good.lua", "-- returns: 1\n-- idem", "-- idem", []string{"good.lua: the header has no `-- returns: `"}},
		{"look.lua", "-- returns: the lease\n-- idempotent: it writes nothing.", "-- idempotent: it writes nothing.\n-- returns: the lease", []string{"in this order"}},
		{"good.lua", "-- first write: SET L, which a full server refuses.\n", "", []string{"good.lua: it writes, so its header needs `-- first write: `"}},
		{"good.lua", "first write: SET L", "first write: DEL L", []string{"begins with no command that the body writes with (SET)"}},
		{"look.lua", "it writes nothing", "yes", []string{"look.lua: it has no write, so"}},
		{"look.lua", "nothing.\n", "nothing.\n-- first write: GET.\n", []string{"look.lua: it has no write, so"}},

		// The header against the body.
		{"good.lua", "lease L · done mark D", "lease L", []string{"good.lua:10: KEYS[2] is used, and the header lists 1", "good.lua takes KEYS 1, and is given 2"}},
		{"good.lua", "lease L · done", "lease L · counter C · done", []string{"good.lua:1: the header lists KEYS 3, and the body uses 2", "good.lua takes KEYS 3, and is given 2"}},
		{"good.lua", "token · ttl in", "token · ttl · in", []string{"good.lua:1: the header lists ARGV 4, and the body uses 3", "good.lua takes ARGV 4, and is given 3"}},
		{"good.lua", "ARGV[3]", "ARGV[2]", []string{"good.lua:1: the header lists ARGV 3, and the body uses 2"}},
		{"good.lua", "none · a thing", "none · [a thing", []string{"good.lua: run it by short if its header has [what may be missing at the end]"}},
		{"good.lua", "ARGV[3]", "ARGV[#ARGV]", []string{"good.lua:13: reach ARGV by numbers only", "good.lua:13: reach ARGV by numbers only"}},
		{"good.lua", "return 1\n", "return unpack(KEYS)\n", []string{"good.lua:14: reach KEYS by numbers only"}},
		{"many.lua", "ARGV[2 * i]", "ARGV[3 * i]", []string{"many.lua:10: the header says ARGV 2 for each lease: reach them by ARGV[2 * i - …] only"}},
		{"many.lua", "ARGV[2 * i]", "ARGV[2 * i + 1]", []string{"many.lua:1: the header lists ARGV 2 for each lease, and the body uses 1"}},
		{"many.lua", "ARGV[2 * i]", "ARGV[2]", []string{"many.lua:10: the header says ARGV 2 for each lease"}},
		{"many.lua", "KEYS[i], ARGV", "KEYS[1], ARGV", []string{"many.lua:10: the header says KEYS 1 for each lease"}},
		{"many.lua", "token · ttl in ms", "token · ttl · more", []string{
			"many.lua:9: the header says ARGV 3 for each lease", "many.lua:10: the header says ARGV 3 for each lease", "many.lua takes ARGV 3 for each lease",
		}},

		// The body.
		{"good.lua", "'EXISTS'", "'SCAN'", []string{"good.lua:10: SCAN is in no row of luaCommands"}},
		{"good.lua", "'EXISTS', KEYS[2]", "'EXISTS', KEYS[2] .. ':x'", []string{"good.lua:10: argument 1 of EXISTS is a key, so it must be KEYS[…] and not KEYS [ 2 ] .. ':x'"}},
		{"look.lua", "'GET', KEYS[1]", "'GET', 'latchkit:' .. KEYS[1]", []string{"look.lua:7: argument 1 of GET is a key"}},
		{"good.lua", "redis.call('EXISTS', KEYS[2])", "redis.call(KEYS[2])", []string{"good.lua:10: name the command in the call"}},
		{"good.lua", "redis.call('EXISTS'", "redis.pcall('EXISTS'", []string{"good.lua:10: EXISTS is in no row of luaTried"}},
		{"good.lua", "redis.call('EXISTS'", "redis.log('EXISTS'", []string{"good.lua:10: redis.log is in no row of luaRedis"}},
		{"whole.lua", "KEYS[1], KEYS[3]", "KEYS[1], KEYS[3] .. ':x'", []string{"whole.lua:8: argument 2 of EXISTS is a key"}},
		{"whole.lua", "'EXISTS', KEYS[1], KEYS[3]", "'EXISTS'", []string{"whole.lua:8: EXISTS is not told its key", "whole.lua:1: the header lists KEYS 3, and the body uses 1"}},

		// Fragments.
		{"part.lua", "-- part.lua:", "-- other.lua:", []string{"part.lua: begin with `-- part.lua: `"}},
		{"part.lua", "-- fragment: count(ttl)\n", "", []string{
			"part.lua: the header has no `-- ARGV: `", "part.lua: it is a part of whole.lua, so its header needs `-- fragment: `",
			"part.lua:1: the header lists KEYS 2", "no script variable is made by newScript(partLua)",
			"whole.lua:1: the header lists KEYS 3", "whole.lua: it has no write",
		}},
		{"part.lua", "-- returns: the number\n", "", []string{"part.lua: the header has no `-- returns: `"}},
		{"part.lua", "-- returns: the", "-- ARGV: none\n-- returns: the", []string{"part.lua: a fragment has no ARGV"}},
		{"part.lua", "-- first write: SET C.\n", "", []string{"part.lua: it writes, so its header needs `-- first write: `"}},
		{"part.lua", "fragment: count(ttl)", "fragment: count(ttl) · more(n)", []string{"part.lua: the header speaks of more, which is no local function of it"}},
		{"part.lua", "lease L · counter C", "lease L · counter C · more", []string{
			"part.lua:1: the header lists KEYS 3, and the body uses 1", "part.lua has the KEYS lease L · counter C · more, and whole.lua lease L · counter C · mark D",
		}},
		{"part.lua", "lease L · counter C", "lease L", []string{"part.lua:17: KEYS[2] is used, and the header lists 1", "part.lua:17: KEYS[2] is used, and the header lists 1"}},
		{"part.lua", "lease L · counter C", "counter C · lease L", []string{"part.lua has the KEYS counter C · lease L, and whole.lua lease L"}},
		{"part.lua", "'PX', ttl)", "'PX', ARGV[1])", []string{"part.lua:17: ARGV[1] is used, and the header lists 0"}},
		{"part.lua", "'SET', KEYS[2]", "'SET', ttl", []string{"part.lua:17: argument 1 of SET is a key"}},
		{"part.lua", "'GET', KEYS[2]", "'SCAN'", []string{"part.lua:17: SCAN is in no row of luaCommands"}},
		{"part.lua", "local function count", "redis.call('TIME')\nlocal function count", []string{"part.lua:15: a fragment is nothing but local functions"}},
		{"part.lua", "local function next_of", "function next_of", []string{"part.lua:8: a fragment is nothing but local functions"}},
		{"whole.lua", "\n  count(ARGV[1])\n", "\n  count(ARGV[1])\n\n-- fragments\n", []string{"whole.lua:9: count is a function of part.lua, which stands further down"}},
		{"whole.lua", "  count(ARGV[1])\n", "", []string{"whole.lua needs nothing of part.lua"}},
		{"whole.lua", "lease L · counter C · mark D", "lease L · mark D", []string{
			"whole.lua:8: KEYS[3] is used, and the header lists 2", "part.lua has the KEYS lease L · counter C, and whole.lua lease L · mark D", "whole.lua takes KEYS 2, and is given 3",
		}},
		{"look.lua", "return redis", "count(1)\nreturn redis", []string{"look.lua:7: count is a function of part.lua: give that to its newScript"}},
		{"locker.go", "newScript(wholeLua, partLua)", "newScript(partLua, wholeLua)", []string{
			"part.lua is a fragment: put it behind a script in newScript", "whole.lua: it is a part of part.lua", "no script variable is made by newScript(wholeLua)",
			"whole.lua:9: count is a function of part.lua", "whole.lua:1: the header lists KEYS 3, and the body uses 2", "whole.lua: it has no write",
		}},
		{"locker.go", "newScript(wholeLua, partLua)", "newScript(wholeLua)", []string{
			"part.lua is a fragment of no script", "whole.lua:9: count is a function of part.lua", "whole.lua:1: the header lists KEYS 3, and the body uses 2", "whole.lua: it has no write",
		}},
		{"locker.go", "newScript(wholeLua, partLua)", "newScript(partLua + text() + wholeLua)", []string{
			"locker/locker.go:41: make a script of the texts of Lua files", "no script variable is made by newScript(wholeLua)", "part.lua is a fragment of no script",
			"whole.lua:9: count is a function of part.lua", "whole.lua:1: the header lists KEYS 3, and the body uses 2", "whole.lua: it has no write",
		}},
		{"good.lua", "return 1\n", "return math.random(9)\n", []string{"good.lua:14: math.random: a script that is sent twice"}},
		{"good.lua", "return 1\n", "return os.time()\n", []string{"good.lua:14: os: the clock is"}},
		{"good.lua", "return 1\n", "return 'open\n", []string{"good.lua: line 14 cannot be read", "ARGV 3", "KEYS 2", "first write"}},

		// The Go code.
		{"locker.go", "[]string{l, d}", "[]string{l}", []string{"locker/locker.go:21: locker/lua/good.lua takes KEYS 2, and is given 1"}},
		{"locker.go", "token, ttl, thing", "token, ttl", []string{"locker/locker.go:21: locker/lua/good.lua takes ARGV 3, and is given 2"}},
		{"locker.go", "[]string{l, d}", "keys", []string{"write them into the call"}},
		{"locker.go", "token, ttl, thing)", "args...)", []string{"write them into the call"}},
		{"locker.go", "c.token, c.ttl)", "c.token)", []string{"many.lua takes ARGV 2 for each lease: append so many to args in each turn of one loop: it has [1]"}},
		{"locker.go", "keys[i] = c.key", "", []string{"many.lua takes KEYS 1 for each lease: fill keys with so many in each turn of one loop: it has []"}},
		{"locker.go", "manyScript.run(ctx, c, keys, args...)", "manyScript.run(ctx, c, []string{l}, token, ttl)", []string{"give it slices"}},
		{"locker.go", "manyScript.run(ctx, c, keys, args...)", "manyScript.call([]string{l}, token, ttl)", []string{"give it slices"}},
		{"locker.go", "c, []string{l, d}, token, ttl, thing)", "c, []string{l, d}, token, ttl, thing)\n	goodScript.call([]string{l}, token, ttl, thing)", []string{"good.lua takes KEYS 2, and is given 1"}},
		{"locker.go", "//go:embed lua/good.lua\n", "", []string{"locker/lua/good.lua is embedded by 0 go:embed"}},
		{"locker.go", "func one()", "//go:embed lua/good.lua\nvar again string\n\nfunc one()", []string{"locker/lua/good.lua is embedded by 2 go:embed"}},
		{"locker.go", "lua/look.lua", "lua/*.lua", []string{"locker/locker.go:15: embed one Lua file by its name, not lua/*.lua", "locker/lua/look.lua is embedded by 0 go:embed"}},
		{"locker.go", "newScript(goodLua)", "newScript(otherLua)", []string{"no script variable is made by newScript(goodLua)"}},
		{"locker.go", "_ = lookScript.run(ctx, c, []string{l})", "", []string{"locker/lua/look.lua is run by nobody"}},
		{"locker.go", "func one() {", "func one() {\n\tpipeline(lookScript, l)", []string{"locker/locker.go:21: lookScript is used other than by lookScript.run"}},
		{"new.lua", "", lookLua, []string{"locker/lua/new.lua: begin with", "locker/lua/new.lua is embedded by 0 go:embed"}},
	} {
		t.Run(c.file+" "+c.old+" > "+c.with, func(t *testing.T) {
			t.Parallel()
			broken := strings.Replace(good[c.file], c.old, c.with, 1)
			if broken == good[c.file] {
				t.Fatal("nothing is broken")
			}
			expect(t, checkLua(t, tree(c.file, broken)), c.want...)
		})
	}

	t.Run("a command that nobody uses", func(t *testing.T) {
		t.Parallel()
		expect(t, checkCommands(t, tree("locker.go", luaGo)), "no script uses DEL", "no script uses GETEX", "no script uses HDEL", "no script uses HGET ",
			"no script uses HGETALL", "no script uses HLEN", "no script uses HSET", "no script uses INCRBY", "no script uses INFO", "no script uses MGET", "no script uses PTTL", "no script uses PUBSUB",
			"no script uses SPUBLISH", "no script uses TIME", "no script uses TYPE", "no script uses ZADD", "no script uses ZCARD", "no script uses ZCOUNT",
			"no script uses ZRANGE ", "no script uses ZRANK", "no script uses ZREM ", "no script uses ZREMRANGEBYSCORE", "no script uses ZSCORE")
	})

	t.Run("fragments that call each other", func(t *testing.T) {
		t.Parallel()
		twice := strings.NewReplacer("part.lua", "twice.lua", "count(ttl)", "twice(ttl)", "local function count(ttl)", "local function twice(ttl)",
			"for i = 1, 1", "for i = 1, count(1)", "next_of", "after").Replace(partLua)
		files := tree("twice.lua", twice).(fstest.MapFS) //nolint:forcetypeassert // it makes one
		files["locker/lua/whole.lua"] = &fstest.MapFile{Data: []byte(strings.Replace(wholeLua, "count(", "twice(", 1))}
		embed := func(sum string) {
			text := strings.NewReplacer("wholeLua, partLua", sum, "	partLua string", "	partLua string\n	//go:embed lua/twice.lua\n	twiceLua string").Replace(luaGo)
			files["locker/locker.go"] = &fstest.MapFile{Data: []byte(text)}
		}
		embed("wholeLua, partLua, twiceLua")
		expect(t, checkLua(t, files))
		embed("wholeLua, twiceLua, partLua")
		expect(t, checkLua(t, files), "whole.lua: twice.lua calls count, which is a function of part.lua: put that before it")
		embed("wholeLua, twiceLua")
		expect(t, checkLua(t, files), "whole.lua: twice.lua calls count, which is a function of part.lua: put that before it", "part.lua is a fragment of no script")
	})

	t.Run("two keys for each lease", func(t *testing.T) {
		t.Parallel()
		files := tree("many.lua", pairsLua).(fstest.MapFS) //nolint:forcetypeassert // it makes one
		expect(t, checkLua(t, files), "many.lua takes KEYS 2 for each lease: fill keys with so many in each turn of one loop: it has [1]")
		appends := strings.Replace(luaGo, "keys[i] = c.key", "keys = append(keys, c.key, queueOf(c.key))", 1)
		files["locker/locker.go"] = &fstest.MapFile{Data: []byte(appends)}
		expect(t, checkLua(t, files))
	})
}
