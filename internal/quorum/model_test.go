package quorum

import (
	"container/heap"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The membership of a quorum, and the clocks that it rests on, in simulated time: servers that lose
// what they know, in every way and at every moment, clients that come and go, messages that are
// lost, late or executed late, addresses that lead to another server. The decisions are those of
// the product (decide); servers and votes are written down here once more. Each rule can be
// switched off, and then something must break: otherwise the simulation shows nothing, or the rule
// is useless.
var seeds = flag.Int("seeds", 0, "how many runs of the membership model; 0: a few")

// rules are those that can be switched off.
type rules struct {
	voteIdentity, voteText, renewText, grouped, wait, manyClocks, raised, longest, skew bool
}

var allRules = rules{true, true, true, true, true, true, true, true, true}

const (
	modelSkew    = 100 * time.Millisecond
	modelTimeout = 80 * time.Millisecond
)

func TestTheMembershipModelIsSafeAndComesBack(t *testing.T) {
	runs := max(*seeds, 12)
	for _, fault := range modelFaults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			grants := 0
			for seed := range runs {
				w := newModel(uint64(seed), fault, allRules)
				if w.run(); w.broken != "" {
					t.Fatalf("seed %d: %s", seed, w.broken)
				}
				grants += w.grants
			}
			if grants < 15*runs {
				t.Errorf("%d grants in %d runs: the model shows little", grants, runs)
			}
		})
	}
}

func TestEachRuleOfTheMembershipIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		fault string
		off   func(*rules)
		first int // seed from which it does not take long
	}{
		"a vote compares the server's identity":                {"restart with data", func(r *rules) { r.voteIdentity = false }, 56},
		"a vote compares the text of the marker":               {"an address moves", func(r *rules) { r.voteText = false }, 0},
		"a renewal compares the text of the marker":            {"promotion", func(r *rules) { r.renewText = false }, 1545},
		"votes count together under the same generations only": {"replacement", func(r *rules) { r.grouped = false }, 0},
		"a server that forgot waits":                           {"flush", func(r *rules) { r.wait = false }, 0},
		"one clock ends no wait":                               {"a wrong clock at the server that joins", func(r *rules) { r.manyClocks = false }, 0},
		"the wait begins when the others know":                 {"replacement", func(r *rules) { r.raised = false }, 586},
		"the wait is as long as the longest lease of all":      {"a longer lease", func(r *rules) { r.longest = false }, 0},
		"servers keep a lease for twice the skew longer":       {"clocks wander", func(r *rules) { r.skew = false }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := allRules
			c.off(&with)
			for seed := range max(*seeds, 3000) {
				w := newModel(uint64(c.first+seed), c.fault, with)
				if w.run(); w.broken != "" {
					t.Logf("seed %d: %s", c.first+seed, w.broken)
					return
				}
			}
			t.Error("nothing breaks without this rule")
		})
	}
}

var modelFaults = []string{"flush", "restart", "restart with data", "promotion", "an address moves", "replacement",
	"a wrong clock at the server that joins", "a longer lease", "clocks wander", "a majority restarts"}

// event is something that happens at a time.
type event struct {
	at time.Duration
	n  int
	do func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(e any)   { *q = append(*q, e.(event)) }
func (q *events) Pop() any     { e := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return e }

// server is what one process and its data are.
type server struct {
	id      string
	offset  time.Duration // of its clock
	text    string
	begun   map[string]time.Time
	token   string // L
	until   time.Duration
	counter int64
	before  *server // its data of a while ago
}

func (s *server) copy() *server {
	c := *s
	c.begun, c.before = maps.Clone(s.begun), nil
	return &c
}

type model struct {
	rules
	fault  string
	rng    *rand.Rand
	now    time.Duration
	queue  events
	count  int
	n      int
	need   int
	nodes  []*server // by seat; "replacement" changes them
	alt    *server   // what some clients reach instead
	swap   int       // at this node
	who    []*simClient
	ids    int
	holder *grant
	fence  int64
	grants int
	broken string
	calm   bool // no fault is under way
}

// grant is a lease as its holder sees it.
type grant struct {
	token string
	until time.Duration
}

type simClient struct {
	w       *model
	i       int
	labels  []string
	longest time.Duration
	texts   []string
	tending bool
	replace bool
	cut     int // a node that it does not reach, -1 for none
	other   bool
}

func newModel(seed uint64, fault string, with rules) *model {
	w := &model{rules: with, fault: fault, rng: rand.New(rand.NewPCG(seed, 7)), n: 3, swap: -1, calm: true}
	if seed%4 == 3 {
		w.n = 5
	}
	w.need = w.n/2 + 1
	for range w.n {
		w.nodes = append(w.nodes, w.server())
	}
	for i := range 4 {
		c := &simClient{w: w, i: i, texts: make([]string, w.n), longest: 400 * time.Millisecond, cut: -1}
		for k := range w.n {
			c.labels = append(c.labels, fmt.Sprint("addr", k))
		}
		w.who = append(w.who, c)
	}
	return w
}

func (w *model) server() *server {
	w.ids++
	return &server{id: fmt.Sprintf("%040x", uint64(w.ids)*0x9e3779b97f4a7c15), begun: map[string]time.Time{}, offset: w.upTo(modelSkew / 4)}
}

func (w *model) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *model) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.queue, event{w.now + d, w.count, do})
}

