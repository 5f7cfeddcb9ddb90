package redistest

import (
	"context"
	"crypto/fips140"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Count has the number of KEYS or ARGV that the header of a Lua script lists.
type Count struct {
	Min, Max int
	Each     bool // the numbers hold for each lease, and the caller chooses the number of leases
	After    int  // how many more words come after the words of the last lease
}

var (
	headerStart = regexp.MustCompile(`(?m)^-- \w+\.lua: `)
	headerPart  = regexp.MustCompile(`(?m)^-- (KEYS|ARGV|fragment): (.*(?:\n--  +.*)*)`)
	forEach     = regexp.MustCompile(`^for each [^:]*: `)
	lineBreak   = regexp.MustCompile(`\n--  +`)
)

// Counts returns the numbers of KEYS and ARGV that the header of a script lists:
//
//	-- KEYS: lease L · done mark D           two
//	-- KEYS: lease L · [done mark D]         one or two
//	-- ARGV: for each lease: token · ttl     two for each lease; "leases L1 … Ln" is one for each
//	-- KEYS: for each lease: L · [queue Q]   one for each lease, or two for each
//	-- ARGV: for each lease: token; then id  one for each lease, and one behind all of them
//
// Counts skips the fragments before the script's own header. Fragments have headers of their own.
// The result ok is false if the text has no header of a whole script.
func Counts(text string) (keys, argv Count, ok bool) {
	starts := headerStart.FindAllStringIndex(text, -1)
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		parts := map[string]string{}
		for _, m := range headerPart.FindAllStringSubmatch(text[start[0]:end], -1) {
			parts[m[1]] = lineBreak.ReplaceAllString(m[2], " ")
		}
		if _, fragment := parts["fragment"]; !fragment && parts["KEYS"] != "" {
			return countOf(parts["KEYS"]), countOf(parts["ARGV"]), true
		}
	}
	return Count{}, Count{}, false
}

func countOf(list string) Count {
	if list == "none" || list == "" {
		return Count{}
	}
	list, then, _ := strings.Cut(list, "; then ")
	items := strings.Split(list, " · ")
	c := Count{Min: len(items), Max: len(items)}
	for i, item := range items {
		if strings.HasPrefix(item, "[") {
			c.Min = i
			break
		}
	}
	if then != "" {
		c.After = len(strings.Split(then, " · "))
	}
	c.Each = forEach.MatchString(list) || len(items) == 1 && strings.Contains(list, " … ")
	return c
}

// allows reports whether a caller may pass n keys or arguments.
func (c Count) allows(n, leases int) bool {
	if c.Each {
		each := (n - c.After) / leases
		return n == leases*each+c.After && c.Min <= each && each <= c.Max
	}
	return c.Min <= n && n <= c.Max
}

func (c Count) String() string {
	text := strconv.Itoa(c.Max)
	if c.Min < c.Max {
		text = fmt.Sprintf("%d to %d", c.Min, c.Max)
	}
	if c.Each {
		text += " for each lease"
	}
	if c.After > 0 {
		text += fmt.Sprintf(" and %d", c.After)
	}
	return text
}

// scriptCheck is a hook that fails the test if a script gets another number of KEYS or ARGV than
// its header lists. The text that EVAL sends contains the header. The hook remembers the header
// for later calls by EVALSHA.
type scriptCheck struct{ t testing.TB }

// headers maps the SHA-1 of a script to its header, for all clients of the test binary. Each
// header is parsed only once, because tests send a script thousands of times.
var headers sync.Map

// header has the numbers that a script's header lists.
type header struct {
	keys, argv Count
	ok         bool
	text       string // the text of the whole script
}

func (s scriptCheck) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s scriptCheck) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.check(cmd.Args())
		return next(ctx, cmd)
	}
}

func (s scriptCheck) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.check(cmd.Args())
		}
		return next(ctx, cmds)
	}
}

func (s scriptCheck) check(words []any) {
	if problem := badCall(words); problem != "" {
		s.t.Error(problem)
	}
}

// badCall returns what is wrong with the numbers of KEYS and ARGV of a command, or "" if they are
// right.
func badCall(words []any) string {
	if len(words) < 3 {
		return ""
	}
	name, _ := words[0].(string)
	text, _ := words[1].(string)
	switch strings.ToLower(name) {
	case "eval":
		if fips140.Enabled() {
			return "" // such a program may not compute a SHA-1
		}
		sum := sha1.Sum([]byte(text))
		sha := hex.EncodeToString(sum[:])
		if _, known := headers.Load(sha); !known {
			h := header{text: text}
			h.keys, h.argv, h.ok = Counts(text)
			headers.Store(sha, h)
		}
		text = sha
	case "evalsha":
	default:
		return ""
	}
	known, ok := headers.Load(text)
	if !ok {
		return ""
	}
	h := known.(header)
	keys, argv := h.keys, h.argv
	nKeys, isInt := words[2].(int)
	if !h.ok || !isInt { // a script of another package has no such header
		return ""
	}
	nArgv, leases := len(words)-3-nKeys, 1
	if keys.Each && keys.Min == keys.Max {
		leases = (nKeys - keys.After) / keys.Max
	} else if argv.Each {
		leases = (nArgv - argv.After) / argv.Max
	}
	leases = max(leases, 1)
	if keys.allows(nKeys, leases) && argv.allows(nArgv, leases) {
		return ""
	}
	return fmt.Sprintf("a script was called with %d KEYS and %d ARGV, but its header lists %v and %v:\n%.200s",
		nKeys, nArgv, keys, argv, h.text[headerStart.FindStringIndex(h.text)[0]:])
}
