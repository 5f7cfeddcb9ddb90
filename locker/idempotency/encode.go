package idempotency

import (
	"bytes"
	"compress/flate"
	"encoding"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"slices"
)

// The first byte of a stored Response names the format of the rest. All texts are stored as bytes,
// since headers and metadata need not be UTF-8.
const (
	plain    = '1' // status, headers, trailers, body
	deflated = '2' // the same values, compressed
)

const (
	// minDeflate is the smallest size in bytes for which compression is tried.
	minDeflate = 256
	// maxInflated is the largest size of a stored Response after decompression, in bytes.
	maxInflated = 64 << 20
)

var (
	_ encoding.BinaryMarshaler   = Response{}
	_ encoding.BinaryUnmarshaler = (*Response)(nil)
)

// MarshalBinary returns r in the form that Stores keep. This form is compressed if compression
// makes it smaller.
func (r Response) MarshalBinary() ([]byte, error) {
	text := binary.AppendUvarint([]byte{plain}, uint64(r.Status))
	text = appendHeader(text, r.Header)
	text = appendHeader(text, r.Trailer)
	text = append(text, r.Body...)
	if len(text) < minDeflate {
		return text, nil
	}
	var small bytes.Buffer
	small.WriteByte(deflated)
	w, err := flate.NewWriter(&small, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text[1:]); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if small.Len() < len(text) {
		return small.Bytes(), nil
	}
	return text, nil
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

var errEncoding = errors.New("idempotency: not a stored response")

// UnmarshalBinary reads a text that MarshalBinary has written.
func (r *Response) UnmarshalBinary(text []byte) error {
	if len(text) == 0 {
		return errEncoding
	}
	rest := bytes.Clone(text[1:])
	switch text[0] {
	case plain:
	case deflated:
		inflated, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text[1:])), maxInflated+1))
		if err != nil || len(inflated) > maxInflated {
			return errEncoding
		}
		rest = inflated
	default:
		return errEncoding
	}
	d := decoder{rest: rest}
	read := Response{Status: int(d.number()), Header: d.header(), Trailer: d.header()}
	if d.bad {
		return errEncoding
	}
	if len(d.rest) > 0 {
		read.Body = d.rest
	}
	*r = read
	return nil
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
		for values := d.number(); values > 0 && !d.bad; values-- {
			header[name] = append(header[name], d.text())
		}
	}
	return header
}
