package quorum

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// modelFaults are the faults that can strike in a run. Each fault harms one seat, and returns how
// long the nodes may need to become a set again.
var modelFaults = map[string]func(w *model, seat int) (limit time.Duration){
	"flush":                                  (*model).flush,
	"restart":                                func(w *model, i int) time.Duration { w.restart(i, nil); return modelLimit },
	"restart with data":                      (*model).restartWithData,
	"promotion":                              (*model).promote,
	"an address moves":                       (*model).moveAddress,
	"replacement":                            (*model).replaceServer,
	"a wrong clock at the server that joins": (*model).joinWithWrongClock,
	"a longer lease":                         (*model).lengthen,
	"clocks wander":                          (*model).wander,
	"a majority restarts":                    (*model).restartMajority,
	"a rolling restart":                      (*model).restartInTurn,
	"a wrong list":                           (*model).mistake,
	"a flush while a set forms":              (*model).flushWhileForming,
}

// modelLimit is the time after which the nodes must be a set again.
const modelLimit = 8 * time.Second

// harm causes one fault at one seat. It is called again when all nodes vote.
func (w *model) harm() {
	if w.now > modelEnds-8*time.Second {
		return
	}
	w.calm = false
	i := w.rng.IntN(w.n)
	limit := modelFaults[w.fault](w, i)
	for _, c := range w.clients { // some clients do not reach all nodes
		c.cut = -1
		if w.rng.IntN(2) == 0 && w.fault != "a majority restarts" && w.fault != "a flush while a set forms" {
			c.cut = w.rng.IntN(w.n)
		}
	}
	if w.fault == "an address moves" {
		w.clients[0].cut, w.clients[2].cut = (i+2)%w.n, (i+1)%w.n
	}
	w.schedule(w.upTo(1500*time.Millisecond), func() {
		for _, c := range w.clients {
			c.cut = -1
		}
	})
	w.awaitHealed(w.now + limit)
}

// flush empties a server.
func (w *model) flush(i int) time.Duration {
	s := w.nodes[i]
	*s = server{id: s.id, waits: map[string]time.Time{}, offset: s.offset}
	return modelLimit
}

// restart starts a server again, with a new identity and with the data of old, if old is not nil.
func (w *model) restart(i int, old *server) {
	s, id := w.nodes[i], w.server().id
	*s = server{id: id, waits: map[string]time.Time{}, offset: s.offset}
	if old != nil {
		s.text, s.waits, s.token, s.leaseEnd, s.counter = old.text, maps.Clone(old.waits), old.token, old.leaseEnd, old.counter
	}
}

func (w *model) restartWithData(i int) time.Duration {
	s := w.nodes[i]
	w.restart(i, s.backup)
	if w.rng.IntN(2) == 0 { // a second time, during the wait
		w.schedule(w.upTo(600*time.Millisecond), func() { w.restart(i, s.backup) })
	}
	return modelLimit
}

// promote makes a replica the master. Some clients still reach the old master.
func (w *model) promote(i int) time.Duration {
	s := w.nodes[i]
	w.alt, w.swap = s.copy(), i
	if s.backup != nil {
		w.restart(i, s.backup)
	}
	for _, c := range w.clients {
		c.reachesAlt = w.rng.IntN(2) == 0
	}
	w.schedule(2*time.Second, func() { w.swap = -1 })
	return modelLimit
}

// moveAddress makes the address of a node lead some clients to another node's server.
func (w *model) moveAddress(i int) time.Duration {
	w.alt, w.swap = w.nodes[(i+1)%w.n], i
	w.clients[0].reachesAlt, w.clients[1].reachesAlt, w.clients[2].reachesAlt, w.clients[3].reachesAlt = true, w.rng.IntN(2) == 0, false, false
	w.schedule(time.Second, func() { w.swap = -1 })
	blind := w.clients[0] // this client does not look at the nodes for a while
	blind.tending = true
	w.schedule(800*time.Millisecond, func() { blind.tending = false })
	return modelLimit
}

// replaceServer gives a seat to a new server. Clients that still have the old list reach the old
// server.
func (w *model) replaceServer(i int) time.Duration {
	w.alt, w.swap = w.nodes[i], i
	w.nodes[i] = w.server()
	for k, c := range w.clients {
		c.reachesAlt = k > 1
		if at := slices.Index(c.order, i); k <= 1 {
			c.labels[at] = fmt.Sprint(c.labels[at], "-", w.ids)
			c.texts[at], c.replace = "", k == 0
		}
	}
	label := w.clients[0].labels[slices.Index(w.clients[0].order, i)]
	w.schedule(3*time.Second, func() {
		w.swap = -1
		for _, c := range w.clients {
			c.labels[slices.Index(c.order, i)], c.replace = label, false
		}
	})
	return modelLimit
}

