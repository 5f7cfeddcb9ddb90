package chaos

import (
	"bytes"
	"strings"
)

// Match selects the requests of a fault. It gets a request in the wire format, and must be safe for
// concurrent use.
type Match func(request []byte) bool

// Containing selects requests that contain text, such as a key. A script is sent with its keys, so
// Containing also selects each EVALSHA with such a key.
func Containing(text string) Match {
	return func(request []byte) bool { return bytes.Contains(request, []byte(text)) }
}

// Command selects requests by the name of their command, in upper or lower case.
func Command(name string) Match {
	return func(request []byte) bool { return strings.EqualFold(message(request).firstWord(), name) }
}
