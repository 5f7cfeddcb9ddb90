package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// luaScript is a script with what its header promises.
type luaScript struct {
	file   string // in the repository
	title  string // the header's first line
	fields map[string]string
	code   luaCode
}

// luaFields are the parts of a header, in this order.
var luaFields = []string{"KEYS", "ARGV", "returns", "idempotent", "first write"}

// parseLua reads a script; a comment line that is indented goes on with the part above it.
func parseLua(file, text string) (s luaScript, problems []string) {
	s = luaScript{file: file, fields: make(map[string]string)}
	s.title, _, _ = strings.Cut(text, "\n")
	part, last := "", -1
	for line := range strings.Lines(text) {
		line, comment := strings.CutPrefix(strings.TrimRight(line, "\n"), "--")
		if !comment {
			break
		}
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, " "), ":")
		if i := slices.Index(luaFields, name); i >= 0 {
			if i <= last {
				problems = append(problems, fmt.Sprintf("%s: the header's parts are %s, in this order", file, strings.Join(luaFields, ", ")))
			}
			part, last = name, i
			s.fields[part] = strings.TrimSpace(rest)
		} else if strings.HasPrefix(line, "  ") && part != "" {
			s.fields[part] += " " + strings.TrimSpace(line)
		}
	}
	var err error
	if s.code, err = lexLua(text); err != nil {
		problems = append(problems, fmt.Sprintf("%s: %v", file, err))
	}
	return s, problems
}

// arity says how many KEYS or ARGV there are: n, or n for each of as many leases as the caller likes.
type arity struct {
	n    int
	each bool
}

func (a arity) String() string {
	if a.each {
		return fmt.Sprintf("%d for each lease", a.n)
	}
	return strconv.Itoa(a.n)
}

var forEach = regexp.MustCompile(`^for each [^:]*: `)

// promised counts the items of KEYS or ARGV in the header: "lease L · tombstone X", "none", "leases L1 … Ln", or
// "for each lease: token · ttl in ms".
func (s luaScript) promised(table string) arity {
	text := s.fields[table]
	items := strings.Split(text, " · ")
	switch {
	case text == "none" || text == "":
		return arity{}
	case forEach.MatchString(text):
		return arity{len(items), true}
	}
	return arity{len(items), len(items) == 1 && strings.Contains(text, " … ")}
}

// checkUses compares what the body takes out of KEYS or ARGV with the header.
func (s luaScript) checkUses(table string) (problems []string) {
	want := s.promised(table)
	bad := func(line int, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: %s", s.file, line, fmt.Sprintf(format, args...)))
	}
	used := make(map[int]bool) // numbers, or for each lease the rests of division by want.n
	for i, t := range s.code {
		if !t.is(table) {
			continue
		}
		index := luaCode{}
		if s.code.at(i + 1).is("[") {
			index = s.code.inside(i + 1)
		}
		factor, plus, counted := linear(index)
		switch {
		case want.each && s.code.at(i-1).is("#"):
		case want.each && counted && factor == want.n:
			used[((plus%want.n)+want.n)%want.n] = true
		case want.each:
			bad(t.line, "the header says %s %s: reach them by %s[%d * i - …] only, so that they can be counted", table, want, table, want.n)
		case !counted || factor != 0:
			bad(t.line, "reach %s by numbers only, as in %s[1], so that they can be counted", table, table)
		case plus < 1 || plus > want.n:
			bad(t.line, "%s[%d] is used, and the header lists %s", table, plus, want)
		default:
			used[plus] = true
		}
	}
	if len(used) < want.n && len(problems) == 0 {
		bad(1, "the header lists %s %s, and the body uses %d: strike what is not needed, here and at the call", table, want, len(used))
	}
	return problems
}

// linear reads an index: n, i, n * i, and n * i - m or + m. The factor is 0 where there is no variable.
func linear(c luaCode) (factor, plus int, ok bool) {
	number := func(t luaToken) (int, bool) {
		n, err := strconv.Atoi(t.text)
		return n, err == nil && t.kind == luaNumber
	}
	n, isNumber := number(c.at(0))
	rest := c
	switch {
	case isNumber && len(c) == 1:
		return 0, n, true
	case isNumber && c.at(1).is("*") && c.at(2).kind == luaName:
		factor, rest = n, c[3:]
	case len(c) > 0 && c[0].kind == luaName:
		factor, rest = 1, c[1:]
	default:
		return 0, 0, false
	}
	if len(rest) == 0 {
		return factor, 0, true
	}
	m, isNumber := number(rest.at(1))
	switch {
	case len(rest) != 2 || !isNumber:
		return 0, 0, false
	case rest[0].is("-"):
		return factor, -m, true
	case rest[0].is("+"):
		return factor, m, true
	}
	return 0, 0, false
}