func (w *model) joinWithWrongClock(i int) time.Duration {
	s := w.nodes[i]
	w.restart(i, nil)
	w.schedule(w.upTo(200*time.Millisecond), func() { s.offset += 3 * time.Second })
	w.schedule(4*time.Second, func() { s.offset -= 3 * time.Second })
	return 12 * time.Second
}

// lengthen empties a server. From then on, one client asks for longer leases: a process that has
// just started, and that has perhaps looked at the nodes before it asks.
func (w *model) lengthen(i int) time.Duration {
	w.flush(i)
	c := w.clients[3]
	c.longest += 1500 * time.Millisecond
	c.asks = false
	clear(c.texts)
	return modelLimit
}

// restartMajority restarts more servers than the promises allow. After that, the model checks only
// that the nodes vote again.
func (w *model) restartMajority(i int) time.Duration {
	for k := range w.need {
		at := (i + k) % w.n
		w.restart(at, w.nodes[at].backup)
	}
	w.holder, w.fence = nil, 1<<60
	return modelLimit
}

// flushWhileForming makes the servers form a new set. When the first of them votes in this set, the
// clients lose sight of a server that does not vote yet. Meanwhile a server that votes is emptied.
func (w *model) flushWhileForming(i int) time.Duration {
	limit := w.restartMajority(i)
	var await func()
	await = func() {
		votes, lags := -1, -1
		for k, s := range w.nodes {
			switch m, ok := parseMarker(s.text); {
			case !ok || m.id != s.id:
			case m.state == stateForms:
				lags = k
			case m.state == stateVotes && m.seats[m.seat].generation == formedPrefix+s.id[:8]:
				votes = k
			}
		}
		if lags < 0 || votes < 0 {
			if !w.calm {
				w.schedule(time.Millisecond, await)
			}
			return
		}
		w.fence = 0 // the promises hold for the new set
		w.cutFrom(lags)
		w.schedule(w.upTo(400*time.Millisecond), func() {
			w.flush(votes)
			w.cutFrom(-1)
		})
	}
	await()
	return limit
}

// cutFrom cuts all clients off from one node, or from none if i is -1.
func (w *model) cutFrom(i int) {
	for _, c := range w.clients {
		c.cut = i
	}
}

// restartInTurn restarts the next node, empty or with its data. Before the first node, all
// processes get other names of the nodes.
func (w *model) restartInTurn(int) time.Duration {
	s := w.nodes[w.turn%w.n]
	for _, c := range w.clients {
		for k, label := range c.labels {
			if w.turn%w.n == 0 && !isIndex(label) {
				c.labels[k] = fmt.Sprint("new-", label)
			}
		}
	}
	if w.rng.IntN(3) == 0 {
		w.restart(w.turn%w.n, s.backup)
	} else {
		w.restart(w.turn%w.n, nil)
	}
	w.turn++
	return modelLimit
}

// mistake puts a new server in the place of a node into one client's list, for a while.
func (w *model) mistake(i int) time.Duration {
	c := w.clients[w.rng.IntN(len(w.clients))]
	k := slices.Index(c.order, i)
	name := c.labels[k]
	c.mistaken, c.labels[k], c.texts[k] = map[int]*server{i: w.server()}, fmt.Sprint(name, "-", w.ids), ""
	w.swap = -2 // no other fault strikes meanwhile
	w.schedule(w.upTo(4*time.Second), func() { c.mistaken, c.labels[k], c.texts[k], w.swap = nil, name, "", -1 })
	return 12 * time.Second
}

// wander moves one clock back and forth within the allowed skew.
func (w *model) wander(i int) time.Duration {
	at := w.nodes[i].offset
	for k := range 40 {
		w.schedule(time.Duration(k)*40*time.Millisecond, func() {
			w.nodes[i].offset = w.upTo(2*modelSkew*95/100) - modelSkew*95/100 + modelSkew/8
		})
	}
	w.schedule(1700*time.Millisecond, func() { w.nodes[i].offset = at })
	return modelLimit
}

// awaitHealed waits until all nodes vote, and then plans the next fault. The model fails if some
// nodes do not vote at the deadline.
func (w *model) awaitHealed(deadline time.Duration) {
	w.schedule(50*time.Millisecond, func() {
		texts := make(map[era]bool)
		for i, s := range w.nodes {
			m, ok := parseMarker(s.text)
			texts[eraOf(s.text)] = true
			if !ok || m.id != s.id || m.state != stateVotes || w.swap == i || w.swap == -2 {
				texts[era{set: "out"}] = true
			}
		}
		switch {
		case len(texts) == 1:
			w.calm = true
			w.schedule(w.upTo(time.Second), w.harm)
		case w.now > deadline && (w.rules == allRules || !w.freeSeat || !w.takeBack):
			w.broken = fmt.Sprintf("%v after the fault the nodes are not a set: %v", w.now, texts)
		default:
			w.awaitHealed(deadline)
		}
	})
}
