package simulator

import "time"

// worker is a goroutine that takes and releases locks again and again.
type worker struct {
	p    *process
	turn int // number of the present attempt to lock; an event of an earlier attempt is ignored
}

func (k *worker) think() {
	k.turn++
	k.p.schedule(k.p.w.randomAround(k.p.w.Think), k.try)
}

// try begins to wait for a random key. Some waits are cancelled after a random time.
func (k *worker) try() {
	p, w := k.p, k.p.w
	if w.pastLength() {
		return
	}
	key := w.rng.IntN(w.Keys)
	r := p.rooms[key]
	wt := &waiter{startedAt: w.now, onLease: k.onLease, onFailure: k.think}
	once, noWait := w.chance(w.Once), w.chance(w.NoWait)
	if w.Fair || once || noWait {
		r = &room{p: p, key: key, alone: true}
		wt.noWait = noWait
	}
	r.ttl, r.forever = w.ttlOf(key), !once
	wt.room = r
	k.turn++
	turn := k.turn
	if w.chance(w.Cancel) {
		p.schedule(w.randomAround(w.Hold*4), func() {
			if k.turn == turn {
				w.tally.Cancels++
				w.note(key, p, "cancels a wait", 0, 0)
				k.turn++
				r.leave(wt)
				k.think()
			}
		})
	}
	r.join(wt)
}

// onLease is called when the worker has got the lease of h. The worker works, sometimes extends
// the lease, and releases it.
func (k *worker) onLease(h *hold) {
	p, w := k.p, k.p.w
	k.turn++
	turn := k.turn
	h.onLoss = func() {
		w.tally.Losses++
		k.think()
	}
	work := w.randomAround(w.Hold)
	switch {
	case w.chance(w.Long):
		work = w.randomBetween(0, 3*w.TTL)
	case w.chance(0.5):
		work /= 20
	}
	if h.room.forever && w.chance(w.Extend) {
		p.schedule(work/4, func() {
			if k.turn == turn && h.state == held {
				h.renew(4 * w.ttlOf(h.key))
			}
		})
	}
	p.schedule(work, func() {
		if k.turn != turn {
			return
		}
		if h.state == held {
			h.room.onWorkDone(h)
		}
		k.think()
	})
}

// ttlOf returns the TTL of a key. All workers of a room have the same TTL.
func (w *world) ttlOf(key int) time.Duration { return w.TTL << (key % 2) }
