package quorum

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A and B vote in the set that they formed, but C has not heard of the last step. B forgets its
// leases while C is away. When C is back, B votes only after a whole wait.
func TestANodeThatForgotWhileASetFormedWaits(t *testing.T) {
	const longest, wait = time.Minute, 70 * time.Second
	w := &model{rules: allRules, now: time.Hour}
	servers, labels := make([]*server, 3), make([]string, 3)
	for i := range servers {
		servers[i] = &server{id: strings.Repeat(string(rune('a'+i)), 40), waits: map[string]time.Time{}}
		labels[i] = fmt.Sprint("addr", i)
	}
	generations := 0
	look := func() plan {
		views := make([]view, 3)
		for i, s := range servers {
			views[i] = view{clock: w.clock(s), id: s.id, text: s.text, waits: s.waits}
			views[i].marker, views[i].marked = parseMarker(s.text)
		}
		p := decide(views, wish{
			labels: labels, longest: longest,
			quarantine:    func(time.Duration) time.Duration { return wait },
			newGeneration: func(after string) string { generations++; return fmt.Sprintf("%s%013x", after, generations) },
		})
		for _, s := range p.steps {
			w.mark(servers[s.node], s)
		}
		return p
	}
	votes := func(s *server) bool {
		m, ok := parseMarker(s.text)
		return ok && m.id == s.id && m.state == stateVotes
	}
	look() // the set gets its name
	look() // the waits begin
	w.now += wait
	forms := servers[2].text
	look()
	for i, s := range servers {
		if !votes(s) {
			t.Fatalf("positive control: server %d does not vote: %s", i, s.text)
		}
	}
	servers[2].text = forms // as if the last step had not reached C
	servers[1] = &server{id: servers[1].id, waits: map[string]time.Time{}}
	begun := w.now
	for !votes(servers[1]) && w.now < begun+2*wait {
		for len(look().steps) > 0 {
			if votes(servers[1]) && w.now < begun+wait {
				t.Fatalf("it votes after %v: %s", w.now-begun, servers[1].text)
			}
		}
		w.now += time.Second
	}
	for i, s := range servers {
		if !votes(s) {
			t.Errorf("server %d does not vote after two waits: %s", i, s.text)
		}
	}
}
