package quorum

import (
	"fmt"
	"maps"
	"time"
)

// server is one simulated Redis server with its data.
type server struct {
	id       string
	offset   time.Duration // how far the server's clock is ahead of the model's time
	text     string
	waits    map[string]time.Time
	token    string // the token in L
	leaseEnd time.Duration
	counter  int64
	backup   *server // an older copy of its data
}

func (s *server) copy() *server {
	c := *s
	c.waits, c.backup = maps.Clone(s.waits), nil
	return &c
}

// mark does what mark.lua does.
func (w *model) mark(s *server, st step) {
	if s.id != st.id || s.text != st.old {
		return
	}
	if st.text != "" {
		s.text = st.text
	}
	if _, ok := s.waits[st.begin]; !ok && st.begin != "" {
		s.waits[st.begin] = w.clock(s)
	}
	if m, ok := parseMarker(s.text); !w.raised && ok && m.state == stateJoins { // without this rule, the wait begins with the first marker of the new generation
		for _, o := range append([]*server{w.alt}, w.nodes...) {
			if o != nil {
				if _, ok := o.waits[m.seats[m.seat].generation]; !ok {
					o.waits[m.seats[m.seat].generation] = w.clock(o)
				}
			}
		}
	}
}

func modelDrift(ttl time.Duration) time.Duration { return ttl/50 + 2*time.Millisecond }

// textMatches makes the first check of a vote or a renewal: it compares the marker of server s with
// the text of the request. The parameters identity and whole select the rules that are checked.
func (w *model) textMatches(s *server, text string, identity, whole bool) bool {
	m, ok := parseMarker(s.text)
	switch {
	case !ok || m.state != stateVotes && whole:
		return false
	case whole && s.text != text:
		return false
	}
	return !identity || m.id == s.id
}

func (w *model) life(ttl time.Duration) time.Duration {
	if w.skew {
		return ttl + 2*modelSkew
	}
	return ttl
}

// serverTime returns the time by the clock of server s.
func (w *model) serverTime(s *server) time.Duration { return w.now + s.offset }

// vote does what vote.lua does.
func (w *model) vote(s *server, text, token string, ttl time.Duration, hint int64) int64 {
	if !w.textMatches(s, text, w.voteIdentity, w.voteText) || s.token != "" && s.token != token && w.serverTime(s) < s.leaseEnd {
		return 0
	}
	now := (time.Second + w.serverTime(s)).Microseconds()
	hint = min(hint, now+modelSkew.Microseconds())
	fence := max(s.counter+1, hint)
	if now > hint+modelSkew.Microseconds() {
		fence = max(fence, now)
	}
	s.counter, s.token, s.leaseEnd = fence, token, w.serverTime(s)+w.life(ttl)
	return fence
}

func (w *model) newGeneration(previous string) string {
	g := fmt.Sprintf("%013x%06x", int64(1e9)+w.now.Microseconds(), w.rng.IntN(1<<24))
	if g <= previous {
		g = previous + "1"
	}
	return g
}
