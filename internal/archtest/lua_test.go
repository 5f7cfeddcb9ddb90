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
	keys   int  // its first arguments that are keys
	writes bool // flagged as a write: a replica refuses it
	why    string
}

// luaCommands are the commands that scripts use. A user's ACL must allow them
// all, besides EVALSHA, EVAL and what Go sends by itself; so the list is exact.
var luaCommands = map[string]luaCommand{
	"DEL":     {1, true, "frees a lease"},
	"EXISTS":  {1, false, "is the work of Rule.Once done?"},
	"GET":     {1, false, "looks at a counter, a tombstone, and at data that is no lock"},
	"GETEX":   {1, true, "looks, and is refused by a replica: see docs/adr/0001-first-write.md"},
	"MGET":    {3, false, "looks at a lease, its counter and its tombstone at once"},
	"PEXPIRE": {1, true, "renews a lease, or keeps it"},
	"PTTL":    {1, false, "how long is left of a lease"},
	"SET":     {1, true, "grants a lease, counts a fence, leaves a tombstone or a mark"},
	"TIME":    {0, false, "the only clock of a script"},
	"TYPE":    {1, false, "is it a lock at all? GETEX of anything else would end the renewal of a whole batch"},
}

// callsCommand is the row of what runs a command.
const callsCommand = "runs a command"

// luaRedis is what scripts may use of the redis object. Not pcall: a write that
// was refused must end the script.
var luaRedis = map[string]string{
	"call":        callsCommand,
	"error_reply": "refuses with an error of our own",
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
	callers := make(map[string]*scripts)
	for _, file := range find(t, tree, "*.lua") {
		dir := path.Dir(path.Dir(file))
		if callers[dir] == nil {
			callers[dir] = parseScripts(t, tree, dir)
			problems = append(problems, callers[dir].problems...)
		}
		s, more := parseLua(file, read(t, tree, file))
		problems = append(problems, more...)
		problems = append(problems, s.check()...)
		problems = append(problems, callers[dir].check(file, s.promised("KEYS"), s.promised("ARGV"))...)
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
`
)

func TestLuaRefused(t *testing.T) {
	t.Parallel()
	good := map[string]string{"good.lua": goodLua, "many.lua": manyLua, "look.lua": lookLua, "locker.go": luaGo}
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
		{"good.lua", "redis.call('EXISTS'", "redis.pcall('EXISTS'", []string{"good.lua:10: redis.pcall is in no row of luaRedis"}},
		{"good.lua", "return 1\n", "return math.random(9)\n", []string{"good.lua:14: math.random: a script that is sent twice"}},
		{"good.lua", "return 1\n", "return os.time()\n", []string{"good.lua:14: os: the clock is"}},
		{"good.lua", "return 1\n", "return 'open\n", []string{"good.lua: line 14 cannot be read", "ARGV 3", "KEYS 2", "first write"}},

		// The Go code.
		{"locker.go", "[]string{l, d}", "[]string{l}", []string{"locker/locker.go:21: locker/lua/good.lua takes KEYS 2, and is given 1"}},
		{"locker.go", "token, ttl, thing", "token, ttl", []string{"locker/locker.go:21: locker/lua/good.lua takes ARGV 3, and is given 2"}},
		{"locker.go", "[]string{l, d}", "keys", []string{"write them into the call"}},
		{"locker.go", "token, ttl, thing)", "args...)", []string{"write them into the call"}},
		{"locker.go", "c.token, c.ttl)", "c.token)", []string{"many.lua takes ARGV 2 for each lease: append so many to args in each turn of one loop: it has [1]"}},
		{"locker.go", "keys[i] = c.key", "", []string{"many.lua: fill keys in one loop"}},
		{"locker.go", "manyScript.run(ctx, c, keys, args...)", "manyScript.run(ctx, c, []string{l}, token, ttl)", []string{"give it slices"}},
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
		expect(t, checkCommands(t, tree("locker.go", luaGo)), "no script uses DEL", "no script uses GETEX", "no script uses MGET", "no script uses PTTL", "no script uses TIME", "no script uses TYPE")
	})
}
