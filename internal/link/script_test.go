package link

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// sample is a script.
var sample = scriptOf("return 1")

func TestWords(t *testing.T) {
	build := func(keys []string, args ...any) []any { return sample.Words(keys, args...) }
	for _, n := range []int{0, 1, 3, 8, 200} {
		keys := []string{"L"}
		want := "evalsha " + sample.sha.(string) + " " + fmt.Sprint(n+1) + " L"
		for i := range n {
			keys = append(keys, fmt.Sprint("key", i))
			want += fmt.Sprint(" key", i)
		}
		var args []any
		for i := range n {
			args = append(args, fmt.Sprint("arg", i), int64(i))
			want += fmt.Sprintf(" arg%d %d", i, i)
		}
		var words []string
		for _, w := range build(keys, args...) {
			words = append(words, fmt.Sprint(reflect.Indirect(reflect.ValueOf(w))))
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}

// scriptOf returns the Script with the given Lua text.
func scriptOf(text string) *Script {
	sum := sha1.Sum([]byte(text))
	return NewScript(text, hex.EncodeToString(sum[:]))
}
