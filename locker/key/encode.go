package key

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"sync"
)

// hashMark is the first byte of a hash. No encoded value begins with this byte.
const hashMark = '~'

// special marks the bytes of a value that are percent-encoded. These are the bytes with a meaning
// in keys, in hash tags and in this encoding. Control bytes are encoded too, because a terminal
// would obey them.
var special = func() (table [256]bool) {
	for b := range ' ' {
		table[b] = true
	}
	for _, b := range []byte{0x7f, ':', '{', '}', '%'} {
		table[b] = true
	}
	return table
}()

// appendValue appends the encoded value to key, or its hash if the encoded value would be too long.
// Two different values never get the same encoding, apart from collisions of SHA-256.
func appendValue(key []byte, value string) []byte {
	if len(value) <= MaxValue {
		start := len(key)
		for i := range len(value) {
			if b := value[i]; special[b] || b == hashMark && i == 0 {
				const digits = "0123456789ABCDEF"
				key = append(key, '%', digits[b>>4], digits[b&15])
			} else {
				key = append(key, b)
			}
		}
		if len(key)-start <= MaxValue {
			return key
		}
		key = key[:start]
	}
	sum := sha256.Sum256([]byte(value))
	return appendHash(key, sum[:])
}

// appendHash appends to key the text of the hash sum.
func appendHash(key, sum []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(append(key, hashMark), sum)
}

// minSecret is the smallest length of a secret in bytes. A shorter secret is probably a word.
const minSecret = 16

// mac makes HMACs. It keeps its hash objects in a pool, to reuse them.
type mac struct{ states sync.Pool }

func newMAC(secret []byte) *mac {
	secret = append([]byte(nil), secret...)
	return &mac{states: sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}}
}

// appendSum appends to key the text of the HMAC of value.
func (m *mac) appendSum(key []byte, value string) []byte {
	state, _ := m.states.Get().(hash.Hash)
	defer m.states.Put(state)
	state.Reset()
	_, _ = state.Write([]byte(value)) // never fails
	var room [sha256.Size]byte
	return appendHash(key, state.Sum(room[:0]))
}
