package link

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// replyError is an error reply of a server.
type replyError string

// Error returns the reply.
func (e replyError) Error() string { return string(e) }

// RedisError makes replyError a [redis.Error].
func (replyError) RedisError() {}

var (
	errNotTapped = errors.New("the client did not use the dialer of its Tap")
	errNoEcho    = errors.New("the server does not repeat the argument of ECHO")
	errUnmatched = errors.New("the server's answers do not match the calls; check for a proxy between server and client")
	errProtocol  = errors.New("the server sent something that is no reply; check for a proxy between server and client")
)

const (
	mostReply = 64 << 20 // the largest length of a reply in bytes; a longer reply is not one of a script
	mostDepth = 16       // how deep lists may lie in each other
)

// reply is an answer of a server.
type reply struct {
	text string
	err  error
	push bool // not an answer: a RESP3 push, or an attribute of the next reply
}

// appendCommand appends the command with the given words to b.
func appendCommand(b []byte, words []any) []byte {
	b = appendCount(b, '*', len(words))
	var digits [20]byte
	for _, word := range words {
		switch word := word.(type) {
		case string:
			b = append(appendCount(b, '$', len(word)), word...)
		case *string:
			b = append(appendCount(b, '$', len(*word)), *word...)
		case int:
			number := strconv.AppendInt(digits[:0], int64(word), 10)
			b = append(appendCount(b, '$', len(number)), number...)
		case int64:
			number := strconv.AppendInt(digits[:0], word, 10)
			b = append(appendCount(b, '$', len(number)), number...)
		case *int64:
			number := strconv.AppendInt(digits[:0], *word, 10)
			b = append(appendCount(b, '$', len(number)), number...)
		default:
			text := fmt.Append(nil, word)
			b = append(appendCount(b, '$', len(text)), text...)
		}
		b = append(b, '\r', '\n')
	}
	return b
}

func appendCount(b []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(b, kind), int64(n), 10), '\r', '\n')
}

// markerReply is the size of the reply to the command that appendMarker appends.
const markerReply = len("$8\r\n01234567\r\n")

// appendMarker appends a command that the server answers with the marker.
func appendMarker(b []byte, marker uint32) []byte {
	return appendMarkerReply(append(b, "*2\r\n$4\r\necho\r\n"...), marker)
}

// appendMarkerReply appends the answer to the command that appendMarker appends.
func appendMarkerReply(b []byte, marker uint32) []byte {
	b = append(b, "$8\r\n"...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, "0123456789abcdef"[marker>>shift&15])
	}
	return append(b, '\r', '\n')
}

// codeOf returns the first word of an error reply.
func codeOf(err error) string {
	code, _, _ := strings.Cut(err.Error(), " ")
	return code
}

// parseAnswer returns the first reply in b that is no push, and the size of b up to its end. The
// size is 0 while this reply is incomplete.
func parseAnswer(b []byte) (r reply, size int, err error) {
	for size < len(b) {
		r, n, err := parseReply(b[size:])
		if n == 0 || err != nil {
			return r, 0, err
		}
		if size += n; !r.push {
			return r, size, nil
		}
	}
	return r, 0, nil
}

// parseReply returns the first reply in b, and its size in bytes. The size is 0 while the reply is
// incomplete. The scripts answer with one string. Any other reply is an error, but the next reply
// can be read.
func parseReply(b []byte) (r reply, size int, err error) { return parseAt(b, 0) }

func parseAt(b []byte, depth int) (r reply, size int, err error) {
	line, size, err := parseLine(b)
	if size == 0 || err != nil {
		return r, 0, err
	}
	switch b[0] {
	case '+', ':', ',', '(', '#':
		r.text = string(line)
	case '-':
		r.err = replyError(line)
	case '_':
		r.err = redis.Nil
	case '$', '=', '!':
		n, err := parseLength(line)
		if err != nil {
			return r, 0, err
		}
		if n < 0 {
			r.err = redis.Nil
			return r, size, nil
		}
		if len(b) < size+n+2 {
			return r, 0, nil
		}
		text := b[size : size+n]
		switch {
		case b[0] == '!':
			r.err = replyError(text)
		case b[0] == '=' && n >= 4:
			r.text = string(text[4:]) // the format, such as "txt:", comes first
		default:
			r.text = string(text)
		}
		size += n + 2
	default:
		r.push = b[0] == '>' || b[0] == '|'
		r.err = errors.New("the server's reply is a list")
		size, err = skipItems(b, line, size, depth)
	}
	return r, size, err
}

// skipItems returns the size of the list at the start of b. The parameter line is the list's first
// line, which ends at size. The result is 0 if the list is incomplete.
func skipItems(b, line []byte, size, depth int) (int, error) {
	items, err := parseLength(line)
	if err != nil {
		return 0, err
	}
	if depth == mostDepth {
		return 0, errProtocol
	}
	switch b[0] {
	case '*', '~', '>':
	case '%', '|':
		items *= 2
	default:
		return 0, errProtocol
	}
	for ; items > 0; items-- {
		inner, n, err := parseAt(b[size:], depth+1)
		if n == 0 || err != nil {
			return 0, err
		}
		if size += n; inner.push {
			items++ // an attribute comes before the item that it describes
		}
	}
	return size, nil
}

// parseLine returns the first line of b, without the first byte and the end of the line. The size
// is that of the whole line, or 0 if the line is incomplete.
func parseLine(b []byte) (line []byte, size int, err error) {
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0:
		if len(b) > 64<<10 {
			return nil, 0, errProtocol
		}
		return nil, 0, nil
	case end < 2 || b[end-1] != '\r':
		return nil, 0, errProtocol
	}
	return b[1 : end-1], end + 1, nil
}

// parseLength returns the length of a text or a list, or -1 if there is none.
func parseLength(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line))
	if err != nil || n < -1 || n > mostReply {
		return 0, errProtocol
	}
	return n, nil
}
