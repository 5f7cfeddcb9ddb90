package idempotency

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// plain is the first byte of a stored Response, and names the format of the rest: status, headers,
// body. All texts are stored as bytes, since headers need not be UTF-8.
const plain = '1'

// encode returns r in the form that Stores keep.
func encode(r Response) []byte {
	text := binary.AppendUvarint([]byte{plain}, uint64(r.Status))
	return append(appendHeader(text, r.Header), r.Body...)
}

// appendHeader appends the encoded header to text, and returns the result.
func appendHeader(text []byte, header map[string][]string) []byte {
	text = binary.AppendUvarint(text, uint64(len(header)))
	for _, name := range slices.Sorted(maps.Keys(header)) {
		text = appendText(text, name)
		text = binary.AppendUvarint(text, uint64(len(header[name])))
		for _, value := range header[name] {
			text = appendText(text, value)
		}
	}
	return text
}

// appendText appends text with its length to buf, and returns the result.
func appendText(buf []byte, text string) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(text))), text...)
}

// decode reads what encode has written. The result ok is false for other bytes.
func decode(text []byte) (r Response, ok bool) {
	if len(text) == 0 || text[0] != plain {
		return r, false
	}
	d := decoder{rest: bytes.Clone(text[1:])}
	r = Response{Status: int(d.number()), Header: d.header()}
	if len(d.rest) > 0 {
		r.Body = d.rest
	}
	return r, !d.bad
}

// decoder reads values from the front of rest, and removes them. After a failure, bad is true and
// all further values are empty.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) text() string {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text
}

func (d *decoder) header() map[string][]string {
	var header map[string][]string
	for names := d.number(); names > 0 && !d.bad; names-- {
		if header == nil {
			header = make(map[string][]string)
		}
		name := d.text()
		if !d.bad {
			header[name] = nil // also a name without values says something
		}
		for values := d.number(); values > 0 && !d.bad; values-- {
			header[name] = append(header[name], d.text())
		}
	}
	return header
}

// fingerprint returns a hash of content. Each piece is hashed after its length, so different pieces
// never make the same bytes.
func fingerprint(content [][]byte) [sha256.Size]byte {
	hash := sha256.New()
	for _, piece := range content {
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(piece)))) // never fails
		_, _ = hash.Write(piece)
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// The name of a run is the fingerprint of its request, the fence of its lease, and random bytes. A
// Locker may make no fences, and then only the random bytes distinguish two runs of a request.
const (
	fenceAt  = sha256.Size
	randomAt = fenceAt + 8
	nameSize = randomAt + 8
)

// newName returns the name of a new run.
func newName(fingerprint [sha256.Size]byte, fence uint64) string {
	name := binary.BigEndian.AppendUint64(fingerprint[:], fence)
	name = append(name, make([]byte, nameSize-randomAt)...)
	_, _ = rand.Read(name[randomAt:]) // never fails
	return string(name)
}

// readName returns what newName has put into the name of a run.
func readName(name string) (fingerprint [sha256.Size]byte, fence uint64, ok bool) {
	if len(name) != nameSize {
		return fingerprint, 0, false
	}
	return [sha256.Size]byte([]byte(name[:fenceAt])), binary.BigEndian.Uint64([]byte(name[fenceAt:randomAt])), true
}
