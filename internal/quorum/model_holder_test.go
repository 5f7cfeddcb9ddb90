package quorum

import (
	"fmt"
	"slices"
	"time"
)

// uniqueTexts returns the markers of the nodes. It returns the marker of a server once, even if
// several addresses lead to that server.
func (c *simClient) uniqueTexts() []string {
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
	c.asks = true
	repeat := func() { w.schedule(w.upTo(60*time.Millisecond), c.work) }
	w.count++
	token := fmt.Sprint("t", w.count)
	ttl := c.longest - w.upTo(c.longest/2)
	sentAt := w.now
	var which nodes
	for i, text := range c.uniqueTexts() {
		if text != "" {
			which = which.plus(i)
		}
	}
	texts := c.uniqueTexts()
	minted := make([]int64, w.n)
	hint := (time.Second + w.now).Microseconds()
	c.callAll(which, func(i int, s *server) { minted[i] = w.vote(s, texts[i], token, ttl, hint) }, func(ok nodes) {
		by := map[era]nodes{}
		for i := range w.n {
			if ok.has(i) && minted[i] > 0 {
				u := eraOf(texts[i])
				if !w.grouped {
					u = era{}
				}
				by[u] = by[u].plus(i)
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
				c.callAll(won, func(i int, s *server) {
					if s.token == token && w.serverTime(s) < s.leaseEnd && w.textMatches(s, texts[i], w.voteIdentity, w.voteText) {
						s.counter = max(s.counter, fence)
						confirmed = confirmed.plus(i)
					}
				}, func(ok nodes) {
					if (ok & confirmed).count() >= w.need {
						c.hold(token, texts, ttl, sentAt, fence, repeat)
						return
					}
					c.releaseToken(token, repeat)
				})
				return
			}
		}
		c.releaseToken(token, repeat)
	})
}

// releaseToken releases the token at all nodes, and then calls onReleased.
func (c *simClient) releaseToken(token string, onReleased func()) {
	c.callAll(1<<c.w.n-1, func(_ int, s *server) {
		if s.token == token {
			s.token = ""
		}
	}, func(nodes) { onReleased() })
}

// hold checks the grant of the fence for the token, and holds the lease with renewals under the
// markers texts. The acquire was sent at sentAt. When the lease has ended, hold calls repeat.
func (c *simClient) hold(token string, texts []string, ttl, sentAt time.Duration, fence int64, repeat func()) {
	w := c.w
	until := sentAt + ttl - modelDrift(ttl)
	if w.now >= until {
		c.releaseToken(token, repeat)
		return
	}
	if h := w.holder; h != nil && w.now < h.deadline {
		w.broken = fmt.Sprintf("at %v two hold the key: %s has %v left", w.now, h.token, h.deadline-w.now)
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
		if w.now >= ends || w.now >= g.deadline {
			if w.rng.IntN(4) > 0 { // otherwise the holder dies without a release
				g.deadline = min(g.deadline, w.now)
				c.releaseToken(token, repeat)
			} else {
				w.schedule(max(g.deadline-w.now, 0), repeat)
			}
			return
		}
		sentAt, good := w.now, make([]bool, w.n)
		texts := c.uniqueTexts()
		c.callAll(1<<w.n-1, func(i int, s *server) {
			if s.token == token && w.serverTime(s) < s.leaseEnd && texts[i] != "" && w.textMatches(s, texts[i], w.renewText, w.renewText) {
				s.leaseEnd, good[i] = max(s.leaseEnd, w.serverTime(s)+w.life(ttl)), true
			}
		}, func(ok nodes) {
			counts := map[era]int{}
			for i := range w.n {
				if ok.has(i) && good[i] {
					u := eraOf(texts[i])
					if !w.grouped {
						u = era{}
					}
					if counts[u]++; counts[u] >= w.need && w.now < g.deadline {
						g.deadline = max(g.deadline, sentAt+ttl-modelDrift(ttl))
					}
				}
			}
			w.schedule(ttl/4, renew)
		})
	}
	w.schedule(ttl/4, renew)
}
