package delegate

import "time"

// Through the functions below, the tests in package delegate_test reach what the package does not
// export.

// Reread parses a token and writes it again.
func Reread(token []byte) ([]byte, error) {
	entries, err := parse(token)
	if err != nil {
		return nil, err
	}
	b := []byte{version}
	for i := range entries {
		b = entries[i].appendTo(b)
	}
	return b, nil
}

// ForKey changes the key in the entries of a token, as an attacker who sees the token could do.
func ForKey(token []byte, key string) []byte {
	entries, _ := parse(token)
	b := []byte{version}
	for i := range entries {
		entries[i].hint = hintOf(key)
		b = entries[i].appendTo(b)
	}
	return b
}

// Longer forges a token: its entries are valid for d longer, and allow one more hop.
func Longer(token []byte, d time.Duration) []byte {
	entries, _ := parse(token)
	b := []byte{version}
	for i := range entries {
		entries[i].ends = entries[i].ends.Add(d)
		entries[i].depth++
		b = entries[i].appendTo(b)
	}
	return b
}

// Claims has functions that change one claim in a token's entries, as an attacker who sees the
// token could do.
var Claims = map[string]func(token []byte) []byte{
	"the fence":        editEntries(func(e *entry) { e.fence++ }),
	"the holder":       editEntries(func(e *entry) { e.hold++ }),
	"the end":          editEntries(func(e *entry) { e.ends = e.ends.Add(time.Second) }),
	"how many hops":    editEntries(func(e *entry) { e.depth++ }),
	"nothing, control": editEntries(func(*entry) {}),
}

// editEntries returns a function that calls change on each entry of a token.
func editEntries(change func(e *entry)) func(token []byte) []byte {
	return func(token []byte) []byte {
		entries, _ := parse(token)
		b := []byte{version}
		for i := range entries {
			change(&entries[i])
			b = entries[i].appendTo(b)
		}
		return b
	}
}

// SignatureFor signs fixed claims for a key and an audience, so that signatures can be compared.
func SignatureFor(key, audience string) [32]byte {
	e := entry{fence: 1, hold: 1, ends: time.UnixMilli(1)}
	return e.sign([]byte("0123456789abcdef"), key, audience)
}