// luaCall is a redis.call of a script.
type luaCall struct {
	command string
	args    []luaCode // after the command
	line    int
}

// calls finds what a script does with redis.
func (s luaScript) calls() (calls []luaCall, problems []string) {
	for i, t := range s.code {
		if !t.is("redis") || s.code.at(i-1).is(".") {
			continue
		}
		member := s.code.at(i + 2).text
		if why, ok := luaRedis[member]; !ok || !s.code.at(i+1).is(".") {
			problems = append(problems, fmt.Sprintf("%s:%d: redis.%s is in no row of luaRedis (internal/archtest/lua_test.go): use redis.call, or add a row with the reason", s.file, t.line, member))
			continue
		} else if why != callsCommand {
			continue
		}
		args := luaCode{}
		if s.code.at(i + 3).is("(") {
			args = s.code.inside(i + 3)
		}
		parts := args.split()
		if len(parts) == 0 || len(parts[0]) != 1 || parts[0][0].kind != luaString {
			problems = append(problems, fmt.Sprintf("%s:%d: name the command in the call, as in redis.call('GET', KEYS[1]), so that the commands can be listed", s.file, t.line))
			continue
		}
		calls = append(calls, luaCall{strings.ToUpper(parts[0][0].text), parts[1:], t.line})
	}
	return calls, problems
}

// check looks at one script by itself.
func (s luaScript) check() (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, s.file+fmt.Sprintf(format, args...))
	}
	if name := path.Base(s.file); !strings.HasPrefix(s.title, "-- "+name+": ") {
		bad(": begin with `-- %s: ` and what the script does", name)
	}
	for _, field := range luaFields {
		if _, ok := s.fields[field]; !ok && field != "first write" {
			bad(": the header has no `-- %s: `, which a caller must know; where there is nothing to say, say none", field)
		}
	}
	problems = append(problems, s.checkUses("KEYS")...)
	problems = append(problems, s.checkUses("ARGV")...)

	calls, more := s.calls()
	problems = append(problems, more...)
	var writes []string
	for _, c := range calls {
		rule, ok := luaCommands[c.command]
		if !ok {
			bad(":%d: %s is in no row of luaCommands (internal/archtest/lua_test.go): every user's ACL must allow it, so add a row with the reason", c.line, c.command)
			continue
		}
		if rule.writes {
			writes = append(writes, c.command)
		}
		for n, arg := range c.args[:min(rule.keys, len(c.args))] {
			if !arg.follow(0, "KEYS", "[") || len(arg.inside(1)) != len(arg)-3 {
				bad(":%d: argument %d of %s is a key, so it must be KEYS[…] and not %s: a cluster, and an ACL, must be told all keys", c.line, n+1, c.command, arg)
			}
		}
		if len(c.args) < rule.keys {
			bad(":%d: %s is not told its key", c.line, c.command)
		}
	}
	for i, t := range s.code {
		for name, why := range luaForbidden {
			words := strings.Fields(strings.ReplaceAll(name, ".", " . "))
			if !s.code.at(i-1).is(".") && s.code.follow(i, words...) {
				bad(":%d: %s: %s", t.line, name, why)
			}
		}
	}
	return append(problems, s.checkFirstWrite(writes)...)
}

// checkFirstWrite holds the header to what the body writes.
func (s luaScript) checkFirstWrite(writes []string) []string {
	const nothing = "it writes nothing"
	text, said := s.fields["first write"]
	first, _, _ := strings.Cut(text, " ")
	first = strings.TrimRight(first, ",.;:")
	silent := strings.Contains(s.fields["idempotent"], nothing)
	switch {
	case len(writes) == 0 && (said || !silent):
		return []string{s.file + ": it has no write, so its header has no `first write`, but says `-- idempotent: " + nothing + ".`"}
	case len(writes) > 0 && (!said || silent):
		return []string{s.file + ": it writes, so its header needs `-- first write: ` with the command, and what a full or read-only server makes of it"}
	case len(writes) > 0 && !slices.Contains(writes, first):
		return []string{fmt.Sprintf("%s: `first write: %s` begins with no command that the body writes with (%s)", s.file, text, strings.Join(slices.Compact(slices.Sorted(slices.Values(writes))), ", "))}
	}
	return nil
}
