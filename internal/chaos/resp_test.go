package chaos

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestReadMessage(t *testing.T) {
	for name, wire := range map[string]string{
		"simple string":    "+OK\r\n",
		"error":            "-ERR no\r\n",
		"integer":          ":42\r\n",
		"RESP3 scalars":    "*5\r\n_\r\n,3.14\r\n#t\r\n(12345678901234567890\r\n+x\r\n",
		"bulk string":      "$5\r\nhello\r\n",
		"empty bulk":       "$0\r\n\r\n",
		"no bulk":          "$-1\r\n",
		"no array":         "*-1\r\n",
		"empty array":      "*0\r\n",
		"verbatim string":  "=7\r\ntxt:abc\r\n",
		"bulk error":       "!5\r\nERR x\r\n",
		"line breaks":      "$6\r\na\r\n\r\nb\r\n",
		"array":            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
		"nested":           "*2\r\n*1\r\n:1\r\n*2\r\n$-1\r\n%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n",
		"map":              "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
		"push":             ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
		"attributes first": "|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n",
		"inline command":   "PING hello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			from := bufio.NewReader(strings.NewReader(wire + "+next\r\n"))
			if got, err := readMessage(from); err != nil || string(got) != wire {
				t.Errorf("read %q, %v; want %q", got, err, wire)
			}
			if next, err := readMessage(from); err != nil || string(next) != "+next\r\n" {
				t.Errorf("then read %q, %v", next, err)
			}
			for cut := range len(wire) {
				_, err := readMessage(bufio.NewReader(strings.NewReader(wire[:cut])))
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%q is taken for whole: %v", wire[:cut], err)
				}
			}
		})
	}

	t.Run("nonsense is an error", func(t *testing.T) {
		if m, err := readMessage(bufio.NewReader(strings.NewReader("*x\r\n"))); err == nil {
			t.Errorf("read %q", m)
		}
	})
}

func TestWordsOfMessage(t *testing.T) {
	for wire, want := range map[string]struct {
		first string
		words int
	}{
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n":                {"GET", 2},
		">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n": {"message", 0}, // the count is 0, because only requests are counted
		"PING hello\r\n":                                {"PING", 2},
		"*2\r\n:1\r\n:2\r\n":                            {"", 2},
		"*0\r\n":                                        {"", 0},
		"*1\r\n*2\r\n+one\r\n+two\r\n":                  {"", 1},
	} {
		m := message(wire)
		if m.firstWord() != want.first || m[0] != '>' && m.wordCount() != want.words {
			t.Errorf("%q: first %q of %d, want %q of %d", wire, m.firstWord(), m.wordCount(), want.first, want.words)
		}
	}
}
