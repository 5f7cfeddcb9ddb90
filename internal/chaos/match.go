package chaos

import (
	"bytes"
	"strings"
)

// Match picks the requests that a fault is about. It sees a request as it is on
// the wire, and must be safe to call from several goroutines.
type Match func(request []byte) bool

// Containing picks requests with text in them, such as a key. Scripts are sent
// with their keys, so this finds EVALSHA too.
func Containing(text string) Match {
	return func(request []byte) bool { return bytes.Contains(request, []byte(text)) }
}

// Command picks requests by the name of their command, in any case.
func Command(name string) Match {
	return func(request []byte) bool { return strings.EqualFold(message(request).first(), name) }
}
