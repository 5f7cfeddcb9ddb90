package quorum

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// marker is the value of a node's key N: the set to which the server belongs, and what the server
// knows of the set's other seats. Its text is
//
//	identity/set/state/seat/longest TTL in ms/generation@label,generation@label,…
//
// A set has as many seats as it has nodes. Each server that takes a seat brings a new generation.
// The generations and the longest TTL only grow. So clients that have read different values take
// the larger values. The requests for a vote, a renewal and a confirmation carry the whole text
// that the client has read, and the node compares it with the text that the node has. Votes are
// counted together only if they were given under the same generations.
type marker struct {
	id      string // identity of the server's data when the marker was written
	set     string
	state   string // one of the constants stateVotes, stateJoins and stateForms
	seat    int
	longest time.Duration // longest TTL of any lease
	seats   []seat
}

// seat is one place of a set. It has the generation of the server that has the place, and the
// address that this server had when it took the place.
type seat struct{ generation, label string }

// guessSuffix ends the generation of a server that got its seat by a guess, so that another server
// which has proven this seat takes the seat back.
const guessSuffix = "?"

// isGuess reports whether the server with the given generation got its seat by a guess.
func isGuess(generation string) bool { return strings.HasSuffix(generation, guessSuffix) }

const (
	stateVotes = "v" // a member of its set
	stateJoins = "j" // takes a seat, and waits until all leases of the seat's former server are over
	stateForms = "f" // one of the servers that form a set
)

func (m marker) String() string {
	seats := make([]string, len(m.seats))
	for i, s := range m.seats {
		seats[i] = s.generation + "@" + s.label
	}
	return fmt.Sprintf("%s/%s/%s/%d/%d/%s", m.id, m.set, m.state, m.seat, m.longest.Milliseconds(), strings.Join(seats, ","))
}

// era is the part of a marker that several votes must have in common to be counted together.
type era struct{ set, generations string }

// eraOf returns the era of the marker with the given text.
func eraOf(text string) (e era) {
	_, rest, _ := strings.Cut(text, "/")
	e.set, rest, _ = strings.Cut(rest, "/")
	for range 3 {
		_, rest, _ = strings.Cut(rest, "/")
	}
	e.generations = rest
	return e
}

// parseMarker reads the text of a marker. The result ok is false if text is no valid marker.
func parseMarker(text string) (m marker, ok bool) {
	parts := strings.SplitN(text, "/", 6)
	if len(parts) != 6 {
		return m, false
	}
	m = marker{id: parts[0], set: parts[1], state: parts[2]}
	longest, err := strconv.ParseInt(parts[4], 10, 64)
	m.longest = time.Duration(longest) * time.Millisecond
	if err == nil {
		m.seat, err = strconv.Atoi(parts[3])
	}
	for part := range strings.SplitSeq(parts[5], ",") {
		generation, label, _ := strings.Cut(part, "@")
		m.seats = append(m.seats, seat{generation, label})
	}
	return m, err == nil && m.seat >= 0 && m.seat < len(m.seats) && len(m.seats) <= mostNodes
}

// mergeSeats merges the seats of two markers of one set: of each seat, it returns the newer
// generation.
func mergeSeats(a, b []seat) []seat {
	joined := make([]seat, len(a))
	for i := range a {
		joined[i] = a[i]
		if i < len(b) && (b[i].generation > a[i].generation || b[i].generation == a[i].generation && b[i].label > a[i].label) {
			joined[i] = b[i]
		}
	}
	return joined
}

// isIndex reports whether label is the index of a node whose client does not show an address.
func isIndex(label string) bool { return strings.HasPrefix(label, "#") }

// labelOf returns the address addr with '_' in the place of the characters that a marker cannot
// hold.
func labelOf(addr string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || strings.ContainsRune("/,@", r) {
			return '_'
		}
		return r
	}, addr)
}
