package locker_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/latchkit/latchkit/locker"
)

// Keys may come from clients. So an error shows a key on one line, and only the beginning of a long
// key.
func TestAnErrorShowsAKeyOnOneShortLine(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"order:42":               "order:42",
		"order: ünïcode €":       "order: ünïcode €",
		"a\nlatchkit: forged":    `"a\nlatchkit: forged"`,
		"\x00\xff":               `"\x00\xff"`,
		"\u202eright to left":    `"\u202eright to left"`,
		strings.Repeat("x", 201): strings.Repeat("x", 200) + "… (201 bytes)",
		strings.Repeat("x", 200): strings.Repeat("x", 200),
		strings.Repeat("€", 1e5): strings.Repeat("€", 66) + "… (300000 bytes)",
	} {
		err := &locker.Error{Op: locker.OpAcquire, Key: key, Err: locker.ErrBusy}
		if got, want := err.Error(), "latchkit: acquire "+want+": "+locker.ErrBusy.Error(); got != want || !utf8.ValidString(got) {
			t.Errorf("got %.300q, want %.300q", got, want)
		}
	}
}