func (w *model) clock(s *server) time.Time { return time.UnixMicro(1e15).Add(w.now + s.offset) }

const modelEnds = 25 * time.Second

func (w *model) run() {
	for _, c := range w.who {
		w.after(w.upTo(50*time.Millisecond), c.work)
		w.after(w.upTo(50*time.Millisecond), c.watch)
	}
	w.after(3*time.Second, w.harm)
	w.after(100*time.Millisecond, w.remember)
	for len(w.queue) > 0 && w.broken == "" && w.now < modelEnds {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
}

// remember keeps a copy of each server's data for restarts that bring old data back.
func (w *model) remember() {
	for _, s := range w.nodes {
		s.before = s.copy()
	}
	w.after(100*time.Millisecond+w.upTo(400*time.Millisecond), w.remember)
}

// harm does one thing to one seat, and comes again when all is well.
func (w *model) harm() {
	if w.now > modelEnds-8*time.Second {
		return
	}
	w.calm = false
	i := w.rng.IntN(w.n)
	s := w.nodes[i]
	again := func(old *server) { // another process: with a new identity
		id := w.server().id
		*s = server{id: id, begun: map[string]time.Time{}, offset: s.offset}
		if old != nil {
			s.text, s.begun, s.token, s.until, s.counter = old.text, maps.Clone(old.begun), old.token, old.until, old.counter
		}
	}
	limit := 8 * time.Second
	switch w.fault {
	case "flush":
		*s = server{id: s.id, begun: map[string]time.Time{}, offset: s.offset}
	case "restart":
		again(nil)
	case "restart with data":
		again(s.before)
		if w.rng.IntN(2) == 0 { // once more, within the wait
			w.after(w.upTo(600*time.Millisecond), func() { again(s.before) })
		}
	case "promotion":
		w.alt, w.swap = s.copy(), i // the old master serves on
		if s.before != nil {
			again(s.before)
		}
		for _, c := range w.who {
			c.other = w.rng.IntN(2) == 0
		}
		w.after(2*time.Second, func() { w.swap = -1 })
	case "an address moves":
		w.alt, w.swap = w.nodes[(i+1)%w.n], i
		w.who[0].other, w.who[1].other, w.who[2].other, w.who[3].other = true, w.rng.IntN(2) == 0, false, false
		w.after(time.Second, func() { w.swap = -1 })
		blind := w.who[0] // it does not look for a while
		blind.tending = true
		w.after(800*time.Millisecond, func() { blind.tending = false })
	case "replacement":
		w.alt, w.swap = s, i // it serves on, for those with the old list
		w.nodes[i] = w.server()
		for k, c := range w.who {
			c.other = k > 1
			if k <= 1 {
				c.labels = slices.Clone(c.labels)
				c.labels[i] = fmt.Sprint("addr", i, "-", w.ids)
				c.texts[i], c.replace = "", k == 0
			}
		}
		label := w.who[0].labels[i]
		w.after(3*time.Second, func() {
			w.swap = -1
			for _, c := range w.who {
				c.labels[i], c.replace = label, false
			}
		})
	case "a wrong clock at the server that joins":
		again(nil)
		w.after(w.upTo(200*time.Millisecond), func() { s.offset += 3 * time.Second })
		w.after(4*time.Second, func() { s.offset -= 3 * time.Second })
		limit = 12 * time.Second
	case "a longer lease":
		*s = server{id: s.id, begun: map[string]time.Time{}, offset: s.offset}
		w.who[3].longest = w.who[3].longest + 1500*time.Millisecond
	case "clocks wander":
		w.wander(i)
	case "a majority restarts":
		for k := range w.need {
			s = w.nodes[(i+k)%w.n]
			again(s.before)
		}
		w.holder, w.fence = nil, 1<<60 // beyond what is promised, but for coming back
	}
	for _, c := range w.who { // some do not reach all
		c.cut = -1
		if w.rng.IntN(2) == 0 && w.fault != "a majority restarts" {
			c.cut = w.rng.IntN(w.n)
		}
	}
	if w.fault == "an address moves" {
		w.who[0].cut, w.who[2].cut = (i+2)%w.n, (i+1)%w.n
	}
	w.after(w.upTo(1500*time.Millisecond), func() {
		for _, c := range w.who {
			c.cut = -1
		}
	})
	w.healed(w.now + limit)
}

// wander moves one clock within what is allowed, back and forth.
func (w *model) wander(i int) {
	at := w.nodes[i].offset
	for k := range 40 {
		w.after(time.Duration(k)*40*time.Millisecond, func() {
			w.nodes[i].offset = w.upTo(2*modelSkew*95/100) - modelSkew*95/100 + modelSkew/8
		})
	}
	w.after(1700*time.Millisecond, func() { w.nodes[i].offset = at })
}

// healed waits until all nodes vote, and goes on.
func (w *model) healed(by time.Duration) {
	w.after(50*time.Millisecond, func() {
		texts := make(map[string]bool)
		for i, s := range w.nodes {
			m, ok := parseMarker(s.text)
			texts[under(s.text)] = true
			if !ok || m.id != s.id || m.state != votes || w.swap == i {
				texts["out"] = true
			}
		}
		switch {
		case len(texts) == 1:
			w.calm = true
			w.after(w.upTo(time.Second), w.harm)
		case w.now > by && w.rules == allRules:
			w.broken = fmt.Sprintf("%v after the fault the nodes are not a set: %v", w.now, texts)
		default:
			w.healed(by)
		}
	})
}

// reach is the server that a client's call to a node comes to.
func (c *simClient) reach(i int) *server {
	switch {
	case c.cut == i:
		return nil
	case c.w.swap == i && c.other:
		return c.w.alt
	}
	return c.w.nodes[i]
}

// call runs do at a node, and then answers with whether it is known to have run: both at most once,
// either may be lost or late.
func (c *simClient) call(i int, do func(*server), answer func(ok bool)) {
	w := c.w
	there, back := w.upTo(4*time.Millisecond), w.upTo(4*time.Millisecond)
	if w.rng.IntN(20) == 0 {
		there = w.upTo(400 * time.Millisecond)
	}
	lost, silent := w.rng.IntN(50) == 0, w.rng.IntN(50) == 0
	answered := false
	done := func(ok bool) {
		if !answered {
			answered = true
			answer(ok)
		}
	}
	w.after(modelTimeout, func() { done(false) })
	if lost {
		return
	}
	w.after(there, func() {
		s := c.reach(i)
		if s == nil {
			return
		}
		do(s)
		if !silent {
			w.after(back, func() { done(true) })
		}
	})
}

// all calls some nodes, and goes on when all have answered or their time is over.
func (c *simClient) all(which nodes, do func(i int, s *server), then func(ok nodes)) {
	open, good := which.count(), nodes(0)
	if open == 0 {
		c.w.after(time.Millisecond, func() { then(0) })
	}
	for i := range c.w.n {
		if which.has(i) {
			c.call(i, func(s *server) { do(i, s) }, func(ok bool) {
				if ok {
					good = good.with(i)
				}
				if open--; open == 0 {
					then(good)
				}
			})
		}
	}
}

// watch tends the nodes from time to time.
func (c *simClient) watch() {
	c.tend(0)
	c.w.after(100*time.Millisecond+c.w.upTo(150*time.Millisecond), c.watch)
}

func (c *simClient) tend(round int) {
	if round == 0 && c.tending || round == 6 {
		c.tending = false
		return
	}
	c.tending = true
	w := c.w
	views := make([]view, w.n)
	c.all(1<<w.n-1, func(i int, s *server) {
		v := view{at: w.clock(s), id: s.id, text: s.text, begun: maps.Clone(s.begun)}
		v.marker, v.marked = parseMarker(s.text)
		views[i] = v
	}, func(ok nodes) {
		for i := range views {
			if !ok.has(i) {
				views[i] = view{err: errSilent}
			}
		}
		p := decide(c.seen(views), wish{labels: c.labels, longest: c.longest, gate: c.gate, fresh: w.fresh, replace: c.replace})
		for i, s := range p.nodes {
			if ok.has(i) {
				c.texts[i] = s.text
			}
		}
		if len(p.steps) == 0 {
			c.tending = false
			return
		}
		open := len(p.steps)
		for _, st := range p.steps {
			c.call(st.node, func(s *server) { w.mark(s, st) }, func(bool) {
				if open--; open == 0 {
					c.tend(round + 1)
				}
			})
		}
	})
}

// seen is what the client makes of what it has seen, with the rules that are switched off.
func (c *simClient) seen(views []view) []view {
	w := c.w
	var sorted []time.Duration
	for i := range views {
		if v := &views[i]; v.err == nil {
			sorted = append(sorted, v.at.Sub(time.UnixMicro(1e15).Add(w.now)))
		}
	}
	slices.Sort(sorted)
	for i := range views {
		v := &views[i]
		if v.err != nil {
			continue
		}
		if off := (v.at.Sub(time.UnixMicro(1e15).Add(w.now)) - sorted[len(sorted)/2]).Abs(); off > 2*modelSkew && w.manyClocks {
			v.off = off
		}
		if !w.longest {
			v.marker.longest = 0
		}
	}
	if !w.manyClocks { // whatever the first says, all say
		first := map[string]time.Duration{}
		for i := range views {
			for name, begun := range views[i].begun {
				first[name] = max(first[name], views[i].at.Sub(begun))
			}
		}
		for i := range views {
			if views[i].err == nil {
				for name, since := range first {
					views[i].begun[name] = views[i].at.Add(-since)
				}
			}
		}
	}
	return views
}

func (c *simClient) gate(longest time.Duration) time.Duration {
	if !c.w.wait {
		return 0
	}
	return max(longest+modelDrift(longest), 4*modelSkew) + 20*time.Millisecond
}

func (w *model) fresh(after string) string {
	g := fmt.Sprintf("%013x%06x", int64(1e9)+w.now.Microseconds(), w.rng.IntN(1<<24))
	if g <= after {
		g = after + "1"
	}
	return g
}

// mark is quorum_mark.lua.
func (w *model) mark(s *server, st step) {
	if s.id != st.id || s.text != st.old {
		return
	}
	if st.text != "" {
		s.text = st.text
	}
	if _, ok := s.begun[st.begin]; !ok && st.begin != "" {
		s.begun[st.begin] = w.clock(s)
	}
	if m, ok := parseMarker(s.text); !w.raised && ok && m.state == joins { // the wait begins with the first word of it
		for _, o := range append([]*server{w.alt}, w.nodes...) {
			if o != nil {
				if _, ok := o.begun[m.seats[m.seat].generation]; !ok {
					o.begun[m.seats[m.seat].generation] = w.clock(o)
				}
			}
		}
	}
}

func modelDrift(ttl time.Duration) time.Duration { return ttl/50 + 2*time.Millisecond }

// same is the comparison of a vote or a renewal.
func (w *model) same(s *server, text string, identity, whole bool) bool {
	m, ok := parseMarker(s.text)
	switch {
	case !ok || m.state != votes && whole:
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

// at is the time by a server's clock.
func (w *model) at(s *server) time.Duration { return w.now + s.offset }

// once is the texts of the nodes, each server's once, whatever addresses lead to it.
func (c *simClient) once() []string {
	texts := slices.Clone(c.texts)
	for i, text := range texts {
		if slices.Contains(texts[:i], text) {
			texts[i] = ""
		}
	}
	return texts
}

// work acquires, holds, renews and releases, again and again.
func (c *simClient) work() {
	w := c.w
	again := func() { w.after(w.upTo(60*time.Millisecond), c.work) }
	w.count++
	token := fmt.Sprint("t", w.count)
	ttl := c.longest - w.upTo(c.longest/2)
	sent := w.now
	var which nodes
	for i, text := range c.once() {
		if text != "" {
			which = which.with(i)
		}
	}
	texts := c.once()
	minted := make([]int64, w.n)
	hint := (time.Second + w.now).Microseconds()
	c.all(which, func(i int, s *server) { minted[i] = w.vote(s, texts[i], token, ttl, hint) }, func(ok nodes) {
		by := map[string]nodes{}
		for i := range w.n {
			if ok.has(i) && minted[i] > 0 {
				u := under(texts[i])
				if !w.grouped {
					u = ""
				}
				by[u] = by[u].with(i)
			}
		}
		for _, won := range by {
			if won.count() >= w.need {
				fence := int64(0)
				for i := range w.n {
					if won.has(i) {
						fence = max(fence, minted[i])
					}
				}
				confirmed := nodes(0)
				c.all(won, func(i int, s *server) {
					if s.token == token && w.at(s) < s.until && w.same(s, texts[i], w.voteIdentity, w.voteText) {
						s.counter = max(s.counter, fence)
						confirmed = confirmed.with(i)
					}
				}, func(ok nodes) {
					if (ok & confirmed).count() >= w.need {
						c.granted(token, texts, ttl, sent, fence, again)
						return
					}
					c.free(token, again)
				})
				return
			}
		}
		c.free(token, again)
	})
}

func (c *simClient) free(token string, then func()) {
	c.all(1<<c.w.n-1, func(_ int, s *server) {
		if s.token == token {
			s.token = ""
		}
	}, func(nodes) { then() })
}

// vote is quorum_vote.lua.
func (w *model) vote(s *server, text, token string, ttl time.Duration, hint int64) int64 {
	if !w.same(s, text, w.voteIdentity, w.voteText) || s.token != "" && s.token != token && w.at(s) < s.until {
		return 0
	}
	now := (time.Second + w.at(s)).Microseconds()
	hint = min(hint, now+modelSkew.Microseconds())
	fence := max(s.counter+1, hint)
	if now > hint+modelSkew.Microseconds() {
		fence = max(fence, now)
	}
	s.counter, s.token, s.until = fence, token, w.at(s)+w.life(ttl)
	return fence
}

func (c *simClient) granted(token string, texts []string, ttl, sent time.Duration, fence int64, again func()) {
	w := c.w
	until := sent + ttl - modelDrift(ttl)
	if w.now >= until {
		c.free(token, again)
		return
	}
	if h := w.holder; h != nil && w.now < h.until {
		w.broken = fmt.Sprintf("at %v two hold the key: %s has %v left", w.now, h.token, h.until-w.now)
		return
	}
	if fence <= w.fence && w.fence < 1<<60 {
		w.broken = fmt.Sprintf("at %v fence %d after %d", w.now, fence, w.fence)
		return
	}
	if w.fence < 1<<60 {
		w.fence = fence
	}
	w.grants++
	g := &grant{token, until}
	if w.fence < 1<<60 {
		w.holder = g
	}
	ends := w.now + w.upTo(2*ttl)
	var renew func()
	renew = func() {
		if w.now >= ends || w.now >= g.until {
			if w.rng.IntN(4) > 0 { // otherwise it dies
				g.until = min(g.until, w.now)
				c.free(token, again)
			} else {
				w.after(max(g.until-w.now, 0), again)
			}
			return
		}
		sent, good := w.now, make([]bool, w.n)
		texts := c.once()
		c.all(1<<w.n-1, func(i int, s *server) {
			if s.token == token && w.at(s) < s.until && texts[i] != "" && w.same(s, texts[i], w.renewText, w.renewText) {
				s.until, good[i] = max(s.until, w.at(s)+w.life(ttl)), true
			}
		}, func(ok nodes) {
			by := map[string]int{}
			for i := range w.n {
				if ok.has(i) && good[i] {
					u := under(texts[i])
					if !w.grouped {
						u = ""
					}
					if by[u]++; by[u] >= w.need && w.now < g.until {
						g.until = max(g.until, sent+ttl-modelDrift(ttl))
					}
				}
			}
			w.after(ttl/4, renew)
		})
	}
	w.after(ttl/4, renew)
}
