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
	below  int // the line from which on its fragments are there
}

// luaFields are the parts of a header, in this order. A fragment is text that several scripts share: functions, which
// `-- fragment: take(token) · give()` lists. It has no ARGV, and its KEYS are the first of each script that it stands in.
var luaFields = []string{"fragment", "KEYS", "ARGV", "returns", "idempotent", "first write"}

func (s luaScript) isFragment() bool { return s.fields["fragment"] != "" }

// name is how scripts and messages call the file.
func (s luaScript) name() string { return path.Base(s.file) }

// parseLua reads a script; a comment line that is indented goes on with the part above it.
func parseLua(file, text string) (s luaScript, problems []string) {
	s = luaScript{file: file, fields: make(map[string]string)}
	s.title, _, _ = strings.Cut(text, "\n")
	if above, _, found := strings.Cut(text, "\n-- fragments\n"); found {
		s.below = strings.Count(above, "\n") + 2
	}
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
	n     int
	each  bool
	short bool // what stands in brackets may be missing
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
		return arity{n: len(items), each: true}
	}
	return arity{n: len(items), each: len(items) == 1 && strings.Contains(text, " … "), short: strings.Contains(text, " · [")}
}

// checkUses compares what the body, and its fragments, take out of KEYS or ARGV with the header. A fragment may
// leave keys out that lie between its own.
func (s luaScript) checkUses(table string, parts []luaScript) (problems []string) {
	want := s.promised(table)
	bad := func(line int, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: %s", s.file, line, fmt.Sprintf(format, args...)))
	}
	used := make(map[int]bool) // numbers, or for each lease the rests of division by want.n
	for _, part := range parts {
		for i, t := range part.code {
			if _, n, ok := linear(part.code.index(i)); ok && t.is(table) {
				used[n] = true
			}
		}
	}
	for i, t := range s.code {
		if !t.is(table) {
			continue
		}
		index := s.code.index(i)
		factor, plus, counted := linear(index)
		switch {
		case want.each && s.code.at(i-1).is("#"):
		case want.each && want.n == 1 && s.code.isUnpacked(i):
			used[0] = true
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
	if s.isFragment() && used[want.n] {
		return problems
	}
	if len(used) < want.n && len(problems) == 0 {
		bad(1, "the header lists %s %s, and the body uses %d: strike what is not needed, here and at the call", table, want, len(used))
	}
	return problems
}

// isUnpacked says whether a table stands in unpack(…), all of it.
func (c luaCode) isUnpacked(i int) bool {
	return c.at(i-2).is("unpack") && c.at(i-1).is("(") && c.at(i+1).is(")")
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
		why, ok := luaRedis[member]
		if !ok || !s.code.at(i+1).is(".") {
			problems = append(problems, fmt.Sprintf("%s:%d: redis.%s is in no row of luaRedis (internal/archtest/lua_test.go): use redis.call, or add a row with the reason", s.file, t.line, member))
			continue
		}
		if why != callsCommand && why != triesCommand {
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
		command := strings.ToUpper(parts[0][0].text)
		if luaTried[command] == "" && why == triesCommand {
			problems = append(problems, fmt.Sprintf("%s:%d: %s is in no row of luaTried (internal/archtest/lua_test.go): use redis.call, so that an error ends the script", s.file, t.line, command))
		}
		calls = append(calls, luaCall{command, parts[1:], t.line})
	}
	return calls, problems
}

// check looks at one file, and counts what its fragments do as its own.
func (s luaScript) check(parts []luaScript) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, s.file+fmt.Sprintf(format, args...))
	}
	if !strings.HasPrefix(s.title, "-- "+s.name()+": ") {
		bad(": begin with `-- %s: ` and what the script does", s.name())
	}
	for _, field := range luaFields {
		_, ok := s.fields[field]
		switch {
		case s.isFragment() && field == "ARGV":
			if ok {
				bad(": a fragment has no ARGV: give its functions arguments, so that they can be read where they are called")
			}
		case !ok && field != "first write" && field != "fragment":
			bad(": the header has no `-- %s: `, which a caller must know; where there is nothing to say, say none", field)
		}
	}
	problems = append(problems, s.checkUses("KEYS", parts)...)
	problems = append(problems, s.checkUses("ARGV", parts)...)

	calls, more := s.calls()
	problems = append(problems, more...)
	var writes []string
	for _, part := range parts {
		inner, _ := part.calls()
		for _, c := range inner {
			if luaCommands[c.command].writes {
				writes = append(writes, c.command)
			}
		}
	}
	for _, c := range calls {
		rule, ok := luaCommands[c.command]
		if !ok {
			bad(":%d: %s is in no row of luaCommands (internal/archtest/lua_test.go): every user's ACL must allow it, so add a row with the reason", c.line, c.command)
			continue
		}
		if rule.writes {
			writes = append(writes, c.command)
		}
		keys := rule.keys
		if keys == all {
			keys = max(len(c.args), 1)
		}
		for n, arg := range c.args[:min(keys, len(c.args))] {
			if c.command == "MGET" && len(arg) == 4 && arg.isUnpacked(2) {
				continue
			}
			if !arg.follow(0, "KEYS", "[") || len(arg.inside(1)) != len(arg)-3 {
				bad(":%d: argument %d of %s is a key, so it must be KEYS[…] and not %s: a cluster, and an ACL, must be told all keys", c.line, n+1, c.command, arg)
			}
		}
		if len(c.args) < keys {
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

// checkParts looks at how a file is put together: which fragments it has, and what it takes from where.
func (s luaScript) checkParts(parts, files []luaScript) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, s.file+fmt.Sprintf(format, args...))
	}
	defined, stray := s.code.functions()
	if s.isFragment() {
		if stray > 0 {
			bad(":%d: a fragment is nothing but local functions: whatever else it does, each script would do first", stray)
		}
		for _, name := range s.offers() {
			if !slices.Contains(defined, name) {
				bad(": the header speaks of %s, which is no local function of it", name)
			}
		}
	}
	for _, part := range parts {
		if part.fields["KEYS"] != "none" && !strings.HasPrefix(s.fields["KEYS"]+" · ", part.fields["KEYS"]+" · ") {
			bad(": %s has the KEYS %s, and %s %s: they must begin alike", part.name(), part.fields["KEYS"], s.name(), s.fields["KEYS"])
		}
	}
	for _, other := range files {
		if other.file == s.file || !other.isFragment() {
			continue
		}
		there := slices.ContainsFunc(parts, func(p luaScript) bool { return p.file == other.file })
		needed := slices.ContainsFunc(parts, func(p luaScript) bool { return p.file != other.file && p.callsOf(other) > 0 })
		line := s.callsOf(other)
		switch {
		case line > 0 && !there && !s.isFragment():
			bad(":%d: %s is a function of %s: give that to its newScript, or it is nil", line, s.code.calledOf(other.offers()), other.name())
		case there && line > 0 && line < s.below:
			bad(":%d: %s is a function of %s, which stands further down", line, s.code.calledOf(other.offers()), other.name())
		case there && line == 0 && !needed:
			bad(": %s needs nothing of %s: leave that out of its newScript", s.name(), other.name())
		}
	}
	// Among the fragments, too, whoever is called stands first.
	for i, part := range parts {
		for _, other := range files {
			if other.isFragment() && other.file != part.file && part.callsOf(other) > 0 &&
				!slices.ContainsFunc(parts[:i], func(p luaScript) bool { return p.file == other.file }) {
				bad(": %s calls %s, which is a function of %s: put that before it in newScript, or it is nil", part.name(), part.code.calledOf(other.offers()), other.name())
			}
		}
	}
	return problems
}

// offers are the functions that a fragment's header lists.
func (s luaScript) offers() (names []string) {
	for item := range strings.SplitSeq(s.fields["fragment"], " · ") {
		name, _, _ := strings.Cut(item, "(")
		names = append(names, name)
	}
	return names
}

// callsOf is the line where a function of a fragment is called, or 0.
func (s luaScript) callsOf(fragment luaScript) int {
	for i, t := range s.code {
		if slices.Contains(fragment.offers(), t.text) && s.code.isCall(i) {
			return t.line
		}
	}
	return 0
}
