package link

import "github.com/redis/go-redis/v9"

// noRetryCmd is a command that go-redis sends at most once. If go-redis repeated a call whose reply
// was lost, the second answer could be wrong. For example, a repeated release finds no lease.
type noRetryCmd struct{ *redis.StringCmd }

// NoRetry makes go-redis send the command only once.
func (noRetryCmd) NoRetry() bool { return true }

// A Script is a Lua program.
type Script struct {
	text string
	sha  any // a string, boxed once for all calls
}

// NewScript returns the Script with the given Lua text. The parameter sha is the text's SHA-1, in
// hex. The caller has it as a constant, because a program in FIPS 140-only mode may not compute a
// SHA-1.
func NewScript(text, sha string) *Script { return &Script{text: text, sha: sha} }

// Text returns the Lua text of the script.
func (s *Script) Text() string { return s.text }

// Room is memory for the words of a short call, and for a copy of them, in one piece. The zero value
// of a Room is ready for one call.
type Room struct {
	words   [12]any
	Copy    [12]any // for [Call.Copy]
	texts   [6]string
	numbers [2]int64
}

// Words returns the words of a call that runs the script by its SHA-1. The arguments args are
// strings and int64s.
func (s *Script) Words(keys []string, args ...any) []any {
	return s.WordsIn(nil, keys, args...)
}

// WordsIn does the work of Words. If the words are few enough, it puts them into a given Room.
//
// go-redis writes a *string or an *int64 as the value that it points to. So a command needs one
// allocation instead of one for each word. Hooks see only pointers, so a hook that logs commands
// does not show tokens. Only the first key is a plain string, because it routes and identifies the
// command. The parameter args must not escape from this function, because then the callers would
// have to allocate each argument.
func (s *Script) WordsIn(r *Room, keys []string, args ...any) []any {
	var words []any
	var texts []string
	var numbers []int64
	if most := 3 + len(keys) + len(args); most > len(Room{}.words) {
		words, texts, numbers = make([]any, 0, most), make([]string, 0, most), make([]int64, 0, most)
	} else {
		if r == nil {
			r = new(Room)
		}
		words, texts, numbers = r.words[:0], r.texts[:0], r.numbers[:0]
	}
	words = append(words, "evalsha", s.sha, len(keys))
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

// sizeOf returns the approximate size, in bytes, of a command with these words on the wire.
func sizeOf(words []any) int {
	n := 0
	for _, w := range words {
		n += 8
		switch w := w.(type) {
		case string:
			n += len(w)
		case *string:
			n += len(*w)
		}
	}
	return n
}
