package semaphore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// source makes the choices of a history.
type source interface {
	choose(n int, what string) int // chooses a number from 0 to n-1
}

// history plays the same steps on the model and on a Store, and compares their answers.
type history struct {
	source
	model  *server
	stores *stores
	owners []*owned
	fences map[int64]uint64 // maps the model's fences to the Store's fences
	mail   []message        // the messages of the model
	trace  []string

	differs string // how the Store's behaviour differs from the model's
}

// owned is a token with its claim. queues is true if its acquires join the queue.
type owned struct {
	claim
	queues bool
}

// newHistory begins a history. The source c makes the random choices. The parameter omitted is
// the rule that the model leaves out; 0: none.
func newHistory(c source, s *stores, omitted Rule) *history {
	h := &history{source: c, stores: s, fences: make(map[int64]uint64)}
	h.model = newServer(omitted, func(m message) { h.mail = append(h.mail, m) })
	for range 3 {
		h.startProcess()
	}
	return h
}

func (h *history) startProcess() {
	h.stores.start()
}

func (h *history) log(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

func (h *history) differ(format string, args ...any) { h.differs = fmt.Sprintf(format, args...) }

// String returns the steps of the history, and the difference if there is one.
func (h *history) String() string { return strings.Join(append(h.trace, h.differs), "\n") }

func (h *history) newOwner() *owned {
	o := &owned{queues: h.choose(5, "queues") > 0}
	for alive := false; !alive; alive = !h.model.dead[o.proc] {
		o.proc = h.choose(len(h.stores.processes), "process")
	}
	o.token = fmt.Sprintf("t%d", len(h.owners)+1)
	o.limit = 1 + h.choose(4, "limit")
	o.weight = 1 + h.choose(o.limit, "weight")
	o.ttl = int64(1+h.choose(3, "ttl")) * unit.Microseconds()
	o.hand = min(o.ttl, int64(1+h.choose(2, "hand"))*unit.Microseconds())
	o.deaf = !o.queues || h.choose(8, "deaf") == 0
	h.owners = append(h.owners, o)
	return o
}

// chooseAmong returns one of the owners for which match returns true. If there is none, it makes
// a new owner.
func (h *history) chooseAmong(match func(*owned) bool) *owned {
	var all []*owned
	for _, o := range h.owners {
		if match(o) {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		return h.newOwner()
	}
	return all[h.choose(len(all), "who")]
}

func (h *history) anyOwner() *owned { return h.chooseAmong(func(*owned) bool { return true }) }

func (h *history) anyHolder() *owned {
	return h.chooseAmong(func(o *owned) bool { return h.model.permits[o.token] != nil })
}

func (h *history) anyWaiter() *owned {
	return h.chooseAmong(func(o *owned) bool {
		return slices.ContainsFunc(h.model.queue, func(e *entry) bool { return e.token == o.token })
	})
}

func (h *history) acquire(o *owned) {
	want := h.model.acquire(o.claim, o.queues)
	got, err := h.stores.caller(o.proc).Acquire(context.Background(), h.stores.claimOf(o.claim, o.queues))
	h.log("p%d %s acquires %d of %d, queues %v deaf %v: %+v", o.proc, o.token, o.weight, o.limit, o.queues, o.deaf, want)
	state := store.Busy
	switch {
	case want.granted:
		state = store.Granted
	case want.undone:
		state = store.Undone
	}
	switch {
	case err != nil || got.State != state:
		h.differ("the Store: %+v %v", got, err)
	case want.granted:
		h.compareFence(want.fence, got.Fence)
	case want.busy && o.queues && got.Place != want.place:
		h.differ("the Store: place %d", got.Place)
	case want.busy && ceil(got.Holder.Left) != ceil(timesOf(want.remaining)):
		h.differ("the Store: %v left", got.Holder.Left)
	}
}

func ceil(d time.Duration) int { return int((d + unit - 1) / unit) }

// compareFence compares two fences of one grant: want in the model, and got in the Store. Among
// all fences so far, the fence must have the same rank in the model and in the Store.
func (h *history) compareFence(want int64, got uint64) {
	for other, its := range h.fences {
		if cmp.Compare(want, other) != cmp.Compare(got, its) {
			h.differ("the Store: fence %d, and %d before", got, its)
		}
	}
	h.fences[want] = got
}

func (h *history) release(o *owned) {
	undo := h.choose(2, "undo") == 1
	want := h.model.release(o.claim, undo)
	c := h.stores.claimOf(o.claim, o.queues)
	if undo {
		c.TombstoneTTL = time.Minute
	}
	got, err := h.stores.caller(o.proc).Release(context.Background(), c)
	h.log("p%d %s releases, undo %v: %+v", o.proc, o.token, undo, want)
	if err != nil || (got.State == store.Released) != want.ours {
		h.differ("the Store: %+v %v", got, err)
	}
}

func (h *history) renew(o *owned) {
	ttl := int64(1+h.choose(3, "ttl")) * unit.Microseconds()
	want := h.model.renew(o.claim, ttl)
	c := h.stores.claimOf(o.claim, o.queues)
	c.TTL, c.ByHandoff = timesOf(ttl), true
	got, err := h.stores.caller(o.proc).Renew(context.Background(), []store.Claim{c})
	h.log("p%d %s renews for %v: %+v", o.proc, o.token, timesOf(ttl), want)
	if err != nil || (got[0].State == store.Granted) != want.ours {
		h.differ("the Store: %+v %v", got, err)
	}
}

func (h *history) passTime() {
	n := 1 + h.choose(2, "units")
	h.model.now += int64(n) * unit.Microseconds()
	h.stores.advance(time.Duration(n) * unit)
	h.log("%d units pass", n)
}

func (h *history) kill() {
	i := h.choose(len(h.stores.processes), "process")
	h.stores.kill(i)
	h.model.dead[i] = true
	h.log("p%d dies", i)
	if h.startProcess(); h.choose(2, "again") == 0 {
		h.log("another comes")
	}
}

// disturb makes another program take the key, or makes the server evict one of the keys L, P and
// U.
func (h *history) disturb() {
	s := h.model
	s.expire()
	switch what := h.choose(4, "what"); {
	case what == 0 && s.lease.kind == free && (h.stores.evict != nil || len(s.permits) == 0):
		s.lease = holder{foreign, s.now + unit.Microseconds()}
		h.stores.occupy(unit)
		h.log("a program takes the key")
	case h.stores.evict == nil || s.lease.kind != shield || s.lostP:
	case what == 1:
		s.lease = holder{}
		h.stores.evict("L")
		h.log("L is evicted")
	case what > 1:
		s.permits, s.lostP = make(map[string]*permit), true
		h.stores.evict(map[int]string{2: "P", 3: "U"}[what])
		h.log("P or U is evicted")
	}
}

// play makes the given number of steps, and compares the messages after each step. It ends early
// when the Store differs from the model.
func (h *history) play(steps int) {
	for range steps {
		if h.differs != "" {
			return
		}
		switch h.choose(16, "step") {
		case 0, 1, 2:
			h.acquire(h.newOwner())
		case 3:
			h.acquire(h.anyOwner())
		case 4, 5:
			h.acquire(h.anyWaiter())
		case 6:
			h.renew(h.anyOwner())
		case 7:
			h.renew(h.anyHolder())
		case 8, 9, 10:
			h.release(h.anyHolder())
		case 11:
			h.release(h.anyWaiter())
		case 12:
			h.release(h.anyOwner())
		case 13:
			h.passTime()
		case 14:
			h.kill()
		case 15:
			h.disturb()
		}
		h.compareMail()
	}
}

// compareMail checks that the Store and the model have sent the same messages about grants.
func (h *history) compareMail() {
	for h.differs == "" && len(h.mail) > 0 {
		select {
		case e := <-h.stores.events:
			token := strings.TrimLeft(e.Owner, "-")
			i := slices.IndexFunc(h.mail, func(m message) bool { return m.token == token })
			if i < 0 {
				h.differ("the Store told %s that it was granted units", token)
				return
			}
			h.log("%s is told", token)
			h.compareFence(h.mail[i].fence, e.Fence)
			h.mail = slices.Delete(h.mail, i, i+1)
		case <-time.After(unit / 5):
			h.differ("nobody was told: %+v", h.mail)
		}
	}
	select {
	case e := <-h.stores.events:
		h.differ("the Store told %s that it was granted units", strings.TrimLeft(e.Owner, "-"))
	default:
	}
}
