package delegate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrMalformed means that the value that came with a call is no delegation. The error's text gives
// the reason, and shows no part of the value.
var ErrMalformed = errors.New("the delegation cannot be read")

const (
	version = 1
	// MaxToken is the largest number of bytes of a token.
	MaxToken = 1 + maxEntries*signedBytes
	// maxEntries is the largest number of leases that are sent with a call. If a context has
	// more leases, only the innermost leases are sent.
	maxEntries = 8

	hintBytes   = 8
	secretBytes = 16
	secretEntry = 1 + hintBytes + secretBytes
	signedBytes = 1 + hintBytes + 3*8 + 1 + sha256.Size
)

// The kinds of entries.
const (
	bySecret    = 1
	bySignature = 2
)

// entry is the delegation of one lease. A token is the version, followed by entries of fixed
// length.
type entry struct {
	kind byte
	hint [hintBytes]byte // the beginning of the key's hash; a Receiver skips entries with another hint

	secret [secretBytes]byte

	fence, hold uint64
	ends        time.Time // the end by the sender's clock, in ms
	depth       uint8
	mac         [sha256.Size]byte
}

// hintOf returns the beginning of the SHA-256 of key.
func hintOf(key string) (hint [hintBytes]byte) {
	sum := sha256.Sum256([]byte("latchkit key\x00" + key))
	copy(hint[:], sum[:])
	return hint
}

// appendTo appends the encoded entry to b, and returns the result.
func (e *entry) appendTo(b []byte) []byte {
	b = append(append(b, e.kind), e.hint[:]...)
	if e.kind == bySecret {
		return append(b, e.secret[:]...)
	}
	return append(e.appendClaims(b), e.mac[:]...)
}

// appendClaims appends to b the encoded fields that a signature protects, and returns the result.
func (e *entry) appendClaims(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, e.fence)
	b = binary.BigEndian.AppendUint64(b, e.hold)
	b = binary.BigEndian.AppendUint64(b, uint64(e.ends.UnixMilli()))
	return append(b, e.depth)
}

// sign returns the MAC of the entry for key and audience, under the given secret. The token
// contains neither the key nor the audience.
func (e *entry) sign(secret []byte, key, audience string) [sha256.Size]byte {
	state := hmac.New(sha256.New, secret)
	b := append([]byte("latchkit delegation\x00"), version)
	// The length of each text comes before the text, so that different pairs of texts have
	// different bytes.
	for _, text := range []string{key, audience} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	_, _ = state.Write(e.appendClaims(b)) // never fails
	return [sha256.Size]byte(state.Sum(nil))
}

// parse reads a token. If parse accepts a token, appendTo encodes its entries to the same
// bytes.
func parse(token []byte) ([]entry, error) {
	switch {
	case len(token) == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrMalformed)
	case len(token) > MaxToken:
		return nil, fmt.Errorf("%w: it has %d bytes, and at most %d are possible", ErrMalformed, len(token), MaxToken)
	case token[0] != version:
		return nil, fmt.Errorf("%w: it has version %d, and this program reads version %d", ErrMalformed, token[0], version)
	case len(token) == 1:
		return nil, fmt.Errorf("%w: it delegates nothing", ErrMalformed)
	}
	var entries []entry
	for rest := token[1:]; len(rest) > 0; {
		size := secretEntry
		switch rest[0] {
		case bySecret:
		case bySignature:
			size = signedBytes
		default:
			return nil, fmt.Errorf("%w: it has an entry of the kind %d", ErrMalformed, rest[0])
		}
		if len(rest) < size {
			return nil, fmt.Errorf("%w: its end is missing", ErrMalformed)
		}
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("%w: it has more than %d entries", ErrMalformed, maxEntries)
		}
		e, err := parseEntry(rest[:size])
		if err != nil {
			return nil, err
		}
		entries, rest = append(entries, e), rest[size:]
	}
	return entries, nil
}

// parseEntry reads an entry of the right length.
func parseEntry(b []byte) (e entry, err error) {
	e.kind = b[0]
	b = b[1+copy(e.hint[:], b[1:]):]
	if e.kind == bySecret {
		copy(e.secret[:], b)
		return e, nil
	}
	e.fence, e.hold = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	ends := binary.BigEndian.Uint64(b[16:])
	if ends > 1<<48 { // some 9000 years: a larger number is not a time
		return e, fmt.Errorf("%w: it has no valid expiry time", ErrMalformed)
	}
	e.ends = time.UnixMilli(int64(ends))
	e.depth = b[24]
	copy(e.mac[:], b[25:])
	return e, nil
}
