package link

import (
	"bytes"
	"net"
	"slices"
	"time"
)

// wire is one connection. link.mu guards all fields but the memory of the writer and of the reader.
type wire struct {
	net    net.Conn
	hangUp func() // closes the connection

	slots   []slot // the expected answers, from head on
	head    int
	marked  uint32 // the marker of the last call
	bytes   int    // the size of the calls whose answers are expected
	large   int    // how many of these calls are large
	writing bool
	reading bool
	blocked bool // no listed call can be written before an answer comes: see lane.takeBatch
	ended   bool // the connection was given up
	overdue bool // in the last look, the oldest answer was overdue, or nearly
	born    time.Time
	used    time.Time // when the last answer came
	texts   map[*Script]bool

	// The writer's memory.
	batch []*Call
	out   []byte

	// The reader's memory.
	in   []byte // the part from 'from' on is not parsed yet
	from int
	done []ended
}

// slot is the place of an expected answer.
type slot struct {
	call   *Call
	sent   time.Time
	size   int
	marker uint32 // comes behind the answer
	large  bool   // of one call; the calls of a group are small, and other calls pass between groups
	asking bool   // the answer to ASKING comes first
}

// ended is an answer and its slot.
type ended struct {
	slot
	reply
}

// sleeper returns the newest call on w whose caller sleeps, or nil.
func (w *wire) sleeper() *Call {
	for i := len(w.slots) - 1; i >= w.head; i-- {
		c := w.slots[i].call
		if c.bed.Load() != nil {
			return c
		}
		if g := c.group(); g != nil {
			for _, c := range g.members {
				if c.bed.Load() != nil {
					return c
				}
			}
		}
	}
	return nil
}

// full reports whether so many answers are expected that no call may be written.
func (w *wire) full() bool {
	return w.blocked || len(w.slots)-w.head >= mostExpected || w.bytes >= mostBytesExpected
}

// words returns the words of c. A script that the node did not have is sent with its text: once on
// each connection, because the calls behind it can then name it, and again for a call that was
// unlucky twice.
func (w *wire) words(c *Call) []any {
	words := c.Words
	if c.make != nil {
		words = c.make()
	}
	if c.unknown == 0 || c.unknown == 1 && w.texts[c.Script] {
		return words
	}
	if w.texts == nil {
		w.texts = make(map[*Script]bool)
	}
	w.texts[c.Script] = true
	words = slices.Clone(words)
	words[0], words[1] = "eval", c.Script.text
	return words
}

// fill reads once from the connection. Only the reader calls it.
func (w *wire) fill() error {
	if w.from > 0 {
		n := copy(w.in, w.in[w.from:])
		w.in, w.from = w.in[:n], 0
	}
	if cap(w.in)-len(w.in) < 512 {
		w.in = slices.Grow(w.in, max(4096, cap(w.in)))
	}
	n, err := w.net.Read(w.in[len(w.in):cap(w.in)])
	w.in = w.in[:len(w.in)+n]
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// parse takes the complete answers out of the memory of the reader, into w.done. The caller holds
// link.mu.
func (w *wire) parse() error {
	w.done = w.done[:0]
	for w.head < len(w.slots) {
		s := &w.slots[w.head]
		r, size, err := s.next(w.in[w.from:])
		if size == 0 || err != nil {
			return err
		}
		w.from += size
		w.head++
		w.blocked = false
		if w.bytes -= s.size; s.large {
			w.large--
		}
		w.done = append(w.done, ended{*s, r})
		*s = slot{}
	}
	_, size, err := parseAnswer(w.in[w.from:])
	if size > 0 {
		err = errProtocol // an answer that no call expects
	}
	return err
}

// next returns the answer of the slot, and its size in b together with its marker. The size is 0
// while they are incomplete. Without the marker, an answer is not known to be that of the slot: a
// proxy may have dropped a reply, or passed one on twice. If the server refuses everything, for
// example because a script runs for too long, the refusal of the call has the refusal of the marker
// behind it.
func (s *slot) next(b []byte) (r reply, size int, err error) {
	answers := 1
	if s.asking {
		answers = 2
	}
	for range answers {
		var n int
		if r, n, err = parseAnswer(b[size:]); n == 0 || err != nil {
			return r, 0, err
		}
		size += n
	}
	var room [markerReply]byte
	want := appendMarkerReply(room[:0], s.marker)
	if text := want[4 : len(want)-2]; r.text == string(text) {
		return r, 0, errUnmatched
	}
	if bytes.HasPrefix(b[size:], want) {
		return r, size + len(want), nil
	}
	marker, n, err := parseAnswer(b[size:])
	switch {
	case n == 0 || err != nil:
		return r, 0, err
	case marker.text == string(want[4:len(want)-2]): // behind a push
	case marker.err == nil || r.err == nil || codeOf(marker.err) != codeOf(r.err):
		return r, 0, errUnmatched
	}
	return r, size + n, nil
}

// drop ends the calls of a slot without an answer.
func (s *slot) drop(err error) {
	if g := s.call.group(); g != nil {
		for _, c := range g.members {
			c.end("", err)
		}
		return
	}
	s.call.end("", err)
}

// isFor reports whether the slot is that of c, or of a group to which c belongs.
func (s *slot) isFor(c *Call) bool {
	g := s.call.group()
	return s.call == c || g != nil && slices.Contains(g.members, c)
}
