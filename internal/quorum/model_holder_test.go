package quorum

import (
	"fmt"
	"slices"
	"time"
)

// once returns the markers of the nodes. It returns the marker of a server once, even if several
// addresses lead to that server.
func (c *simClient) once() []string {
	texts := slices.Clone(c.texts)
	for i, text := range texts {
		if slices.Contains(texts[:i], text) {
			texts[i] = ""
		}
	}
	return texts
}

// work acquires, holds, renews and releases a lease, again and again.
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
		by := map[era]nodes{}
		for i := range w.n {
			if ok.has(i) && minted[i] > 0 {
				u := under(texts[i])
				if !w.grouped {
					u = era{}
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
			if w.rng.IntN(4) > 0 { // otherwise the holder dies without a release
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
			by := map[era]int{}
			for i := range w.n {
				if ok.has(i) && good[i] {
					u := under(texts[i])
					if !w.grouped {
						u = era{}
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
