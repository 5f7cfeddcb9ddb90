package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// message is one request, reply or push of the Redis protocol (RESP2 or RESP3), with its original
// bytes.
type message []byte

// readMessage reads one whole message.
func readMessage(r *bufio.Reader) (message, error) {
	return appendMessage(nil, r)
}

func appendMessage(prefix message, r *bufio.Reader) (message, error) {
	header, err := r.ReadBytes('\n')
	prefix = append(prefix, header...)
	if err != nil {
		return prefix, err
	}
	switch kind := header[0]; kind {
	case '$', '=', '!': // bulk string, verbatim string, bulk error
		n, err := length(header)
		if err != nil || n < 0 {
			return prefix, err
		}
		start := len(prefix)
		prefix = append(prefix, make([]byte, n+len("\r\n"))...)
		_, err = io.ReadFull(r, prefix[start:])
		return prefix, err
	case '*', '~', '>', '%', '|': // array, set, push, map, attributes
		n, err := length(header)
		if err != nil {
			return prefix, err
		}
		switch kind {
		case '%':
			n *= 2
		case '|': // attributes come before the reply that they describe, and are part of this reply
			n = 2*n + 1
		}
		for range n { // -1 means no elements
			if prefix, err = appendMessage(prefix, r); err != nil {
				return prefix, err
			}
		}
		return prefix, nil
	default: // all other messages are one line, even an inline command
		return prefix, nil
	}
}

func length(header []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSpace(header[1:])))
	if err != nil {
		return 0, fmt.Errorf("chaos: length in %q: %w", header, err)
	}
	return n, nil
}

// firstWord returns the first word of a message: the command of a request, or the kind of a push.
// The word is empty if a reply does not begin with a string.
func (m message) firstWord() string {
	if len(m) > 0 && (m[0] == '*' || m[0] == '>') {
		parts := strings.SplitN(string(m), "\r\n", 4) // the parts are *n, $n, the word, and the rest
		if len(parts) < 4 || parts[1][0] != '$' {
			return ""
		}
		return parts[2]
	}
	for word := range strings.FieldsSeq(string(m)) { // an inline command
		return word
	}
	return ""
}

// wordCount returns the number of words in a request.
func (m message) wordCount() int {
	if header, _, found := bytes.Cut(m, []byte("\r\n")); found && m[0] == '*' {
		n, _ := length(header)
		return n
	}
	return len(bytes.Fields(m))
}
